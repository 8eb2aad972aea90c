"""Distributions of an observation given the hidden state, with closed-form estimates.

Each estimate is smoothed by ``smoothing`` pseudo-observations for every state. This is the MAP estimate under
the conjugate prior; ``log_prior`` is the logarithm of the prior up to a constant.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from lmbm_torch.checks import check_counts, check_finite
from lmbm_torch.models.base import StoredModule
from lmbm_torch.shapes import Float
from lmbm_torch.verdicts import refuse_unless

__all__ = ["Bernoulli", "Gaussian", "Multinomial"]


class Emission(StoredModule):
    """The base class of log P(x_t | y_t) for observations in rows, with an estimate from weighted rows.

    Args:
        num_states: S.
        num_features: width of an observation.
        start: the names of the parameters, each with the start value of all its entries.

    Raises:
        ValueError: counts below one.

    Examples:
        >>> from lmbm_torch.models import Bernoulli
        >>> from lmbm_torch.models.emissions import Emission
        >>> isinstance(Bernoulli(num_states=2, num_features=3), Emission)
        True
    """

    def __init__(self, num_states: int, num_features: int, **start: float) -> None:
        super().__init__()
        check_counts(num_states=num_states, num_features=num_features)
        self.num_states, self.num_features = num_states, num_features
        for name, value in start.items():
            self.register_buffer(name, torch.full((num_states, num_features), value))

    def arguments(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return {"num_states": self.num_states, "num_features": self.num_features}

    @abstractmethod
    def log_prob(self, rows: Tensor) -> Float[Tensor, "positions states"]:
        """Return log P(row | state) for each row, dense or CSR, and each state."""

    @abstractmethod
    def maximise(self, rows: Tensor, weights: Float[Tensor, "positions states"], smoothing: float) -> None:
        """Set the parameters that maximise Σ_t Σ_s weights_ts log P(row_t | s) + ``log_prior(smoothing)``."""

    @abstractmethod
    def log_prior(self, smoothing: float) -> Float[Tensor, ""]:
        """Return the expected log P of ``smoothing`` pseudo-observations in every state."""


class Multinomial(Emission):
    """Counts of symbols: log P(x | s) = Σ_v x_v log θ_sv, for symbols in a given order.

    A one-hot row is one symbol of a vocabulary. The start is uniform; a pseudo-observation has one of every
    symbol.

    Args:
        num_states: S.
        num_features: size of the vocabulary.

    Raises:
        ValueError: counts below one.

    Examples:
        >>> import torch
        >>> from lmbm_torch.models import Multinomial
        >>> Multinomial(num_states=2, num_features=4).log_prob(torch.eye(4)[:1]).exp()
        tensor([[0.2500, 0.2500]])
    """

    log_probability: Tensor

    def __init__(self, num_states: int, num_features: int) -> None:
        check_counts(num_features=num_features)
        super().__init__(num_states, num_features, log_probability=-math.log(num_features))

    def log_prob(self, rows: Tensor) -> Float[Tensor, "positions states"]:
        """Return Σ_v x_v log θ_sv."""
        _check_counts(rows)
        return rows @ self.log_probability.mT

    def maximise(self, rows: Tensor, weights: Float[Tensor, "positions states"], smoothing: float) -> None:
        """Set θ_sv ∝ Σ_t weights_ts x_tv + smoothing."""
        _check_counts(rows)
        self.log_probability = log_frequencies(_weighted_sums(rows, weights), smoothing)

    def log_prior(self, smoothing: float) -> Float[Tensor, ""]:
        """Return smoothing · Σ_s Σ_v log θ_sv."""
        return smoothing * self.log_probability.sum()


class Bernoulli(Emission):
    """Independent bits: log P(x | s) = Σ_v x_v log p_sv + (1 − x_v) log(1 − p_sv).

    The start is p = ½; a pseudo-observation counts a 0 and a 1 of every bit.

    Args:
        num_states: S.
        num_features: the number of bits.

    Raises:
        ValueError: counts below one.

    Examples:
        >>> import torch
        >>> from lmbm_torch.models import Bernoulli
        >>> Bernoulli(num_states=2, num_features=3).log_prob(torch.tensor([[1.0, 0.0, 1.0]])).exp()
        tensor([[0.1250, 0.1250]])
    """

    log_odds: Tensor

    def __init__(self, num_states: int, num_features: int) -> None:
        super().__init__(num_states, num_features, log_odds=0.0)

    def log_prob(self, rows: Tensor) -> Float[Tensor, "positions states"]:
        """Return Σ_v x_v logit(p_sv) + log(1 − p_sv)."""
        _check_bits(rows)
        return rows @ self.log_odds.mT + logsigmoid(-self.log_odds).sum(1)

    def maximise(self, rows: Tensor, weights: Float[Tensor, "positions states"], smoothing: float) -> None:
        """Set p_sv = (Σ_t weights_ts x_tv + smoothing) / (Σ_t weights_ts + 2 smoothing)."""
        _check_bits(rows)
        ones = _weighted_sums(rows, weights)
        # By rounding, the sum of a bit that is always 1 may exceed the number of rows.
        zeros = (weights.sum(0)[:, None] - ones).clamp(min=0)
        self.log_odds = (ones + smoothing).log() - (zeros + smoothing).log()

    def log_prior(self, smoothing: float) -> Float[Tensor, ""]:
        """Return smoothing · Σ_s Σ_v log p_sv + log(1 − p_sv)."""
        return smoothing * (logsigmoid(self.log_odds) + logsigmoid(-self.log_odds)).sum()


class Gaussian(Emission):
    """Independent normal features with a mean and a variance for each state.

    The start is mean 0 and variance 1. Pseudo-observations have the same mean and variance, therefore
    features should be standardised.

    Args:
        num_states: S.
        num_features: width of an observation.

    Raises:
        ValueError: counts below one.

    Examples:
        >>> import torch
        >>> from lmbm_torch.models import Gaussian
        >>> Gaussian(num_states=2, num_features=1).log_prob(torch.zeros(1, 1))
        tensor([[-0.9189, -0.9189]])
    """

    mean: Tensor
    variance: Tensor

    def __init__(self, num_states: int, num_features: int) -> None:
        super().__init__(num_states, num_features, mean=0.0, variance=1.0)

    def log_prob(self, rows: Tensor) -> Float[Tensor, "positions states"]:
        """Return −½ Σ_v (x_v − mean_sv)² / variance_sv + log(2π variance_sv)."""
        _check_dense(rows)
        # State by state: a matrix product would lose digits if means are much larger than deviations.
        squares = [
            ((rows - mean).square() / variance).sum(1)
            for mean, variance in zip(self.mean, self.variance, strict=True)
        ]
        return -(torch.stack(squares, 1) + (2 * math.pi * self.variance).log().sum(1)) / 2

    def maximise(self, rows: Tensor, weights: Float[Tensor, "positions states"], smoothing: float) -> None:
        """Set means and variances, with ``smoothing`` observations of mean 0 and variance 1 included."""
        _check_dense(rows)
        total = weights.sum(0)[:, None] + smoothing
        mean = _weighted_sums(rows, weights) / total
        around = [weight @ (rows - centre).square() for weight, centre in zip(weights.mT, mean, strict=True)]
        self.variance = (torch.stack(around) + smoothing * (1 + mean.square())) / total
        self.mean = mean

    def log_prior(self, smoothing: float) -> Float[Tensor, ""]:
        """Return −½ smoothing · Σ_s Σ_v (1 + mean_sv²) / variance_sv + log(2π variance_sv)."""
        expected = (1 + self.mean.square()) / self.variance + (2 * math.pi * self.variance).log()
        return -smoothing * expected.sum() / 2


def log_frequencies(counts: Tensor, smoothing: float) -> Tensor:
    """Return the logarithms of smoothed relative frequencies along the last axis."""
    smoothed = counts + smoothing
    return smoothed.log() - smoothed.sum(-1, keepdim=True).log()


def _weighted_sums(rows: Tensor, weights: Tensor) -> Float[Tensor, "states features"]:
    """Return Σ_t weights_ts x_tv of dense or CSR rows."""
    return (rows.t() @ weights).mT


def _check_counts(rows: Tensor) -> None:
    _check_values(rows, lambda values: (values >= 0) & (values < torch.inf), "finite counts of at least 0")


def _check_bits(rows: Tensor) -> None:
    _check_values(rows, lambda values: (values == 0) | (values == 1), "bits, 0 or 1")


def _check_values(rows: Tensor, allowed: Callable[[Tensor], Tensor], wanted: str) -> None:
    """Raise ValueError unless all entries are allowed; implicit zeros of CSR tensors always are."""
    fine = allowed(rows.values() if rows.layout == torch.sparse_csr else rows)

    def refuse() -> None:
        raise ValueError(f"x: expected {wanted}, got other values in {int((~fine).sum())} entries")

    refuse_unless(f"x: expected {wanted}", (fine,), fine.all, refuse)


def _check_dense(rows: Tensor) -> None:
    if rows.layout != torch.strided:
        raise ValueError(f"x: expected dense features, got {rows.layout}")
    check_finite("x", rows)
