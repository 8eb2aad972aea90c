"""Linear chains: conditional random fields, max-margin Markov networks and maximum-entropy Markov models."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lmbm_torch.checks import check_counts
from lmbm_torch.energies import ChainEnergy
from lmbm_torch.models.base import StoredModule
from lmbm_torch.models.sequences import at_positions, positions, rows_of, spread
from lmbm_torch.shapes import Bool, Float, Int


class _Chain(StoredModule):
    """The parameters and the linear energy of chains; for arguments see :class:`LinearChain`."""

    HEAD = ("feature_weight", "bias", "transition", "transition_feature_weight")
    transition_feature_weight: nn.Parameter | None

    def __init__(
        self,
        num_features: int,
        num_states: int,
        conditional_transitions: bool = False,
        encoder: nn.Module | None = None,
    ) -> None:
        super().__init__()
        check_counts(num_features=num_features, num_states=num_states)
        self.num_features = num_features
        self.num_states = num_states
        self.encoder = nn.Identity() if encoder is None else encoder
        self.feature_weight = nn.Parameter(torch.zeros(num_states, num_features))
        self.bias = nn.Parameter(torch.zeros(num_states))
        self.transition = nn.Parameter(torch.zeros(num_states, num_states))
        conditional = nn.Parameter(torch.zeros(num_states, num_states, num_features))
        self.register_parameter("transition_feature_weight", conditional if conditional_transitions else None)

    def forward(
        self, x: Tensor, lengths: Int[Tensor, " batch"] | None = None, max_length: int | None = None
    ) -> ChainEnergy:
        """The energy of a batch.

        Args:
            x: whatever the encoder takes to make features ``(batch, length, features)`` with padding, or
                those of all chains' positions one after another, ``(positions, features)``, dense or CSR.
            lengths: positions of each chain, int64; those of padded features are all the same if not given.
            max_length: of positions one after another, the length to pad to; by default that of the longest
                chain, for which the host waits for a device.
        """
        return self.energy(self.encoder(x), lengths, max_length)

    def energy(
        self, features: Tensor, lengths: Int[Tensor, " batch"] | None = None, max_length: int | None = None
    ) -> ChainEnergy:
        """The energy for the encoder's features.

        Raises:
            ValueError: features of another width, or lengths that do not fit them.
        """
        inside = positions(features, lengths, self.num_features, max_length)
        unary = at_positions(features, inside, lambda rows: rows @ self.feature_weight.mT + self.bias)
        conditional = self.transition_feature_weight
        if conditional is None:
            return ChainEnergy(unary, self.transition, inside.sum(1))
        steps = at_positions(features, inside, lambda rows: rows @ conditional.flatten(0, 1).mT)
        steps = steps.unflatten(-1, self.transition.shape)[:, 1:]
        return ChainEnergy(unary, self.transition + steps, inside.sum(1))

    def weights(self) -> Float[Tensor, " weights"]:
        """The head's weights as one flat vector: what is regularised, the bias too."""
        return self.flat()

    def arguments(self) -> dict[str, Any]:
        """The constructor's arguments, except for the encoder."""
        sizes = {"num_features": self.num_features, "num_states": self.num_states}
        return {**sizes, "conditional_transitions": self.transition_feature_weight is not None}


class LinearChain(_Chain):
    """x → :class:`~lmbm_torch.energies.ChainEnergy`, whose score is linear in the parameters.

    With f_t = encoder(x)_t,

        score(y) = Σ_t ⟨feature_weight_{y_t}, f_t⟩ + bias_{y_t} + Σ_{t ≥ 1} transition_{y_{t−1}, y_t}

    and, where transitions are conditional, + Σ_{t ≥ 1} ⟨transition_feature_weight_{y_{t−1}, y_t}, f_t⟩
    (max_margin_markov_networks_survey_2003, Equations 9 to 12). All weights start at zero: without an encoder
    to learn, large-margin and likelihood training are convex. Chains of one position are a multi-class model.

    Args:
        num_features: width of a position's features, behind the encoder.
        num_states: S.
        conditional_transitions: transitions depend on the features of the position that they lead to.
        encoder: maps inputs to features; the identity by default.

    Raises:
        ValueError: counts below one.
    """

    def sufficient_statistics(
        self, x: Tensor, labels: Int[Tensor, "batch length"], lengths: Int[Tensor, " batch"] | None = None
    ) -> Float[Tensor, "batch weights"]:
        """F(x, y) with ⟨weights(), F(x, y)⟩ = score(y) (survey, Equation 11); always dense.

        Args:
            x, lengths: see :meth:`forward`.
            labels: class indices; padding never matters.
        """
        features = self.encoder(x)
        inside = positions(features, lengths, self.num_features)
        rows = rows_of(features, inside).to_dense()
        ones = rows.new_ones(len(rows), 1)
        steps = inside[:, 1:]
        into = spread(rows, inside)[:, 1:][steps]
        pairs = labels[:, :-1], labels[:, 1:]
        parts = [(rows, (labels,), inside), (ones, (labels,), inside), (ones[: len(into)], pairs, steps)]
        if self.transition_feature_weight is not None:
            parts.append((into, pairs, steps))
        return torch.cat([self._sums(*part).flatten(1) for part in parts], 1)

    def _sums(self, rows: Tensor, labels: tuple[Tensor, ...], inside: Bool[Tensor, "batch _"]) -> Tensor:
        """The rows of each chain, summed by the labels that they go with: (batch, *states, columns)."""
        example = inside.nonzero()[:, 0]
        sums = rows.new_zeros(len(inside), *[self.num_states] * len(labels), rows.shape[1])
        return sums.index_put((example, *(of[inside] for of in labels)), rows, accumulate=True)

    def assign(
        self,
        feature_weight: Tensor,
        bias: Tensor,
        transition: Tensor,
        transition_feature_weight: Tensor | None = None,
    ) -> None:
        """Take over weights that a solver has found, in this module's own dtype and on its device.

        All of them or, where one is refused, none.

        Raises:
            ValueError: shapes that are not the parameters', NaN or infinity, conditional transitions for a
                model without them, or none for one with.
        """
        if (transition_feature_weight is None) != (self.transition_feature_weight is None):
            raise ValueError(
                "transition_feature_weight: expected exactly where transitions are conditional, "
                f"got {None if transition_feature_weight is None else tuple(transition_feature_weight.shape)}"
            )
        self.take(feature_weight, bias, transition, transition_feature_weight)


class MaximumEntropyMarkov(_Chain):
    """x → :class:`~lmbm_torch.energies.ChainEnergy` whose score is log P(y | x): the baseline before CRFs.

    Each label is a logistic regression on its features and the label before it
    (:meth:`ChainEnergy.locally_normalised`), so that the log partition is 0 and −score is the loss to train
    by, convex without an encoder to learn. The weights are those of :class:`LinearChain`.

    Args:
        num_features: same as in :class:`LinearChain`, like every other argument.
    """

    def energy(
        self, features: Tensor, lengths: Int[Tensor, " batch"] | None = None, max_length: int | None = None
    ) -> ChainEnergy:
        """The energy for the encoder's features."""
        return super().energy(features, lengths, max_length).locally_normalised()
