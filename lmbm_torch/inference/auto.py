"""Inference by the routine that suits an energy: the choice by its kind and its number of labels.

The numbers of labels at which the choice changes are :data:`CUTOFFS`, measured by
``scripts/bench/cutoffs.py``. A kind of energy that is not in this library, a subclass of
:class:`~lmbm_torch.energies.BaseEnergy`, is enumerated. To choose yourself, call a routine by its module.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from lmbm_torch.backends.installed import compiled
from lmbm_torch.checks import check_count
from lmbm_torch.constraints import Constraints
from lmbm_torch.energies.base import BaseEnergy, MarginEnergy
from lmbm_torch.energies.bipartite import BipartiteEnergy
from lmbm_torch.energies.chain import ChainEnergy
from lmbm_torch.energies.clique import CliqueEnergy
from lmbm_torch.energies.directed import DirectedEnergy
from lmbm_torch.energies.pairwise import PairwiseEnergy
from lmbm_torch.energies.sequential import SequentialEnergy
from lmbm_torch.energies.tree import TreeEnergy
from lmbm_torch.inference import (
    ancestral,
    best_first,
    branch_and_bound,
    chain_dp,
    constrained,
    constrained_sums,
    dual_decomposition,
    exact,
    junction_tree,
    matrix_bp,
    mean_field,
    most_probable,
    semidefinite,
    tree_dp,
)
from lmbm_torch.inference.branch_and_bound import NODE_LIMIT
from lmbm_torch.inference.junction_tree import SparseEnergy
from lmbm_torch.inference.machines import (
    decode_cliques,
    decode_cliques_hinge,
    decode_machine,
    decode_machine_hinge,
    fewer_nodes,
    has_tree,
)
from lmbm_torch.inference.matching import MatchedInference
from lmbm_torch.inference.parts import (
    allowed,
    directed_enumeration,
    label_halves,
    pairwise_enumeration,
    part_by_part,
)
from lmbm_torch.inference.parts.cutoffs import CUTOFFS, Cutoffs
from lmbm_torch.inference.parts.free_labels import (
    MAX_FREE_LABELS,
    check_free,
    free_units,
    is_pairwise,
    num_free,
    refuse_known,
    refuse_large_cliques,
    refused,
)
from lmbm_torch.inference.parts.known import count_limit
from lmbm_torch.inference.parts.networks import Ways, decode_network
from lmbm_torch.inference.parts.part_by_part import hinge_of, score_of
from lmbm_torch.inference.parts.restricted import taking_restricted
from lmbm_torch.inference.results import Decoding
from lmbm_torch.shapes import Float, Known

__all__ = [
    "CUTOFFS",
    "Cutoffs",
    "decode",
    "decode_hinge",
    "has_tree",
    "log_partition",
    "marginals",
    "sums_are_compiled",
]

NUM_SAMPLES = 1000

AnyEnergy = PairwiseEnergy | CliqueEnergy | DirectedEnergy | BipartiteEnergy | ChainEnergy | TreeEnergy


@taking_restricted
def decode(
    energy: AnyEnergy | SequentialEnergy,
    *,
    known: Known | None = None,
    top_k: int = 1,
    node_limit: int | None = NODE_LIMIT,
    constraints: Constraints | None = None,
) -> Decoding:
    """argmax_y P(y), the most probable labelling, with its certificate; hidden units are summed out.

    Exact for chains, trees, and whatever is enumerated or has a junction tree of small width. Searches prove
    what they find within ``node_limit``; of a restricted Boltzmann machine with many labels the bound may
    stay above the objective. ``status`` tells.

    Args:
        energy: of any kind in :mod:`lmbm_torch.energies`; Boltzmann machines with cliques of three or more
            labels go to an integer programme where these are many (above 22) and their graph is not close to
            a tree. A subclass of ``BaseEnergy`` from elsewhere has at most 22 free labels. A restricted
            energy is the one within, under its rules.
        known: {0, 1, NaN}, NaN for a free label; only labellings that agree with it compete. None for chains
            and trees.
        top_k: how many labellings to return, best first: of directed models, chains, and Boltzmann machines,
            with larger cliques than pairs of at most 22 labels.
        node_limit: end an example's search after so many nodes; None for never: dense Boltzmann machines of
            many labels then take the semidefinite search. Other routines have no nodes.
        constraints: rules that the labellings must obey; see :mod:`lmbm_torch.inference.constrained`.

    Raises:
        TypeError: another energy.
        ValueError: an energy that is not finite, or that no routine takes; ``known`` of another shape or with
            other values, or not supported; ``top_k`` below 1, above an example's labellings, or not
            supported; a node limit that is no count.
    """
    check_count("top_k", top_k)
    count_limit("node_limit", node_limit)
    if constraints is not None:
        return _decode_allowed(energy, constraints, known, top_k, node_limit)
    match energy:
        case DirectedEnergy():
            return decode_network(energy, _score_ways(), known, top_k, node_limit)
        case SequentialEnergy():
            return best_first.decode(energy, known=known, top_k=top_k, node_limit=node_limit)
        case CliqueEnergy() if is_pairwise(energy):
            return decode(energy.to_pairwise(), known=known, top_k=top_k, node_limit=node_limit)
        case CliqueEnergy():
            free = check_free(energy, known, top_k)
            if free > CUTOFFS.elimination and top_k == 1 and _is_narrow(energy):
                return junction_tree.decode(energy, known=known, max_treewidth=CUTOFFS.treewidth)
            if free > MAX_FREE_LABELS:
                return decode_cliques(energy, known, node_limit)
            return exact.decode(energy, known=known, top_k=top_k)
        case PairwiseEnergy():
            free = num_free(energy, known)
            if top_k > 1 and free > MAX_FREE_LABELS:
                nodes = fewer_nodes(node_limit)
                return semidefinite.decode(energy, known=known, top_k=top_k, node_limit=nodes)
            if top_k == 1 and free > CUTOFFS.narrow and _is_narrow(energy):
                return junction_tree.decode(energy, known=known, max_treewidth=CUTOFFS.treewidth)
            by_kernel = known is None and pairwise_enumeration.suits(energy)
            if top_k > 1 or free <= _most_enumerated(CUTOFFS.kernel if by_kernel else CUTOFFS.enumeration):
                return exact.decode(energy, known=known, top_k=top_k)
            return decode_machine(energy, decode, known, node_limit)
        case BipartiteEnergy():
            if top_k > 1:
                raise ValueError(f"top_k: expected 1 for a model with hidden units, got {top_k}")
            by_enumeration = num_free(energy, known) <= CUTOFFS.hidden
            return (exact if by_enumeration else dual_decomposition).marginal_map(energy, known=known)
        case ChainEnergy():
            refuse_known(energy, known)
            return chain_dp.decode(energy, top_k=top_k)
        case TreeEnergy():
            refuse_known(energy, known)
            if top_k > 1:
                raise ValueError(f"top_k: expected 1 for a tree, got {top_k}")
            return tree_dp.decode(energy)
        case BaseEnergy():
            return exact.decode(energy, known=known, top_k=top_k)
        case _:
            raise refused(energy, AnyEnergy)


@taking_restricted
def decode_hinge(
    energy: DirectedEnergy | PairwiseEnergy | CliqueEnergy,
    margin: float = 1.0,
    *,
    known: Known | None = None,
    top_k: int = 1,
    node_limit: int | None = NODE_LIMIT,
    constraints: Constraints | None = None,
) -> Decoding:
    """argmin_y Σ_i [margin − m_i]_+, the labelling of least hinge loss, with its certificate.

    Args:
        energy: a directed model or a Boltzmann machine, with cliques of any order; see :func:`decode`.
        margin: γ > 0, in units of the local fields.
        known: {0, 1, NaN}, NaN for a free label; known labels still pay their own hinge.
        top_k: how many labellings to return, best first; of a Boltzmann machine, for at most 22 labels.
        node_limit, constraints: see :func:`decode`.

    Raises:
        TypeError: another energy.
        ValueError: see :func:`decode`; a margin that is not a finite number above 0.
    """
    check_count("top_k", top_k)
    count_limit("node_limit", node_limit)
    if constraints is not None:
        return _decode_hinge_allowed(energy, margin, constraints, known, top_k, node_limit)
    match energy:
        case DirectedEnergy():
            return decode_network(energy, _hinge_ways(margin), known, top_k, node_limit)
        case CliqueEnergy() if is_pairwise(energy):
            pairs = energy.to_pairwise()
            return decode_hinge(pairs, margin, known=known, top_k=top_k, node_limit=node_limit)
        case CliqueEnergy():
            free, is_narrow = check_free(energy, known, top_k), junction_tree.is_narrow_for_hinge
            if free > CUTOFFS.elimination and top_k == 1 and is_narrow(energy, CUTOFFS.treewidth):
                return junction_tree.decode_hinge(energy, margin, known=known)
            if free > MAX_FREE_LABELS:
                return decode_cliques_hinge(energy, margin, known, node_limit)
            return exact.decode_hinge(energy, margin, known=known, top_k=top_k)
        case PairwiseEnergy():
            free = check_free(energy, known, top_k)
            if top_k > 1 or free <= _most_enumerated(CUTOFFS.hinge):
                return exact.decode_hinge(energy, margin, known=known, top_k=top_k)
            if free > CUTOFFS.narrow and junction_tree.is_narrow_for_hinge(energy, CUTOFFS.treewidth):
                return junction_tree.decode_hinge(energy, margin, known=known)
            return decode_machine_hinge(energy, margin, decode_hinge, known, node_limit)
        case BaseEnergy() if isinstance(energy, MarginEnergy):
            return exact.decode_hinge(energy, margin, known=known, top_k=top_k)
        case _:
            raise refused(energy, DirectedEnergy | PairwiseEnergy | CliqueEnergy)


@taking_restricted
def marginals(
    energy: AnyEnergy | SequentialEnergy,
    *,
    known: Known | None = None,
    matched: MatchedInference | None = None,
    generator: torch.Generator | None = None,
    constraints: Constraints | None = None,
) -> Any:
    """P(y_i = 1), or of chains and trees P(y_t = s), exact where that is affordable, else approximate.

    ``method`` says in words which; ``status.exact`` says for which examples. ``log_partition`` is then exact,
    too; else it is the routine's own bound or approximation, or 0 for a directed model.

    Args:
        energy: see :func:`decode`, also for ``known``; of a directed model with more labels than are
            enumerated, and whose graph is not close to a tree, nothing may be known.
        matched: what a restricted Boltzmann machine was trained with, used where it is too large for
            enumeration; by default belief propagation.
        generator: the source of the samples that stand for many labels of a directed model.
        constraints: rules that the labellings obey, of at most 22 free labels or a sparse model; see
            :mod:`lmbm_torch.inference.constrained_sums`.

    Returns:
        ``Marginals``, of a restricted Boltzmann machine ``BipartiteMarginals``, of chains ``ChainMarginals``,
        of trees ``TreeMarginals``, of what is asked for label by label ``StateMarginals``.

    Raises:
        TypeError: another energy.
        ValueError: see :func:`decode`.
    """
    if constraints is not None:
        return constrained_sums.marginals(energy, constraints, known=known)
    method, again = "exact, by enumeration", partial(marginals, generator=generator)
    match energy:
        case ChainEnergy() | TreeEnergy():
            refuse_known(energy, known)
            is_chain = isinstance(energy, ChainEnergy)
            found = chain_dp.marginals(energy) if is_chain else tree_dp.marginals(energy)
            method = "exact, by dynamic programming"
        case SequentialEnergy():
            found = most_probable.marginals(energy, known=known)
            method = f"to within {most_probable.MASS_LEFT:g}, or status.residual, by likely labellings"
        case DirectedEnergy() | PairwiseEnergy() | CliqueEnergy() | BipartiteEnergy():
            free = free_units(energy, known)
            is_large = free > CUTOFFS.elimination
            if is_large and not isinstance(energy, BipartiteEnergy) and _is_narrow(energy):
                found = junction_tree.marginals(energy, known=known, max_treewidth=CUTOFFS.treewidth)
                method = "exact, by a junction tree"
            elif is_large and (parts := part_by_part.marginals(energy, again, known=known)) is not None:
                found, method = parts, parts.method
            elif free <= (CUTOFFS.shared if label_halves.are_shared(energy) else CUTOFFS.marginals):
                found = exact.marginals(energy, known=known)
            elif isinstance(energy, DirectedEnergy):
                if known is not None:
                    raise ValueError(
                        f"known: expected None for a directed model of more than {CUTOFFS.marginals} free "
                        f"labels, whose marginals are sampled, got some for {free} free ones"
                    )
                found = ancestral.marginals(energy, NUM_SAMPLES, generator=generator)
                method = f"means over {NUM_SAMPLES} samples"
            elif isinstance(energy, BipartiteEnergy):
                by_mean_field = matched is not None and matched.routine is mean_field.marginals
                routine = matrix_bp.marginals if matched is None else matched.marginals
                found = routine(energy, known=known)
                method = f"approximate, by {'mean field' if by_mean_field else 'belief propagation'}"
            elif isinstance(energy, CliqueEnergy):
                refuse_large_cliques(energy, free)
                found = exact.marginals(energy, known=known)
            else:
                found, method = mean_field.marginals(energy, known=known), "approximate, by mean field"
        case BaseEnergy():
            found = exact.marginals(energy, known=known)
        case _:
            raise refused(energy, AnyEnergy)
    return replace(found, method=method)


def sums_are_compiled(energy: AnyEnergy) -> bool:
    """Whether compiled code enumerates for the :func:`marginals` of such an energy."""
    return isinstance(energy, DirectedEnergy) and directed_enumeration.kernel_for(energy) is not None


@taking_restricted
def log_partition(
    energy: AnyEnergy, *, known: Known | None = None, constraints: Constraints | None = None
) -> Float[Tensor, " batch"]:
    """log Σ_y exp(score(y)), exactly, over the labellings that agree with ``known``; differentiable.

    Args:
        energy: of any kind: at most 22 free labels (of a restricted Boltzmann machine, units of its smaller
            side), a Boltzmann machine or directed model whose graph is close to a tree, a chain, a tree, or a
            directed model of which nothing is known, whose log partition is 0.
        known: see :func:`decode`. For a directed model the result is log P(known).
        constraints: rules that the labellings obey, of at most 22 free labels or a sparse model; see
            :mod:`lmbm_torch.inference.constrained_sums`.

    Raises:
        TypeError: another energy.
        ValueError: see :func:`decode`; an energy for which there is no exact way, whose log partition
            :func:`lmbm_torch.inference.mini_buckets.bounds` has from both sides.
    """
    if constraints is not None:
        return constrained_sums.log_partition(energy, constraints, known=known)
    match energy:
        case ChainEnergy() | TreeEnergy():
            refuse_known(energy, known)
            is_chain = isinstance(energy, ChainEnergy)
            return chain_dp.log_partition(energy) if is_chain else tree_dp.log_partition(energy)
        case DirectedEnergy() if known is None:
            energy.check_values()
            # A sum of nothing, so that a gradient flows, of zero.
            return energy.unary[:, :0].sum(-1)
        case PairwiseEnergy() | CliqueEnergy() | DirectedEnergy():
            is_large = free_units(energy, known) > CUTOFFS.elimination
            if is_large and _is_narrow(energy):
                return junction_tree.log_partition(energy, known=known, max_treewidth=CUTOFFS.treewidth)
            parts = part_by_part.log_partition(energy, log_partition, known=known) if is_large else None
            return exact.log_partition(energy, known=known) if parts is None else parts
        case BaseEnergy():
            return exact.log_partition(energy, known=known)
        case _:
            raise refused(energy, AnyEnergy)


def _decode_allowed(
    energy: Any, constraints: Constraints, known: Tensor | None, top_k: int, node_limit: int | None
) -> Decoding:
    """:func:`decode` under rules: by what looks at them on the way, else around any routine."""
    match energy:
        case DirectedEnergy():
            return decode_network(energy, _score_ways(), known, top_k, node_limit, constraints)
        case PairwiseEnergy() | CliqueEnergy() if top_k == 1 and has_tree(energy, constraints):
            tables = {"constraints": constraints, "max_treewidth": CUTOFFS.treewidth}
            return junction_tree.decode(energy, known=known, **tables)
        case PairwiseEnergy() if top_k == 1 and known is None and _enumerates_by_kernel(energy):
            return allowed.enumerated(energy, constraints)
        case PairwiseEnergy() if top_k == 1:
            return decode_machine(energy, decode, known, node_limit, constraints)
        case _:
            routine = partial(decode, node_limit=node_limit)
            return constrained.decode(energy, constraints, routine, known=known, top_k=top_k)


def _decode_hinge_allowed(
    energy: Any,
    margin: float,
    constraints: Constraints,
    known: Tensor | None,
    top_k: int,
    node_limit: int | None,
) -> Decoding:
    """:func:`decode_hinge` under rules; see :func:`_decode_allowed`."""
    match energy:
        case DirectedEnergy():
            return decode_network(energy, _hinge_ways(margin), known, top_k, node_limit, constraints)
        case PairwiseEnergy() if top_k == 1:
            return decode_machine_hinge(energy, margin, decode_hinge, known, node_limit, constraints)
        case _:
            routine = partial(decode_hinge, margin=margin, node_limit=node_limit)
            return constrained.decode_loss(energy, constraints, routine, known=known, top_k=top_k)


def _score_ways() -> Ways:
    return Ways(branch_and_bound.decode, junction_tree.decode, junction_tree.is_narrow, decode, score_of)


def _hinge_ways(margin: float) -> Ways:
    routines = (branch_and_bound.decode_hinge, junction_tree.decode_hinge, decode_hinge)
    search, tree, routine = (partial(each, margin=margin) for each in routines)
    return Ways(search, tree, junction_tree.is_narrow_for_hinge, routine, partial(hinge_of, margin))


def _most_enumerated(cutoff: int) -> int:
    """The most labels of a Boltzmann machine whose labellings are enumerated to find the best one."""
    is_compiled = compiled("search.undirected", "branch and bound") is not None
    return cutoff if is_compiled else max(cutoff, CUTOFFS.without_numba)


def _enumerates_by_kernel(energy: PairwiseEnergy) -> bool:
    return energy.num_labels <= CUTOFFS.kernel and pairwise_enumeration.suits(energy)


def _is_narrow(energy: SparseEnergy) -> bool:
    return junction_tree.is_narrow(energy, CUTOFFS.treewidth)
