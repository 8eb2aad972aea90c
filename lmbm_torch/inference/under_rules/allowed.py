"""Best labellings under rules, by enumeration or by searches that apply the rules.

The searches (:mod:`lmbm_torch.kernels.search.under_rules`) use the rules at every node, also in the bound.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lmbm_torch.checks import check_count, count_limit
from lmbm_torch.constraints import Constraints
from lmbm_torch.constraints.implications import implied_pairs
from lmbm_torch.energies import DirectedEnergy, PairwiseEnergy
from lmbm_torch.inference.common.given import check_rules
from lmbm_torch.inference.common.results import Decoding, Status
from lmbm_torch.inference.enumeration import kernels as pairwise_enumeration
from lmbm_torch.inference.relaxations.local_polytope import hinge_loss
from lmbm_torch.inference.relaxations.objectives import FLIPS_PER_LABEL, Hinge
from lmbm_torch.inference.relaxations.semidefinite import spin_problems
from lmbm_torch.inference.relaxations.semidefinite.spin_problems import SpinProblem
from lmbm_torch.kernels.installed import kernels
from lmbm_torch.shapes import Known

# Smallest improvement that is not rounding, as a share of a label's largest loss.
ROUND_OFF = 1e-12
# Largest number of labels of a search, which needs two arrays of shape (labels, labels).
MOST_LABELS = 2000
# Largest number of rule sets that are cached in the kernel's form.
NUM_KEPT = 16


def suits(energy: Any) -> bool:
    """Return whether the searches take the energy: no clique of three or more labels, few enough labels."""
    is_directed = isinstance(energy, DirectedEnergy) and not energy.cliques
    return (is_directed or isinstance(energy, PairwiseEnergy)) and energy.num_labels <= MOST_LABELS


def enumerated(energy: PairwiseEnergy, constraints: Constraints) -> Decoding:
    """Return the allowed labelling of largest score for each example, by compiled enumeration.

    Raises:
        ValueError: NaN or infinity in the energy, or rules over another number of labels.
    """
    energy.check_values()
    check_rules(energy, constraints, None)
    labels = pairwise_enumeration.best_labels(energy, constraints)
    objective = energy.score(labels)
    return Decoding(labels, objective, objective.clone(), Status.certain(energy, 2**energy.num_labels))


def least_hinges(
    energy: DirectedEnergy | PairwiseEnergy,
    *,
    constraints: Constraints,
    margin: float,
    node_limit: int | None,
    known: Known | None,
    top_k: int,
) -> Decoding:
    """Return the allowed labellings of least hinge loss; the energy must be on the CPU and :func:`suits`.

    Raises:
        ValueError: see :func:`best_scores`.
    """
    precise = energy.to(torch.float64)
    effects = precise.parents.mT if isinstance(precise, DirectedEnergy) else precise.pairwise
    kind = _kernel().HINGE
    found = _search(energy, effects, kind, margin, constraints, known, node_limit, top_k)
    losses = (margin - precise.local_margins(found.samples)).clamp(min=0).sum(-1)
    return _decoding(energy, found, losses.mT, 1.0)


def best_scores(
    energy: DirectedEnergy | PairwiseEnergy,
    *,
    constraints: Constraints,
    node_limit: int | None,
    known: Known | None,
    top_k: int,
) -> Decoding:
    """Return the allowed labellings of largest score; the energy must be on the CPU and :func:`suits`.

    Raises:
        ValueError: the energy has NaN or infinity; ``known`` or the rules have another number of labels than
            the energy, or contradict each other; ``known`` has values besides 0, 1 and NaN; a limit or
            ``top_k`` is no positive integer; ``top_k`` is above the number of allowed labellings, or of the
            labellings found within the limit.
    """
    precise, kernel = energy.to(torch.float64), _kernel()
    if isinstance(precise, DirectedEnergy):
        effects, kind = precise.parents.mT, kernel.LOGISTIC
        constant = torch.zeros(energy.batch_size, dtype=torch.float64, device="cpu")
    else:
        # Half of each coupling, since the kernel adds a pair's term to the fields of both labels.
        effects, kind, constant = precise.pairwise / 2, kernel.LINEAR, precise.constant
    found = _search(energy, effects, kind, 0.0, constraints, known, node_limit, top_k)
    found = found._replace(bound=found.bound - constant)
    return _decoding(energy, found, -precise.score(found.samples).mT, -1.0)


class _Found(NamedTuple):
    """Best labellings (top_k, batch, labels), and for each example the bound and how the search ended."""

    samples: Tensor
    bound: Tensor
    proven: Tensor
    limited: Tensor
    nodes: Tensor


def _kernel() -> Any:
    return kernels("search.under_rules")


def _search(
    energy: DirectedEnergy | PairwiseEnergy,
    effects: Tensor,
    kind: int,
    margin: float,
    constraints: Constraints,
    known: Tensor | None,
    node_limit: int | None,
    top_k: int,
) -> _Found:
    energy.check_values()
    check_rules(energy, constraints, known)
    check_count("top_k", top_k)
    labels = energy.num_labels
    given = np.full((1, labels), np.nan) if known is None else known.double().numpy()
    fields = np.ascontiguousarray(energy.unary.double().numpy())
    tables = np.ascontiguousarray(effects.reshape(-1, labels, labels).numpy())
    kernel = _kernel()
    problem = kernel.RuledProblem(
        fields=fields,
        effects=tables,
        order=_order(energy),
        known=np.nan_to_num(given, nan=-1).astype(np.int8),
        rows=_rows(constraints),
        loss=kind,
        margin=float(margin),
        round_off=ROUND_OFF,
        node_limit=count_limit("node_limit", node_limit),
        top_k=top_k,
    )
    found = kernel.search(problem)
    for row in np.isinf(found.losses[:, -1]).nonzero()[0].tolist():
        found.labels[row] = _in_place(found, row, constraints, given[row % len(given)])
    arrays = found.labels.swapaxes(0, 1), found.bound, found.losses[:, -1] <= found.bound
    return _Found(*map(torch.from_numpy, (*arrays, found.limited, found.nodes)))


def climbed(
    energy: PairwiseEnergy,
    found: Decoding,
    margin: float | None,
    constraints: Constraints,
    known: Tensor | None,
) -> Decoding:
    """Improve the labellings without a proof by flips of single labels that obey the rules.

    Args:
        margin: the margin of hinge losses; None for scores.
    """
    rows = (~found.status.exact).nonzero().flatten().tolist()
    if not rows:
        return found
    precise, labels = energy.to(torch.float64), found.labels.clone()
    if margin is not None:
        for row in rows:
            labels[row] = _flipped(precise.select([row]), labels[row], margin, constraints, known, row)
        return _improved(energy, found, labels, hinge_loss(precise, labels, margin))
    couplings = precise.pairwise.expand(energy.batch_size, -1, -1).numpy()
    given = (
        torch.zeros(1, energy.num_labels, device="cpu") if known is None else (2 * known - 1).nan_to_num(0.0)
    )
    for row in rows:
        fields, spins = precise.unary[row].numpy(), given[row % len(given)].double().numpy()
        problem = SpinProblem.of_machine(fields, couplings[row], constraints).given(spins)
        wishes = np.where(spins != 0, spins, np.where(fields > 0, 1.0, -1.0))
        starts = problem.reduced(np.stack([2.0 * labels[row].numpy() - 1, wishes]))
        ends = problem.in_full(spin_problems.climbed(problem, starts, np.abs(problem.matrix[0])))
        best = ends[problem.values(problem.reduced(ends[:, 1:])).argmax(), 1:]
        labels[row] = torch.from_numpy(best > 0)
    return _improved(energy, found, labels, precise.score(labels))


def _flipped(
    energy: PairwiseEnergy,
    labels: Tensor,
    margin: float,
    constraints: Constraints,
    known: Tensor | None,
    row: int,
) -> Tensor:
    """Flip single labels of an example, as far as the rules allow, until no flip lowers the hinge loss."""
    given = None if known is None else known[row % len(known)]
    for _ in range(FLIPS_PER_LABEL * len(labels)):
        others = torch.where(torch.eye(len(labels), dtype=torch.bool, device="cpu"), 1 - labels, labels)
        is_open = torch.from_numpy(~constraints.violated(others.numpy()).any(1))
        if given is not None:
            is_open &= given.isnan()
        gains = Hinge(margin).flip_gains(energy, labels[None])[0].masked_fill(~is_open, -torch.inf)
        flip = int(gains.argmax())
        if gains[flip] <= spin_problems.LEAST * (energy.unary.abs().sum() + energy.pairwise.abs().sum()):
            break
        labels = others[flip]
    return labels


def _improved(energy: PairwiseEnergy, found: Decoding, labels: Tensor, value: Tensor) -> Decoding:
    """Replace the labels and objectives of examples without a proof."""
    objective = torch.where(found.status.exact, found.objective, value.to(energy.dtype))
    status = replace(found.status, residual=(objective - found.bound).abs())
    return replace(found, labels=labels, objective=objective, status=status)


def _in_place(found: Any, row: int, constraints: Constraints, known: np.ndarray) -> np.ndarray:
    """Return any allowed labelling if the search found none; raise ValueError for ``top_k`` above 1."""
    count, top_k = int(np.isfinite(found.losses[row]).sum()), found.losses.shape[1]
    if not count:
        constraints.check(known, f"known[{row}]")
    if top_k > 1:
        what = "found within node_limit" if found.limited[row] else "allowed"
        raise ValueError(
            f"top_k: expected at most {count}, the number of labellings of example {row} {what}, got {top_k}"
        )
    nearest = constraints.nearest(np.zeros(len(known)), known)
    assert nearest is not None
    return nearest[None]


def _order(energy: DirectedEnergy | PairwiseEnergy) -> np.ndarray:
    """Return the order in which the search fixes labels: parents, or strongly coupled labels, first."""
    if isinstance(energy, DirectedEnergy):
        return energy.ordering.numpy()
    pairwise = energy.pairwise.detach().abs()
    weights = pairwise.sum(-1) if pairwise.ndim == 2 else pairwise.sum(-1).mean(0)
    return weights.argsort(descending=True, stable=True).numpy()


@lru_cache(NUM_KEPT)
def _rows(constraints: Constraints) -> Any:
    """Convert the rules, and the rules over pairs of labels that follow from them, to the kernel's form."""
    matrix, bounds = constraints.matrix, constraints.bounds
    pairs = implied_pairs(matrix, bounds)
    # Write "not both values" as a rule: the sum of weights 1 or −1 may not reach its largest possible value.
    signs = np.array([[2.0 * value - 1 for _, value in pair] for pair in pairs]).reshape(-1, 2)
    own_rows, own_columns = matrix.nonzero()
    columns = np.concatenate([own_columns, np.array([[a, b] for (a, _), (b, _) in pairs], int).ravel()])
    weights = np.concatenate([matrix[own_rows, own_columns], signs.ravel()])
    sizes = np.concatenate([(matrix != 0).sum(1), np.full(len(pairs), 2)])
    further = np.clip(signs, 0, None).sum(1) - 1
    by_label = np.argsort(own_columns, kind="stable")
    return _kernel().Rows(
        starts=np.concatenate([[0], sizes.cumsum()]),
        columns=columns.astype(np.int64),
        weights=weights,
        bounds=np.concatenate([bounds, further]),
        num_rules=len(bounds),
        order=np.argsort(sizes, kind="stable"),
        label_starts=np.searchsorted(own_columns[by_label], np.arange(matrix.shape[1] + 1)),
        label_rows=own_rows[by_label],
        label_weights=matrix[own_rows, own_columns][by_label],
    )


def _decoding(energy: Any, found: _Found, losses: Tensor, sign: float) -> Decoding:
    """Return the result, whose objectives are ``sign`` times the losses (batch, top_k)."""
    bound = torch.where(found.proven, losses[:, -1], found.bound.minimum(losses[:, -1]))
    exact = losses[:, -1] <= bound
    labels, objective = found.samples.transpose(0, 1).contiguous(), (sign * losses).to(energy.dtype)
    residual = (losses[:, -1] - bound).to(energy.dtype)
    status = Status(exact, ~found.limited, found.nodes, residual)
    if labels.shape[1] == 1:
        labels, objective = labels.squeeze(1), objective.squeeze(1)
    return Decoding(labels, objective, (sign * bound).to(energy.dtype), status, found.nodes)
