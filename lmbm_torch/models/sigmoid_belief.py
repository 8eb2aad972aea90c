"""Sigmoid belief networks over labels, conditioned on features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lmbm_torch.checks import check_counts, check_permutation, check_shape
from lmbm_torch.energies import DirectedEnergy
from lmbm_torch.energies.base import cliques_up_to
from lmbm_torch.models.base import Model
from lmbm_torch.shapes import Bool, Float


class SigmoidBeliefNetwork(Model):
    """A sigmoid belief network (SBN), x → :class:`~lmbm_torch.energies.DirectedEnergy`.

    Each label depends on the features and on the labels that precede it in the ordering. The local fields are
    linear in the parameters: z_i = ⟨feature_weight_i, encoder(x)⟩ + bias_i + Σ_j parent_weight_ij s_j + Σ_c
    clique_weight_c Π s (lmbm_and_lmsbn_2010, Definition 2). All weights start at zero: without a trained
    encoder, training is convex.

    Args:
        num_features: the number of features that the encoder returns.
        num_labels: the number of labels.
        ordering: the label at each position; index order by default.
        degree: the size of the largest cliques of labels: 1 makes the labels independent, 2 gives each label
            all earlier labels as parents, 3 adds every set of three labels, and so on.
        encoder: maps inputs to features, ``(batch, features)``; the identity by default.

    Raises:
        ValueError: a number is below one, or the ordering is no permutation.

    Examples:
        >>> import torch
        >>> from lmbm_torch.models import SigmoidBeliefNetwork
        >>> model = SigmoidBeliefNetwork(num_features=4, num_labels=3)
        >>> model(torch.zeros(1, 4)).log_prob(torch.ones(1, 3)).exp().item()
        0.125
    """

    HEAD = ("feature_weight", "bias", "parent_weight", "clique_weight")
    ordering: Tensor
    allowed_parents: Tensor

    def __init__(
        self,
        num_features: int,
        num_labels: int,
        ordering: Sequence[int] | Tensor | None = None,
        degree: int = 2,
        encoder: nn.Module | None = None,
    ) -> None:
        super().__init__(num_features, num_labels, encoder)
        check_counts(num_features=num_features, num_labels=num_labels, degree=degree)
        check_permutation("ordering", range(num_labels) if ordering is None else ordering, num_labels)
        order = torch.arange(num_labels) if ordering is None else torch.as_tensor(ordering, dtype=torch.int64)
        self.degree = degree
        self.cliques = cliques_up_to(num_labels, degree)
        self.register_buffer("ordering", order)
        self.register_buffer("allowed_parents", _allowed_parents(order, degree))
        self.feature_weight = nn.Parameter(torch.zeros(num_labels, num_features))
        self.bias = nn.Parameter(torch.zeros(num_labels))
        self.parent_weight = nn.Parameter(torch.zeros(num_labels, num_labels))
        self.clique_weight = nn.Parameter(torch.zeros(len(self.cliques)))

    def in_order(self, ordering: Sequence[int] | np.ndarray) -> SigmoidBeliefNetwork:
        """Return a belief network with another ordering, zero weights and the same encoder.

        A copy takes a fifth of the time of the constructor.

        Raises:
            ValueError: the ordering is no permutation.
        """
        check_permutation("ordering", ordering, self.num_labels)
        order = torch.tensor(np.asarray(ordering), dtype=torch.int64, device=self.ordering.device)
        other = type(self).__new__(type(self))
        # Copy the module's dictionaries, which hold all of the module's state.
        vars(other).update(
            (name, each.copy() if isinstance(each, dict | set) else each) for name, each in vars(self).items()
        )
        for name, weight in self._parameters.items():
            other._parameters[name] = None if weight is None else nn.Parameter(torch.zeros_like(weight))
        other._buffers["ordering"] = order
        other._buffers["allowed_parents"] = _allowed_parents(order, self.degree)
        return other

    def energy(self, features: Tensor) -> DirectedEnergy:
        """Return the energy for the encoder's features."""
        return DirectedEnergy(
            unary=features @ self.feature_weight.mT + self.bias,
            parents=self.parent_weight * self.allowed_parents,
            ordering=self.ordering,
            cliques=self.cliques,
            clique_weight=self.clique_weight if self.cliques else None,
        )

    def weights(self) -> Float[Tensor, " weights"]:
        """Return the regularised weights as one flat vector, the bias included as in the papers."""
        parents = self.parent_weight * self.allowed_parents
        parts = (self.feature_weight, self.bias, parents, self.clique_weight)
        return torch.cat([part.flatten() for part in parts])

    def couples(self) -> Bool[Tensor, " weights"]:
        """Return a mask of :meth:`weights`: True for the weights of parents and cliques."""
        alone = self.feature_weight.numel() + self.bias.numel()
        return torch.arange(len(self.weights()), device=self.bias.device) >= alone

    def arguments(self) -> dict[str, Any]:
        """Return the constructor's arguments, except for the encoder."""
        sizes = {"num_features": self.num_features, "num_labels": self.num_labels, "degree": self.degree}
        return {**sizes, "ordering": self.ordering.tolist()}

    def assign(
        self, feature_weight: Tensor, bias: Tensor, parent_weight: Tensor, clique_weight: Tensor | None = None
    ) -> None:
        """Copy the weights of a dual solver, in the dtype and on the device of the module.

        Either all weights are copied or, if a weight is refused, none.

        Raises:
            ValueError: a weight has another shape than its parameter, or NaN or infinity; a label that is no
                parent has a weight; ``clique_weight`` is missing although there are cliques.
        """
        if clique_weight is None:
            clique_weight = self.clique_weight.new_empty(0)
        check_shape("parent_weight", parent_weight, *self.allowed_parents.shape)
        # Compare whole matrices: with thousands of labels, indices would take more memory than all weights.
        if bool(((parent_weight != 0) & ~self.allowed_parents.to(parent_weight.device)).any()):
            raise ValueError("parent_weight: expected 0 for labels that are no parents, got other numbers")
        self.take(feature_weight, bias, parent_weight, clique_weight)


def _allowed_parents(ordering: Tensor, degree: int) -> Bool[Tensor, "labels labels"]:
    """Return a mask of the labels that may be parents: all earlier labels, or none if the degree is 1."""
    if ordering.is_meta:
        # Return only the shape: operations on "meta" would import torch's compiler, which takes long.
        return torch.empty(len(ordering), len(ordering), dtype=torch.bool, device="meta")
    position = torch.argsort(ordering)
    return (position[None, :] < position[:, None]) & (degree > 1)
