"""Linear chains: conditional random fields, max-margin Markov networks and maximum-entropy Markov models."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lmbm_torch.checks import check_count, check_finite, check_shape
from lmbm_torch.energies import ChainEnergy
from lmbm_torch.models.base import StoredModule
from lmbm_torch.models.sequences import positions, rows_of, spread
from lmbm_torch.shapes import Bool, Float, Int


class LinearChain(StoredModule):
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

    transition_feature_weight: nn.Parameter | None

    def __init__(
        self,
        num_features: int,
        num_states: int,
        conditional_transitions: bool = False,
        encoder: nn.Module | None = None,
    ) -> None:
        super().__init__()
        check_count("num_features", num_features)
        check_count("num_states", num_states)
        self.num_features = num_features
        self.num_states = num_states
        self.encoder = nn.Identity() if encoder is None else encoder
        self.feature_weight = nn.Parameter(torch.zeros(num_states, num_features))
        self.bias = nn.Parameter(torch.zeros(num_states))
        self.transition = nn.Parameter(torch.zeros(num_states, num_states))
        conditional = nn.Parameter(torch.zeros(num_states, num_states, num_features))
        self.register_parameter("transition_feature_weight", conditional if conditional_transitions else None)

    def forward(self, x: Tensor, lengths: Int[Tensor, " batch"] | None = None) -> ChainEnergy:
        """The energy of a batch.

        Args:
            x: whatever the encoder takes to make features ``(batch, length, features)`` with padding, or
                those of all chains' positions one after another, ``(positions, features)``, dense or CSR.
            lengths: positions of each chain, int64; those of padded features are all the same if not given.
        """
        return self.energy(self.encoder(x), lengths)

    def energy(self, features: Tensor, lengths: Int[Tensor, " batch"] | None = None) -> ChainEnergy:
        """The energy for features that the encoder has made already.

        Raises:
            ValueError: features of another width, or lengths that do not fit them.
        """
        inside = positions(features, lengths, self.num_features)
        rows = rows_of(features, inside)
        unary = spread(rows @ self.feature_weight.mT + self.bias, inside)
        if self.transition_feature_weight is None:
            return ChainEnergy(unary, self.transition, inside.sum(1))
        by_position = rows @ self.transition_feature_weight.flatten(0, 1).mT
        steps = spread(by_position.unflatten(1, self.transition.shape), inside)[:, 1:]
        return ChainEnergy(unary, self.transition + steps, inside.sum(1))

    def weights(self) -> Float[Tensor, " weights"]:
        """The head's weights as one flat vector: what is regularised, the bias too."""
        return torch.cat([weight.flatten() for weight in self._head().values()])

    def arguments(self) -> dict[str, Any]:
        """The constructor's arguments, except for the encoder."""
        sizes = {"num_features": self.num_features, "num_states": self.num_states}
        return {**sizes, "conditional_transitions": self.transition_feature_weight is not None}

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
        sums = [
            self._sums(rows, (labels,), inside),
            self._sums(rows.new_ones(len(rows), 1), (labels,), inside),
        ]
        steps = inside[:, 1:]
        into = spread(rows, inside)[:, 1:][steps]
        pairs = labels[:, :-1], labels[:, 1:]
        sums.append(self._sums(rows.new_ones(len(into), 1), pairs, steps))
        if self.transition_feature_weight is not None:
            sums.append(self._sums(into, pairs, steps))
        return torch.cat([part.flatten(1) for part in sums], 1)

    def _sums(self, rows: Tensor, labels: tuple[Tensor, ...], inside: Bool[Tensor, "batch _"]) -> Tensor:
        """The rows of each chain, summed by the labels that they go with: (batch, *states, columns)."""
        example = inside.nonzero()[:, 0]
        sums = rows.new_zeros(len(inside), *[self.num_states] * len(labels), rows.shape[1])
        return sums.index_put((example, *(of[inside] for of in labels)), rows, accumulate=True)

    def _head(self) -> dict[str, Tensor]:
        """The parameters that are linear in the score, by name."""
        names = ("feature_weight", "bias", "transition", "transition_feature_weight")
        return {name: weight for name in names if (weight := getattr(self, name)) is not None}

    @torch.no_grad()
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
        given = {
            "feature_weight": feature_weight,
            "bias": bias,
            "transition": transition,
            "transition_feature_weight": transition_feature_weight,
        }
        head = self._head()
        if (transition_feature_weight is not None) != ("transition_feature_weight" in head):
            raise ValueError(
                "transition_feature_weight: expected exactly where transitions are conditional, "
                f"got {None if transition_feature_weight is None else tuple(transition_feature_weight.shape)}"
            )
        for name, parameter in head.items():
            check_shape(name, given[name], *parameter.shape)
            check_finite(name, given[name])
        for name, parameter in head.items():
            parameter.copy_(given[name])


class MaximumEntropyMarkov(StoredModule):
    """x → :class:`~lmbm_torch.energies.ChainEnergy` whose score is log P(y | x): the baseline before CRFs.

    Each label is a logistic regression on its features and the label before it
    (:meth:`ChainEnergy.locally_normalised`), so that the log partition is 0 and −score is the loss to train
    by, convex without an encoder to learn.

    Args:
        num_features: same as in :class:`LinearChain`, like every other argument.
    """

    def __init__(
        self,
        num_features: int,
        num_states: int,
        conditional_transitions: bool = False,
        encoder: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.chain = LinearChain(num_features, num_states, conditional_transitions, encoder)

    def forward(self, x: Tensor, lengths: Int[Tensor, " batch"] | None = None) -> ChainEnergy:
        """The energy of a batch; the arguments are those of :meth:`LinearChain.forward`."""
        return self.chain(x, lengths).locally_normalised()

    @property
    def num_states(self) -> int:
        return self.chain.num_states

    @property
    def encoder(self) -> nn.Module:
        return self.chain.encoder

    def arguments(self) -> dict[str, Any]:
        """The constructor's arguments, except for the encoder."""
        return self.chain.arguments()

    def weights(self) -> Float[Tensor, " weights"]:
        """The head's weights as one flat vector: what is regularised, the bias too."""
        return self.chain.weights()
