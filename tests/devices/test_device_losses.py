"""Every loss and its gradient with tensors of a device."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from contracts.kinds import BIPARTITE, CHAIN, CLIQUE, DIRECTED, PAIRWISE, Kind, with_tensors
from torch import Tensor

from devices.accelerator import Accelerator, OnDevice, here
from lmbm_torch import losses
from lmbm_torch.inference.relaxations import lp_layer, lp_relaxation
from lmbm_torch.losses import relaxed
from lmbm_torch.losses.bounds import least_threshold, undirected_threshold
from lmbm_torch.losses.contrastive import persistent_contrastive_divergence
from lmbm_torch.losses.relaxed import relaxed_hamming
from lmbm_torch.losses.structured import loss_augment


class Loss(NamedTuple):
    """A loss of energies of one kind.

    Args:
        function: (energy, labels) → one number for each example.
        takes_missing: whether one label may be NaN.
        is_random: its value depends on what is drawn.
    """

    function: Callable[..., Any]
    kind: Kind
    takes_missing: bool = False
    is_random: bool = False


def persistent(energy: Any, labels: Tensor) -> Tensor:
    return persistent_contrastive_divergence(energy, labels, labels.nan_to_num())[0]


def bounds(energy: Any, labels: Tensor) -> Tensor:
    hinge = losses.local_hinge(energy, labels)
    return losses.undirected_log_loss_bound(hinge, energy) + undirected_threshold(energy)


def directed_bounds(energy: Any, labels: Tensor) -> Tensor:
    hinge = losses.local_hinge(energy, labels)
    return losses.log_loss_bound(hinge, energy.num_labels) + least_threshold(energy)


LOSSES = {
    "local_hinge, directed": Loss(losses.local_hinge, DIRECTED, takes_missing=True),
    "local_hinge, pairwise": Loss(losses.local_hinge, PAIRWISE),
    "local_hinge, clique": Loss(losses.local_hinge, CLIQUE),
    "negative_log_likelihood": Loss(losses.negative_log_likelihood, DIRECTED, takes_missing=True),
    "exact_negative_log_likelihood": Loss(losses.exact_negative_log_likelihood, PAIRWISE, takes_missing=True),
    "exact_negative_log_likelihood, bipartite": Loss(
        losses.exact_negative_log_likelihood, BIPARTITE, takes_missing=True
    ),
    "negative_pseudo_likelihood": Loss(losses.negative_pseudo_likelihood, PAIRWISE),
    "negative_pseudo_likelihood, clique": Loss(losses.negative_pseudo_likelihood, CLIQUE),
    "structured_hinge": Loss(losses.structured_hinge, PAIRWISE),
    "structured_hinge, clique": Loss(losses.structured_hinge, CLIQUE),
    "relaxed_structured_hinge": Loss(
        partial(relaxed.relaxed_structured_hinge, inference=lp_relaxation.decode), PAIRWISE
    ),
    "relaxed_hamming": Loss(partial(relaxed_hamming, inference=lp_layer.relaxed_labels), PAIRWISE),
    "relaxed_squared_error": Loss(
        partial(relaxed.relaxed_squared_error, inference=lp_layer.relaxed_labels), PAIRWISE
    ),
    "sparse_map_loss": Loss(relaxed.sparse_map_loss, PAIRWISE),
    "bethe_negative_log_likelihood": Loss(
        losses.bethe_negative_log_likelihood, BIPARTITE, takes_missing=True
    ),
    "mean_field_negative_log_likelihood": Loss(
        losses.mean_field_negative_log_likelihood, BIPARTITE, takes_missing=True
    ),
    "joint_structured_hinge": Loss(losses.joint_structured_hinge, BIPARTITE),
    "marginal_structured_hinge": Loss(losses.marginal_structured_hinge, BIPARTITE),
    "contrastive_divergence": Loss(
        losses.contrastive_divergence, BIPARTITE, takes_missing=True, is_random=True
    ),
    "contrastive_perceptron": Loss(losses.contrastive_perceptron, BIPARTITE, is_random=True),
    "persistent_contrastive_divergence": Loss(persistent, BIPARTITE, takes_missing=True, is_random=True),
    "chain_negative_log_likelihood": Loss(losses.chain_negative_log_likelihood, CHAIN),
    "chain_structured_hinge": Loss(losses.chain_structured_hinge, CHAIN),
    "undirected_log_loss_bound and undirected_threshold": Loss(bounds, PAIRWISE),
    "log_loss_bound and least_threshold": Loss(directed_bounds, DIRECTED),
    "loss_augment": Loss(lambda energy, labels: loss_augment(energy, labels).score(labels), BIPARTITE),
}
OF_NUMBERS = {"error_bound", "generalisation_bound"}


def test_every_loss_is_here():
    named = {word for name in LOSSES for word in name.replace(",", "").split()}
    functions = {name for name in losses.__all__ if inspect.isfunction(getattr(losses, name))}
    assert functions - named == OF_NUMBERS


def labels_of(loss: Loss) -> Tensor:
    energy = loss.kind.plain
    generator = torch.Generator().manual_seed(0)
    shape = energy.batch_size, energy.num_labels
    if loss.kind is CHAIN:
        return torch.randint(0, energy.num_states, shape, generator=generator)
    labels = torch.randint(0, 2, shape, generator=generator).double()
    if loss.takes_missing:
        labels[1, 2] = torch.nan
    return labels


def value_and_gradients(loss: Loss, energy: Any, labels: Tensor) -> list[Tensor]:
    """The losses, and their sum's gradients for every tensor of numbers."""
    leaves: list[Tensor] = []

    def leaf(name: str, tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point():
            return tensor
        leaves.append(tensor.detach().requires_grad_())
        return leaves[-1]

    found = loss.function(with_tensors(energy, leaf), labels)
    gradients = torch.autograd.grad(found.sum(), leaves, materialize_grads=True)
    return [found.detach(), *gradients]


# cvxpylayers reads tensors as NumPy 1 did.
@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")
@pytest.mark.parametrize("name", LOSSES)
def test_losses_and_their_gradients(name):
    loss = LOSSES[name]
    energy, labels = replace(loss.kind.plain), labels_of(loss)
    with Accelerator() as gpu:
        came = value_and_gradients(loss, gpu.put(energy), gpu.put(labels))
    assert gpu.violations == []
    assert all(isinstance(tensor, OnDevice) for tensor in came)
    if not loss.is_random:
        atol = 1e-5 if "relaxed" in name else 1e-6
        for tensor, expected in zip(here(came), value_and_gradients(loss, energy, labels), strict=True):
            torch.testing.assert_close(tensor, expected, rtol=1e-6, atol=atol)
