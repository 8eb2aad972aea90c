"""Missing labels in losses: a missing label has no loss, and as a parent it has a predicted value."""

from __future__ import annotations

import torch
from torch import Tensor

from lmbm_torch.checks import are_transformed, check_device, check_labels, check_shape
from lmbm_torch.energies.base import Energy, MarginEnergy, check_energy
from lmbm_torch.energies.clique import CliqueEnergy
from lmbm_torch.energies.directed import DirectedEnergy
from lmbm_torch.energies.pairwise import PairwiseEnergy
from lmbm_torch.inference import decode
from lmbm_torch.inference.search import beam_search
from lmbm_torch.shapes import Bool, Shaped
from lmbm_torch.verdicts import foresee, is_traced, number

# Largest number of search nodes for completing labels: a likely labelling is enough, without a proof.
COMPLETION_NODES = 1000


def impute(
    energy: MarginEnergy, labels: Shaped[Tensor, "batch labels"]
) -> tuple[Shaped[Tensor, "batch labels"], Bool[Tensor, "batch labels"]]:
    """Return labels with every NaN replaced by the model's prediction, and a mask of the observed labels.

    The prediction is greedy: labels are visited in topological order, and each missing label gets the sign
    of the local field given the observed and imputed labels before (1 for a field of 0). No gradient flows
    through the prediction. A Boltzmann machine has no topological order and needs complete labels. Within
    the transforms of torch.func no value can be read or checked: NaN stays NaN.

    Raises:
        ValueError: ``labels`` have another shape than (batch, labels), or values other than 0 and 1 (and NaN
            for a belief network); ``energy.check_values`` refuses the energy.
    """
    if are_unreadable(energy, labels):
        return labels, torch.ones_like(labels, dtype=torch.bool)
    energy.check_values()
    if not isinstance(energy, DirectedEnergy):
        check_complete(energy, labels)
        return labels, torch.ones_like(labels, dtype=torch.bool)
    if any_missing(energy, labels):
        return beam_search.decode_hinge(energy, known=labels).labels, ~labels.isnan()
    return labels, torch.ones_like(labels, dtype=torch.bool)


def completed(
    energy: DirectedEnergy | PairwiseEnergy | CliqueEnergy, labels: Shaped[Tensor, "batch labels"]
) -> tuple[Shaped[Tensor, "batch labels"], Bool[Tensor, "batch labels"]]:
    """Complete labels by :func:`impute`, or for a Boltzmann machine by decoding given the observed labels.

    Raises:
        ValueError: ``labels`` have another shape than (batch, labels), or values other than 0, 1 and NaN;
            ``energy.check_values`` refuses the energy.
    """
    if isinstance(energy, DirectedEnergy) or not any_missing(energy, labels):
        return impute(energy, labels)
    observed = ~labels.isnan()
    (rows,) = (~observed).any(1).nonzero(as_tuple=True)
    incomplete = energy.select(rows)
    found = decode(incomplete, known=labels[rows], node_limit=COMPLETION_NODES)
    return labels.index_put((rows,), found.labels.to(labels)), observed


def are_unreadable(energy: Energy, labels: Shaped[Tensor, "batch labels"]) -> bool:
    """Return whether a transform of torch.func hides the labels' values; then only the shape is checked.

    Raises:
        ValueError: within a transform, labels have another shape than (batch, labels).
    """
    if not are_transformed():
        return False
    check_shape("labels", labels, energy.batch_size, energy.num_labels)
    return True


def any_missing(energy: Energy, labels: Shaped[Tensor, "batch labels"]) -> bool:
    """Return whether any label (of a bipartite energy: visible unit) is NaN.

    In code compiled by torch.compile the result is always False, since NaN is refused there.

    Raises:
        ValueError: see :func:`check_observed`.
    """
    check_observed(energy, labels)
    if is_traced():
        return False
    return bool(number("missing labels", (labels,), lambda: labels.isnan().any()))


def check_observed(energy: Energy, labels: Shaped[Tensor, "batch labels"]) -> None:
    """Raise ValueError unless every label is 0, 1 or NaN; in compiled code, unless every label is 0 or 1."""
    if is_traced():
        _check(energy, labels)
        return
    _check(energy, labels, allow_missing=True)
    foresee("missing labels", (labels,), lambda: labels.isnan().any())


def check_complete(energy: Energy, labels: Shaped[Tensor, "batch labels"]) -> None:
    """Raise ValueError unless every label is 0 or 1; labels of a bipartite energy are the visible units."""
    check_energy(energy)
    _check(energy, labels)


def _check(energy: Energy, labels: Tensor, *, allow_missing: bool = False) -> None:
    check_shape("labels", labels, energy.batch_size, energy.num_labels)
    check_device("labels", labels, energy.device)
    check_labels("labels", labels, allow_missing=allow_missing)
