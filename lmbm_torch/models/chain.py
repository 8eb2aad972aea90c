"""Linear chains: conditional random fields, max-margin Markov networks and maximum-entropy Markov models."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import ArrayLike
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
        self,
        x: Tensor,
        lengths: Int[Tensor, " batch"] | ArrayLike | None = None,
        max_length: int | None = None,
    ) -> ChainEnergy:
        """Return the energy of a batch.

        Args:
            x: input of the encoder, with features ``(batch, length, features)`` including padding, or the
                features of all chains' positions one after another, ``(positions, features)``, dense or CSR.
            lengths: positions of each chain, whole numbers; the full length of padded features if not given.
            max_length: of positions one after another, the length to pad to; by default the length of the
                longest chain, for which the host waits for a GPU.
        """
        return self.energy(self.encoder(x), lengths, max_length)

    def energy(
        self,
        features: Tensor,
        lengths: Int[Tensor, " batch"] | ArrayLike | None = None,
        max_length: int | None = None,
    ) -> ChainEnergy:
        """Return the energy for the encoder's features.

        Raises:
            ValueError: features of another width, or lengths that do not fit the features.
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
        """Return the regularised weights as one flat vector, the bias included."""
        return self.flat()

    def arguments(self) -> dict[str, Any]:
        """Return the constructor's arguments, except for the encoder."""
        sizes = {"num_features": self.num_features, "num_states": self.num_states}
        return {**sizes, "conditional_transitions": self.transition_feature_weight is not None}


class LinearChain(_Chain):
    """A linear-chain conditional random field or max-margin Markov network, x → chain energy.

    The score of the :class:`~lmbm_torch.energies.ChainEnergy` is linear in the parameters. With f_t =
    encoder(x)_t,

        score(y) = Σ_t ⟨feature_weight_{y_t}, f_t⟩ + bias_{y_t} + Σ_{t ≥ 1} transition_{y_{t−1}, y_t}

    and, for conditional transitions, + Σ_{t ≥ 1} ⟨transition_feature_weight_{y_{t−1}, y_t}, f_t⟩
    (max_margin_markov_networks_survey_2003, Equations 9 to 12). All weights start at zero: without a trained
    encoder, large-margin and likelihood training are convex. Chains of one position are a multi-class model.

    Args:
        num_features: width of a position's features, behind the encoder.
        num_states: S.
        conditional_transitions: transitions depend on the features of the second position.
        encoder: maps inputs to features; the identity by default.

    Raises:
        ValueError: counts below one.

    Examples:
        >>> import torch
        >>> from lmbm_torch.models import LinearChain
        >>> energy = LinearChain(num_features=4, num_states=3)(torch.zeros(2, 5, 4))
        >>> energy.max_length, energy.num_states
        (5, 3)
    """

    def sufficient_statistics(
        self,
        x: Tensor,
        labels: Int[Tensor, "batch length"],
        lengths: Int[Tensor, " batch"] | ArrayLike | None = None,
    ) -> Float[Tensor, "batch weights"]:
        """Return F(x, y) with ⟨weights(), F(x, y)⟩ = score(y) (survey, Equation 11), always dense.

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
        """Sum the rows of each chain by label: (batch, *states, columns)."""
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
        """Copy the weights of a solver, in the dtype and on the device of the module.

        Either all weights are copied or, if a weight is refused, none.

        Raises:
            ValueError: shapes other than the parameters', NaN or infinity, conditional transitions for a
                model without conditional transitions, or none for another model.
        """
        if (transition_feature_weight is None) != (self.transition_feature_weight is None):
            raise ValueError(
                "transition_feature_weight: expected exactly where transitions are conditional, "
                f"got {None if transition_feature_weight is None else tuple(transition_feature_weight.shape)}"
            )
        self.take(feature_weight, bias, transition, transition_feature_weight)


class MaximumEntropyMarkov(_Chain):
    """A maximum-entropy Markov model, x → chain energy with score log P(y | x); the baseline before CRFs.

    Each label is a logistic regression on the features and the previous label
    (:meth:`ChainEnergy.locally_normalised`). The log partition is 0, and −score is the training loss, convex
    without a trained encoder. The weights are the weights of :class:`LinearChain`.

    Args:
        num_features: as in :class:`LinearChain`, like every other argument.

    Examples:
        >>> import torch
        >>> from lmbm_torch.models import MaximumEntropyMarkov
        >>> energy = MaximumEntropyMarkov(num_features=4, num_states=2)(torch.zeros(1, 3, 4))
        >>> energy.score(torch.tensor([[0, 1, 1]])).exp().item()
        0.125
    """

    def energy(
        self,
        features: Tensor,
        lengths: Int[Tensor, " batch"] | ArrayLike | None = None,
        max_length: int | None = None,
    ) -> ChainEnergy:
        """Return the energy for the encoder's features."""
        return super().energy(features, lengths, max_length).locally_normalised()
