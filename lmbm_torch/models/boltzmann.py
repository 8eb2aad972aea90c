"""Boltzmann machines over labels, conditioned on features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lmbm_torch.checks import check_counts
from lmbm_torch.energies import CliqueEnergy, PairwiseEnergy, TiedCliques
from lmbm_torch.energies.indices import constant
from lmbm_torch.models.base import Model
from lmbm_torch.shapes import Bool, Float


class BoltzmannMachine(Model):
    """A Boltzmann machine (BM) with weights linear in the features, x → energy.

    The energy is a :class:`~lmbm_torch.energies.PairwiseEnergy`, or a ``CliqueEnergy`` for larger cliques.
    With spins s = 2y − 1 and f = encoder(x), the score is linear in the parameters,

        score(y) = Σ_i s_i (⟨feature_weight_i, f⟩ + bias_i) + Σ_c clique_weight_{g(c)} f_c Π_{i ∈ c} s_i

    where f_c is 1 or the feature of the clique (large_margin_boltzmann_machines_2009, Equation 1, given X).
    All weights start at zero: without a trained encoder, large-margin and likelihood training are convex.

    Args:
        num_features: the number of features that the encoder returns; 0 for a model without input, where
            ``x`` is ``(batch, 0)``.
        num_labels: the number of labels.
        cliques: ``"pairwise"`` couples every two labels; or sets of labels, of any size; or
            :class:`~lmbm_torch.energies.TiedCliques`, as Markov logic networks need.
        groups: for sets of labels, the number of each set's weight: 0, 1, … without gaps; by default one
            weight per set.
        clique_features: for sets of labels, the number of the feature that multiplies each set, or None (the
            default). With a feature the coupling depends on x.
        bias: False for a machine with only cliques, like a Markov logic network.
        encoder: maps inputs to features, ``(batch, features)``; the identity by default.

    Raises:
        ValueError: there is no label; the number of features is negative; a clique has an unknown feature;
            :class:`~lmbm_torch.energies.TiedCliques` refuses the cliques.

    Examples:
        >>> import torch
        >>> from lmbm_torch.models import BoltzmannMachine
        >>> model = BoltzmannMachine(num_features=4, num_labels=3)
        >>> model(torch.zeros(2, 4)).score(torch.ones(2, 3))
        tensor([0., 0.], grad_fn=<AddBackward0>)
    """

    HEAD = ("feature_weight", "bias", "clique_weight")
    bias: nn.Parameter | None
    groups: Tensor
    places: Tensor

    def __init__(
        self,
        num_features: int,
        num_labels: int,
        cliques: TiedCliques | Sequence[Sequence[int]] | str = "pairwise",
        groups: Sequence[int] | None = None,
        clique_features: Sequence[int | None] | None = None,
        bias: bool = True,
        encoder: nn.Module | None = None,
    ) -> None:
        super().__init__(num_features, num_labels, encoder)
        if num_features != 0:
            check_counts(num_features=num_features)
        self.cliques = TiedCliques.of(num_labels, cliques, groups, clique_features)
        if max((column for column in self.cliques.columns if column is not None), default=-1) >= num_features:
            raise ValueError(
                f"clique_features: expected features below {num_features}, got {self.cliques.columns}"
            )
        self.feature_weight = nn.Parameter(torch.zeros(num_labels, num_features))
        self.register_parameter("bias", nn.Parameter(torch.zeros(num_labels)) if bias else None)
        self.clique_weight = nn.Parameter(torch.zeros(self.cliques.num_weights))
        self.register_buffer("groups", torch.tensor(self.cliques.groups, dtype=torch.int64), persistent=False)
        # Indices of cliques of at most two labels in a flat (labels, labels) matrix; single labels are on the
        # diagonal.
        places = [clique[0] * num_labels + clique[-1] for clique in self.cliques.cliques]
        self.register_buffer("places", torch.tensor(places, dtype=torch.int64), persistent=False)

    def energy(self, features: Tensor) -> PairwiseEnergy | CliqueEnergy:
        """Return the energy for the encoder's features."""
        unary = features @ self.feature_weight.mT
        if self.bias is not None:
            unary = unary + self.bias
        potentials = self.clique_weight[self.groups] * self._held(features)
        if self.cliques.largest > 2:
            singles = tuple((label,) for label in range(self.num_labels))
            weight = torch.cat([unary, potentials.expand(len(unary), -1)], 1)
            return CliqueEnergy(singles + self.cliques.cliques, weight, num_labels=self.num_labels)
        size = self.num_labels
        square = potentials.new_zeros(*potentials.shape[:-1], size * size)
        square = square.index_add(-1, self.places, potentials).unflatten(-1, (size, size))
        singles = square.diagonal(dim1=-2, dim2=-1)
        couplings = square - torch.diag_embed(singles)
        return PairwiseEnergy(unary + singles, couplings + couplings.mT)

    def _held(self, features: Tensor) -> Tensor:
        """Return the factor of each clique's product of spins, (cliques,) or (batch, cliques)."""
        like = self.clique_weight
        held = constant(self.cliques.coefficients, like.dtype, like.device)
        if all(column is None for column in self.cliques.columns):
            return held
        numbers = tuple(-1 if column is None else column for column in self.cliques.columns)
        columns = constant(numbers, torch.int64, like.device)
        # Select columns by a matrix product, which works for dense and for CSR features.
        pick = torch.arange(self.feature_weight.shape[1], device=like.device)[:, None] == columns
        return held * (features @ pick.to(like.dtype) + (columns < 0).to(like.dtype))

    def weights(self) -> Float[Tensor, " weights"]:
        """Return the regularised weights as one flat vector, the bias included as in the paper."""
        return self.flat()

    def couples(self) -> Bool[Tensor, " weights"]:
        """Return a mask of :meth:`weights`: True for weights of cliques of two or more labels."""
        cliques = constant(tuple(self.cliques.couples.tolist()), torch.bool, self.clique_weight.device)
        return torch.cat([cliques.new_zeros(len(self.weights()) - len(cliques)), cliques])

    def arguments(self) -> dict[str, Any]:
        """Return the constructor's arguments, except for the encoder."""
        sizes = {"num_features": self.num_features, "num_labels": self.num_labels}
        return {**sizes, "cliques": self.cliques, "bias": self.bias is not None}

    def assign(self, feature_weight: Tensor, bias: Tensor | None, clique_weight: Tensor) -> None:
        """Copy the weights of a dual solver, in the dtype and on the device of the module.

        Either all weights are copied or, if a weight is refused, none.

        Raises:
            ValueError: a weight has another shape than its parameter, or NaN or infinity; a bias is given for
                a machine without a bias, or no bias for another machine.
        """
        self.take(feature_weight, bias, clique_weight)
