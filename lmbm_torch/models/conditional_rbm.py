"""Restricted Boltzmann machines over labels, without input or conditioned on features."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lmbm_torch.checks import check_counts, check_not_negative
from lmbm_torch.energies import BipartiteEnergy
from lmbm_torch.models.base import Model
from lmbm_torch.shapes import Bool, Float


class RestrictedBoltzmannMachine(Model):
    """A restricted Boltzmann machine: labels as visible units, coupled through hidden units, without input.

    Biases start at zero and couplings at random values from N(0, ``init_std``²): hidden units with equal
    weights would stay equal.

    Args:
        num_labels: the number of labels, the visible units.
        num_hidden: the number of hidden units.
        init_std: the couplings' standard deviation at the start.
        generator: the source of randomness for the couplings at the start; torch's default generator if None.

    Raises:
        ValueError: a number of units is below one, or ``init_std`` is negative.

    Examples:
        >>> import torch
        >>> from lmbm_torch.models import RestrictedBoltzmannMachine
        >>> model = RestrictedBoltzmannMachine(num_labels=3, num_hidden=2, init_std=0.0)
        >>> round(-model(torch.zeros(1, 0)).free_energy(torch.ones(1, 3)).item(), 4)  # 2 log 2
        1.3863
    """

    OF_FEATURES: ClassVar = {}

    def __init__(
        self,
        num_labels: int,
        num_hidden: int,
        init_std: float = 0.01,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(None, num_labels)
        check_counts(num_labels=num_labels, num_hidden=num_hidden)
        check_not_negative("init_std", init_std)
        self.num_hidden = num_hidden
        self.visible_bias = nn.Parameter(torch.zeros(num_labels))
        self.hidden_bias = nn.Parameter(torch.zeros(num_hidden))
        self.coupling = nn.Parameter(init_std * torch.randn(num_labels, num_hidden, generator=generator))

    def energy(self, features: Tensor) -> BipartiteEnergy:
        """Return the same energy for each example; of ``features``, only the number of rows is used."""
        visible, hidden = (bias.expand(len(features), -1) for bias in (self.visible_bias, self.hidden_bias))
        return BipartiteEnergy(visible, hidden, self.coupling)

    def weights(self) -> Float[Tensor, " weights"]:
        """Return all weights and biases as one flat vector."""
        return torch.cat([self.visible_bias, self.hidden_bias, self.coupling.flatten()])

    def couples(self) -> Bool[Tensor, " weights"]:
        """Return a mask of :meth:`weights`: True for couplings of a label and a hidden unit."""
        place = torch.arange(len(self.weights()), device=self.coupling.device)
        first = self.num_labels + self.num_hidden
        return (place >= first) & (place < first + self.coupling.numel())

    def arguments(self) -> dict[str, Any]:
        """Return the constructor's arguments, except for the encoder and the arguments of the start."""
        return {"num_labels": self.num_labels, "num_hidden": self.num_hidden}


class ConditionalRBM(RestrictedBoltzmannMachine):
    """A conditional restricted Boltzmann machine, x → :class:`~lmbm_torch.energies.BipartiteEnergy`.

    The visible units are the labels. With features f = encoder(x), visible = visible_bias + visible_weight f,
    hidden = hidden_bias + hidden_weight f, and one coupling for all inputs (belief_propagation_in_crbms_2017,
    Equation 1, with the names b^v, W^vx, b^h, W^hx and W^vh). Biases and ``visible_weight`` start at zero,
    all other weights at N(0, ``init_std``²).

    Args:
        num_features: the number of features that the encoder returns.
        num_labels: the number of labels, the visible units.
        num_hidden: the number of hidden units.
        encoder: maps inputs to features, ``(batch, features)``; the identity by default.
        init_std: the standard deviation of couplings and hidden weights at the start.
        generator: the source of randomness for the weights at the start; torch's default generator if None.

    Raises:
        ValueError: a number of features or units is below one, or ``init_std`` is negative.

    Examples:
        >>> import torch
        >>> from lmbm_torch.models import ConditionalRBM
        >>> energy = ConditionalRBM(num_features=4, num_labels=3, num_hidden=2)(torch.zeros(5, 4))
        >>> energy.visible.shape, energy.hidden.shape
        (torch.Size([5, 3]), torch.Size([5, 2]))
    """

    OF_FEATURES: ClassVar = {"visible_weight": "visible_bias", "hidden_weight": "hidden_bias"}

    def __init__(
        self,
        num_features: int,
        num_labels: int,
        num_hidden: int,
        encoder: nn.Module | None = None,
        init_std: float = 0.01,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(num_labels, num_hidden, init_std, generator)
        check_counts(num_features=num_features)
        self.num_features = num_features
        self.encoder = nn.Identity() if encoder is None else encoder
        self.visible_weight = nn.Parameter(torch.zeros(num_labels, num_features))
        self.hidden_weight = nn.Parameter(
            init_std * torch.randn(num_hidden, num_features, generator=generator)
        )

    @classmethod
    def logistic_regression(
        cls, num_features: int, num_labels: int, encoder: nn.Module | None = None
    ) -> ConditionalRBM:
        """Build a model of independent labels: a single hidden unit, whose weights stay zero."""
        model = cls(num_features, num_labels, num_hidden=1, encoder=encoder, init_std=0.0)
        for name in ("coupling", "hidden_bias", "hidden_weight"):
            model.get_parameter(name).requires_grad_(False)
        return model

    @classmethod
    def of_log_odds(
        cls,
        num_labels: int,
        num_hidden: int,
        encoder: nn.Module | None = None,
        init_std: float = 0.01,
        generator: torch.Generator | None = None,
    ) -> ConditionalRBM:
        """Build a model whose features are the labels' logits: ``visible_weight`` stays the identity."""
        model = cls(num_labels, num_labels, num_hidden, encoder, init_std, generator)
        nn.init.eye_(model.visible_weight.requires_grad_(False))
        return model

    def energy(self, features: Tensor) -> BipartiteEnergy:
        """Return the energy for the encoder's features."""
        return BipartiteEnergy(
            visible=features @ self.visible_weight.mT + self.visible_bias,
            hidden=features @ self.hidden_weight.mT + self.hidden_bias,
            coupling=self.coupling,
        )

    def weights(self) -> Float[Tensor, " weights"]:
        """Return all weights and biases except the encoder's as one flat vector."""
        return torch.cat([super().weights(), self.visible_weight.flatten(), self.hidden_weight.flatten()])

    def arguments(self) -> dict[str, Any]:
        """Return the constructor's arguments, except for the encoder and the arguments of the start."""
        return {"num_features": self.num_features, **super().arguments()}
