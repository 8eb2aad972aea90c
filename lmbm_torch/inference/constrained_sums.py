"""Sums over the labellings that obey hard constraints: log partitions, marginals and samples, all exact.

Energies restricted by rules are enumerated (:mod:`~lmbm_torch.inference.exact`) up to 22 free labels. Sparse
Boltzmann machines and directed models of few parents take a junction tree with the rules in it
(:mod:`~lmbm_torch.inference.junction_tree`) wherever that is narrow, and beyond 22 labels whatever its width
that fits into memory. Where neither is small, the parts of a model that neither couplings nor rules connect
are summed one by one. What is left is refused.

A directed model is normalised over all labellings: its log partition here is log P(allowed), so that
log P(y | allowed) = log P(y) − log P(allowed).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeGuard

import torch
from torch import Tensor

from lmbm_torch.constraints import Constraints
from lmbm_torch.energies import CliqueEnergy, DirectedEnergy, Energy, PairwiseEnergy
from lmbm_torch.inference import exact, junction_tree
from lmbm_torch.inference.constrained import restricted
from lmbm_torch.inference.junction_tree import SparseEnergy
from lmbm_torch.inference.parts import part_by_part
from lmbm_torch.inference.parts.allowed import check_rules
from lmbm_torch.inference.parts.cutoffs import CUTOFFS
from lmbm_torch.inference.parts.free_labels import MAX_FREE_LABELS, num_free
from lmbm_torch.inference.results import Marginals
from lmbm_torch.shapes import Float, Int, Known

__all__ = ["log_partition", "marginals", "sample"]


def log_partition(
    energy: Energy, constraints: Constraints, *, known: Known | None = None
) -> Float[Tensor, " batch"]:
    """log Σ_y exp(score(y)) over the labellings that obey all rules and agree with ``known``; differentiable.

    Args:
        energy: over labels in {0, 1}: with at most 22 free ones, or a sparse Boltzmann machine or directed
            model. Hidden units are summed out.
        constraints: over the energy's labels.
        known: {0, 1, NaN}, NaN for a free label.

    Raises:
        TypeError: an energy over labels of several values; anything but constraints for such.
        ValueError: an energy that is not finite, or that is neither enumerated nor narrow enough; constraints
            of another number of labels, or that contradict what is known; ``known`` of another shape or with
            other values.
    """
    is_large = _is_large(energy, constraints, known)
    if is_large and _is_narrow(energy, constraints):
        return junction_tree.log_partition(energy, known=known, constraints=constraints)
    if is_large:
        again = partial(_of_part, log_partition)
        parts = part_by_part.log_partition(energy, again, known=known, constraints=constraints)
        if parts is not None:
            return parts
    if is_large and num_free(energy, known) > MAX_FREE_LABELS:
        return junction_tree.log_partition(energy, known=known, constraints=constraints)
    return _enumerated(exact.log_partition, energy, constraints, known)


def marginals(energy: Energy, constraints: Constraints, *, known: Known | None = None) -> Marginals:
    """P(y_i = 1) of the distribution over the allowed labellings, given the ``known`` labels.

    Args:
        energy, constraints, known: see :func:`log_partition`.

    Returns:
        Also the log partition, and by which ``method``.

    Raises:
        TypeError, ValueError: see :func:`log_partition`.
    """
    is_large = _is_large(energy, constraints, known)
    is_narrow = is_large and _is_narrow(energy, constraints)
    if is_large and not is_narrow:
        again = partial(_of_part, marginals)
        parts = part_by_part.marginals(energy, again, known=known, constraints=constraints)
        if parts is not None:
            return parts
    if is_large and (is_narrow or num_free(energy, known) > MAX_FREE_LABELS):
        found = junction_tree.marginals(energy, known=known, constraints=constraints)
        return replace(found, method="exact, by a junction tree")
    found = _enumerated(exact.marginals, energy, constraints, known)
    return replace(found, method="exact, by enumeration")


def sample(
    energy: Energy,
    constraints: Constraints,
    num_samples: int,
    *,
    known: Known | None = None,
    generator: torch.Generator | None = None,
) -> Int[Tensor, "num_samples batch labels"]:
    """Independent draws from the distribution over the allowed labellings, given the ``known`` labels.

    Args:
        energy, constraints, known: see :func:`log_partition`.
        num_samples: draws for each example.
        generator: the source of randomness, on the energy's device; by default torch's own.

    Raises:
        TypeError: see :func:`log_partition`.
        ValueError: see :func:`log_partition`; fewer than 1 sample.
    """
    given = {"known": known, "generator": generator}
    is_large = _is_large(energy, constraints, known)
    is_narrow = is_large and _is_narrow(energy, constraints)
    if is_large and not is_narrow:
        again = partial(_of_part, sample, num_samples=num_samples, generator=generator)
        parts = part_by_part.sample(energy, again, known=known, constraints=constraints)
        if parts is not None:
            return parts
    if is_large and (is_narrow or num_free(energy, known) > MAX_FREE_LABELS):
        return junction_tree.sample(energy, num_samples, constraints=constraints, **given)
    routine = partial(exact.sample, num_samples=num_samples, generator=generator)
    return _enumerated(routine, energy, constraints, known)


def _is_large(energy: Any, constraints: Constraints, known: Tensor | None) -> TypeGuard[SparseEnergy]:
    """Whether there may be a better way than enumeration."""
    if not isinstance(energy, PairwiseEnergy | CliqueEnergy | DirectedEnergy):
        return False
    check_rules(energy, constraints, known)
    return num_free(energy, known) > CUTOFFS.elimination


def _is_narrow(energy: Any, constraints: Constraints) -> bool:
    """Whether a junction tree is the best way."""
    return junction_tree.is_narrow(energy, CUTOFFS.treewidth, constraints=constraints)


def _of_part(
    routine: Callable[..., Any], energy: Any, *, constraints: Constraints | None, **given: Any
) -> Any:
    """What a routine says of a part that may have no rules."""
    if constraints is None:
        constraints = Constraints((), tuple(map(str, range(energy.num_labels))))
    return routine(energy, constraints, **given)


def _enumerated(
    routine: Callable[..., Any], energy: Any, constraints: Constraints, known: Tensor | None
) -> Any:
    """What a routine says of the allowed labellings; refuses known labels by rules that contradict them."""
    possible = restricted(energy, constraints, known=known)
    try:
        return routine(possible, known=known)
    except ValueError:
        for row, labels in enumerate([] if known is None else known.cpu().numpy()):
            constraints.check(labels, f"known[{row}]")
        raise
