"""Exact decoding of sigmoid belief networks by depth-first branch and bound, with a certificate.

Labels are decided in topological order. The search first tries the value that the sign of the field prefers,
1 for a field of 0 (lmbm_and_lmsbn_2010, section 2.3, Algorithm 2). Both objectives are sums of one
non-negative loss for each label. A partial labelling is dropped once its loss, plus the least possible loss
of the undecided labels, reaches the loss of the best complete labelling. Sums are in float64, and losses
count as tied if they differ by less than ``ROUND_OFF`` times the largest possible loss of a label.
Certificates hold up to this difference, and up to rounding to the energy's precision.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from lmbm_torch.checks import LARGEST, check_count, check_finite, check_positive, check_shape, count_limit
from lmbm_torch.constraints import Constraints
from lmbm_torch.energies import DirectedEnergy
from lmbm_torch.energies.base import known_spins
from lmbm_torch.energies.indices import padded_cliques
from lmbm_torch.inference.common.results import Decoding, Status
from lmbm_torch.inference.under_rules import allowed, constrained
from lmbm_torch.kernels.installed import kernels
from lmbm_torch.kernels.search.operator import search
from lmbm_torch.kernels.search.records import Found, SearchProblem
from lmbm_torch.shapes import Known
from lmbm_torch.verdicts import is_traced, one_door, refuse_unless, searched_on_host

# Largest difference of tied losses, as a share of a label's largest loss: far above rounding errors.
ROUND_OFF = 1e-12


@one_door
@torch.no_grad()
def decode_hinge(
    energy: DirectedEnergy,
    margin: float = 1.0,
    *,
    cutoff: float | None = None,
    node_limit: int | None = None,
    known: Known | None = None,
    top_k: int = 1,
    constraints: Constraints | None = None,
) -> Decoding:
    """Return argmin_y Σ_i [γ − m_i(y)]_+, the papers' prediction rule (lmbm_and_lmsbn_2010, Equation 5).

    Args:
        energy: a directed model, on any device. On CUDA devices a kernel searches if available
            (:mod:`lmbm_torch.kernels.search.directed_cuda`, never run on a GPU yet), else the CPU.
        margin: γ > 0, in units of the local fields.
        cutoff: S; labellings whose loss is S γ or more are pruned. A label against its field costs at least
            γ. A least loss below S γ is always found: with probability 1 − E[loss]/(S γ) or more, on at most
            Σ_{s<S} C(labels, s) leaves, which are complete labellings (Theorem 9). An example with fewer than
            ``top_k`` such labellings gets the search's first leaves, for ``top_k=1`` the greedy labelling.
        node_limit: the number of nodes after which an example's search ends, if ``top_k`` leaves were found.
        known: {0, 1, NaN}, NaN for a free label; hinge losses of known labels are part of the sum.
        top_k: the number of labellings to return, best first; the bound then holds for all other labellings.
        constraints: rules that the labellings must obey, propagated at every node. With cliques or a cutoff,
            the search is instead :mod:`lmbm_torch.inference.under_rules.constrained`.

    Returns:
        The hinge loss is the objective, bound ≤ objective. ``status.exact`` is true if no other labelling is
        better, ``status.converged`` if the search ended before the node limit.

    Raises:
        ValueError: NaN or infinity or a misplaced parent in the energy; ``known`` of another shape than
            (batch, labels), or with impossible values; a margin or cutoff that is not a finite number above
            0; a node limit or ``top_k`` that is no positive integer; more labellings requested than an
            example has; constraints over another number of labels, or constraints that contradict the known
            labels.
    """
    check_positive("margin", margin)
    if constraints is not None:
        return _hinges_under_rules(energy, margin, cutoff, node_limit, known, top_k, constraints)
    found = _search(energy, margin, 0.0, cutoff, node_limit, known, top_k)
    return _decoding(energy, found, objective_per_loss=1)


@one_door
@torch.no_grad()
def decode(
    energy: DirectedEnergy,
    *,
    cutoff: float | None = None,
    node_limit: int | None = None,
    known: Known | None = None,
    top_k: int = 1,
    constraints: Constraints | None = None,
) -> Decoding:
    """Return argmax_y log P(y), the most probable labelling, where −log P(y) = Σ_i log(1 + exp(−2 m_i(y))).

    Args:
        energy: a directed model, on any device.
        cutoff: S; labellings with −log P(y) of S log 2 or more are pruned. A label against its field adds at
            least log 2 to −log P(y).
        node_limit, known, top_k, constraints: see :func:`decode_hinge`.

    Returns:
        The log-probability is the objective, bound ≥ objective; for the status see :func:`decode_hinge`.

    Raises:
        ValueError: see :func:`decode_hinge`.
    """
    if constraints is not None:
        return _decode_under_rules(energy, cutoff, node_limit, known, top_k, constraints)
    # The search's loss at margin 0 and temperature ½ is ½ softplus(−2m), so −log P is twice this loss.
    found = _search(energy, 0.0, 0.5, cutoff, node_limit, known, top_k)
    return _decoding(energy, found, objective_per_loss=-2)


@dataclass(frozen=True)
class HingeSearch:
    """Reusable search of :func:`decode_hinge` on the CPU: checks the weights once, then takes many fields.

    Attributes:
        problem: the search's input as NumPy arrays, without the fields.
        ordering, positions: (labels,), the label at each position, and the position of each label.
    """

    problem: SearchProblem
    ordering: np.ndarray
    positions: np.ndarray

    @classmethod
    def of(
        cls,
        parents: np.ndarray,
        ordering: np.ndarray,
        cliques: Sequence[Sequence[int]] = (),
        clique_weight: np.ndarray | None = None,
        *,
        margin: float = 1.0,
        cutoff: float | None = None,
        node_limit: int | None = None,
    ) -> HingeSearch:
        """Check the weights, and return the search of a belief network whose examples share the weights.

        Args:
            parents: (labels, labels), as in :class:`DirectedEnergy`: row i holds the weights of label i's
                parents, which come before label i.
            ordering: (labels,), a permutation.
            clique_weight: (cliques,).
            margin, cutoff, node_limit: see :func:`decode_hinge`.

        Raises:
            ValueError: the weights are not finite; see :func:`decode_hinge`.
        """
        check_positive("margin", margin)
        if cutoff is not None:
            check_positive("cutoff", cutoff)
        weight = np.zeros(0) if clique_weight is None else clique_weight
        for name, values in (("parents", parents), ("clique_weight", weight)):
            if not (np.abs(values) <= LARGEST).all():
                check_finite(name, values)
                raise ValueError(f"{name}: expected magnitudes of at most {LARGEST:g}")
        positions = np.argsort(ordering)
        clique_parents, clique_child = _clique_places(cliques, torch.from_numpy(ordering))
        children = parents.T[ordering][:, ordering]
        # The type names tensors, but the compiled search takes arrays.
        arrays: dict[str, Any] = {
            "fields": np.empty((0, len(ordering))),
            "children": np.ascontiguousarray(children, np.float64)[None],
            "clique_parents": clique_parents.numpy(),
            "clique_child": clique_child.numpy(),
            "clique_weight": np.array(weight, np.float64)[None],
            "known": np.zeros((1, len(ordering))),
        }
        problem = SearchProblem(
            **arrays,
            margin=float(margin),
            temperature=0.0,
            round_off=ROUND_OFF,
            ceiling=_ceiling(margin, 0.0, cutoff),
            node_limit=count_limit("node_limit", node_limit),
            top_k=1,
        )
        return cls(problem, ordering, positions)

    def __call__(self, unary: np.ndarray) -> Any:
        """Return the labelling of least hinge loss for each row of fields (batch, labels).

        Returns:
            A ``Found`` of NumPy arrays, with labels (batch, 1, labels) in the order of the model.

        Raises:
            ValueError: the fields have another width than the number of labels, or are not finite.
        """
        check_shape("unary", unary, None, len(self.ordering))
        # Written so that NaN fails, too.
        if not (np.abs(unary) <= LARGEST).all():
            check_finite("unary", unary)
            raise ValueError(f"unary: expected magnitudes of at most {LARGEST:g}")
        search = kernels("search.directed").search_arrays
        # ``take`` returns contiguous rows, unlike indexing.
        found = search(self.problem._replace(fields=cast(Any, unary.take(self.ordering, 1))))
        return found._replace(labels=found.labels.take(self.positions, 2))


@searched_on_host
def _hinges_under_rules(
    energy: DirectedEnergy,
    margin: float,
    cutoff: float | None,
    node_limit: int | None,
    known: Known | None,
    top_k: int,
    constraints: Constraints,
) -> Decoding:
    routine = partial(decode_hinge, margin=margin, cutoff=cutoff, node_limit=node_limit)
    if cutoff is not None or not allowed.suits(energy):
        return constrained.decode_loss(energy, constraints, routine, known=known, top_k=top_k)
    over = partial(allowed.least_hinges, constraints=constraints, margin=margin, node_limit=node_limit)
    return constrained.where_broken(energy, constraints, routine, over, known=known, top_k=top_k)


@searched_on_host
def _decode_under_rules(
    energy: DirectedEnergy,
    cutoff: float | None,
    node_limit: int | None,
    known: Known | None,
    top_k: int,
    constraints: Constraints,
) -> Decoding:
    routine = partial(decode, cutoff=cutoff, node_limit=node_limit)
    if cutoff is not None or not allowed.suits(energy):
        return constrained.decode(energy, constraints, routine, known=known, top_k=top_k)
    over = partial(allowed.best_scores, constraints=constraints, node_limit=node_limit)
    return constrained.where_broken(energy, constraints, routine, over, known=known, top_k=top_k)


def _found(problem: SearchProblem) -> Found:
    if problem.fields.device.type == "cpu" and not is_traced():
        return kernels("search.directed").search(problem)
    return search(problem)


def _search(
    energy: DirectedEnergy,
    margin: float,
    temperature: float,
    cutoff: float | None,
    node_limit: int | None,
    known: Tensor | None,
    top_k: int,
) -> Found:
    if cutoff is not None:
        check_positive("cutoff", cutoff)
    energy.check_values()
    most_nodes = count_limit("node_limit", node_limit)
    check_count("top_k", top_k)
    spins = known_spins(energy, known)
    _check_top_k(top_k, spins, energy.num_labels)
    # Indexing would start torch's threads, whose waiting loops keep the search's threads off the cores:
    # 1,196 images of Scene on a busy computer took 8 ms with indexing, 1 ms with index_select.
    order, labels = energy.ordering, energy.num_labels
    parents = energy.parents.index_select(-2, order).index_select(-1, order)
    clique_parents, clique_child = _clique_places(energy.cliques, energy.ordering)
    weight = energy.unary.new_zeros(1, 0) if energy.clique_weight is None else energy.clique_weight
    return _found(
        SearchProblem(
            fields=energy.unary.index_select(1, order).double(),
            children=parents.mT.double().reshape(-1, labels, labels),
            clique_parents=clique_parents,
            clique_child=clique_child,
            clique_weight=torch.atleast_2d(weight.double()),
            known=spins.index_select(1, order),
            margin=float(margin),
            temperature=temperature,
            round_off=ROUND_OFF,
            ceiling=_ceiling(margin, temperature, cutoff),
            node_limit=most_nodes,
            top_k=top_k,
        )
    )


def _ceiling(margin: float, temperature: float, cutoff: float | None) -> float:
    """Return the loss at which labellings are pruned: ``cutoff`` times the least loss against the field."""
    return math.inf if cutoff is None else cutoff * (margin + temperature * math.log(2))


def _check_top_k(top_k: int, spins: Tensor, labels: int) -> None:
    """Raise ValueError if an example has fewer labellings than ``top_k``."""

    def free() -> Tensor:
        return (spins == 0).sum(1).min()

    def refuse() -> None:
        raise ValueError(
            f"top_k: expected at most 2^{int(free())}, the labellings of an example, got {top_k}"
        )

    least = (top_k - 1).bit_length()
    if least > labels:
        refuse()
    refuse_unless(
        "top_k: expected at most the labellings of an example", (spins,), lambda: free() >= least, refuse
    )


def _clique_places(cliques: Sequence[Sequence[int]], ordering: Tensor) -> tuple[Tensor, Tensor]:
    """Return each clique's parents and child by position; parents are padded with the number of labels."""
    labels = len(ordering)
    if not cliques:
        return ordering.new_zeros(0, 1), ordering.new_zeros(0)
    members = padded_cliques(tuple(map(tuple, cliques)), labels, ordering.device)
    places = pad(torch.argsort(ordering), (0, 1), value=-1)[members].sort(1, descending=True).values
    return places[:, 1:].where(places[:, 1:] >= 0, labels), places[:, 0]


def _decoding(energy: DirectedEnergy, found: Found, objective_per_loss: int) -> Decoding:
    labels = found.labels.index_select(2, energy.positions)
    objective = (objective_per_loss * found.losses).to(energy.dtype)
    bound = (objective_per_loss * found.bound).to(energy.dtype)
    status = Status(
        exact=found.losses.select(1, -1) <= found.bound,
        converged=~found.limited,
        num_iters=found.nodes,
        residual=(objective.select(1, -1) - bound).abs_(),
    )
    if labels.shape[1] == 1:
        labels, objective = labels.squeeze(1), objective.squeeze(1)
    return Decoding(labels=labels, objective=objective, bound=bound, nodes=found.nodes, status=status)
