"""Hidden Markov models: chains of hidden states that generate observations.

Each estimate of an observation's distribution is smoothed by ``smoothing`` pseudo-observations for every
state. This is the MAP estimate under the conjugate prior; ``log_prior`` is the logarithm of the prior up to a
constant.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.nn.functional import logsigmoid, one_hot

from lmbm_torch.checks import check_counts, check_device, check_finite, check_positive, check_shape
from lmbm_torch.energies import ChainEnergy
from lmbm_torch.energies.chain import as_lengths, check_lengths
from lmbm_torch.models.base import StoredModule
from lmbm_torch.shapes import Bool, Float, Int
from lmbm_torch.verdicts import number, refuse_unless


class Emission(StoredModule):
    """The base class of emission distributions log P(x_t | y_t), which are estimated from weighted rows.

    Args:
        num_states: the number of states.
        num_features: the number of features of an observation x_t.
        start: the names of the parameters, each with the start value of all its entries.

    Raises:
        ValueError: a number is below one.

    Examples:
        >>> from lmbm_torch.models.hidden_markov import Bernoulli
        >>> from lmbm_torch.models.hidden_markov import Emission
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
        """Return the log prior: the expected log P of ``smoothing`` pseudo-observations in each state."""


class Multinomial(Emission):
    """Emission of symbol counts x in state s: log P(x | s) = Σ_v x_v log θ_sv, for symbols in a given order.

    A one-hot row is one symbol of a vocabulary. All θ are equal at the start; a pseudo-observation has one of
    every symbol.

    Args:
        num_states: the number of states.
        num_features: the size of the vocabulary.

    Raises:
        ValueError: a number is below one.

    Examples:
        >>> import torch
        >>> from lmbm_torch.models.hidden_markov import Multinomial
        >>> Multinomial(num_states=2, num_features=4).log_prob(torch.eye(4)[:1]).exp()
        tensor([[0.2500, 0.2500]])
    """

    log_probability: Tensor

    def __init__(self, num_states: int, num_features: int) -> None:
        check_counts(num_features=num_features)
        super().__init__(num_states, num_features, log_probability=-math.log(num_features))

    def log_prob(self, rows: Tensor) -> Float[Tensor, "positions states"]:
        """Return log P(x | s) = Σ_v x_v log θ_sv of each row x and state s."""
        _check_counts(rows)
        return rows @ self.log_probability.mT

    def maximise(self, rows: Tensor, weights: Float[Tensor, "positions states"], smoothing: float) -> None:
        """Set the probabilities of symbols to θ_sv ∝ Σ_t weights_ts x_tv + smoothing."""
        _check_counts(rows)
        self.log_probability = log_frequencies(_weighted_sums(rows, weights), smoothing)

    def log_prior(self, smoothing: float) -> Float[Tensor, ""]:
        """Return the log prior smoothing · Σ_s Σ_v log θ_sv."""
        return smoothing * self.log_probability.sum()


class Bernoulli(Emission):
    """Emission of independent bits x in state s: log P(x | s) = Σ_v x_v log p_sv + (1 − x_v) log(1 − p_sv).

    At the start p = ½; a pseudo-observation has a 0 and a 1 for every bit.

    Args:
        num_states: the number of states.
        num_features: the number of bits.

    Raises:
        ValueError: a number is below one.

    Examples:
        >>> import torch
        >>> from lmbm_torch.models.hidden_markov import Bernoulli
        >>> Bernoulli(num_states=2, num_features=3).log_prob(torch.tensor([[1.0, 0.0, 1.0]])).exp()
        tensor([[0.1250, 0.1250]])
    """

    log_odds: Tensor

    def __init__(self, num_states: int, num_features: int) -> None:
        super().__init__(num_states, num_features, log_odds=0.0)

    def log_prob(self, rows: Tensor) -> Float[Tensor, "positions states"]:
        """Return log P(x | s) = Σ_v x_v logit(p_sv) + log(1 − p_sv) of each row x and state s."""
        _check_bits(rows)
        return rows @ self.log_odds.mT + logsigmoid(-self.log_odds).sum(1)

    def maximise(self, rows: Tensor, weights: Float[Tensor, "positions states"], smoothing: float) -> None:
        """Set the probabilities p_sv = (Σ_t weights_ts x_tv + smoothing) / (Σ_t weights_ts + 2 smoothing)."""
        _check_bits(rows)
        ones = _weighted_sums(rows, weights)
        # Round-off can make the sum of a bit that is always 1 exceed the number of rows: clamp at 0.
        zeros = (weights.sum(0)[:, None] - ones).clamp(min=0)
        self.log_odds = (ones + smoothing).log() - (zeros + smoothing).log()

    def log_prior(self, smoothing: float) -> Float[Tensor, ""]:
        """Return the log prior smoothing · Σ_s Σ_v [log p_sv + log(1 − p_sv)]."""
        return smoothing * (logsigmoid(self.log_odds) + logsigmoid(-self.log_odds)).sum()


class Gaussian(Emission):
    """Emission of independent normal features, with a mean and a variance for each state and feature.

    At the start, the mean is 0 and the variance 1. Pseudo-observations also have mean 0 and variance 1,
    therefore features should be standardised.

    Args:
        num_states: the number of states.
        num_features: the number of features of an observation.

    Raises:
        ValueError: a number is below one.

    Examples:
        >>> import torch
        >>> from lmbm_torch.models.hidden_markov import Gaussian
        >>> Gaussian(num_states=2, num_features=1).log_prob(torch.zeros(1, 1))
        tensor([[-0.9189, -0.9189]])
    """

    mean: Tensor
    variance: Tensor

    def __init__(self, num_states: int, num_features: int) -> None:
        super().__init__(num_states, num_features, mean=0.0, variance=1.0)

    def log_prob(self, rows: Tensor) -> Float[Tensor, "positions states"]:
        """Return log P(x | s) = −½ Σ_v [(x_v − mean_sv)² / variance_sv + log(2π variance_sv)]."""
        _check_dense(rows)
        # Subtract the means state by state: a matrix product would lose digits if means are large.
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
        """Return −½ smoothing · Σ_s Σ_v [(1 + mean_sv²) / variance_sv + log(2π variance_sv)]."""
        expected = (1 + self.mean.square()) / self.variance + (2 * math.pi * self.variance).log()
        return -smoothing * expected.sum() / 2


def log_frequencies(counts: Tensor, smoothing: float) -> Tensor:
    """Return the logarithms of smoothed relative frequencies along the last axis."""
    smoothed = counts + smoothing
    return smoothed.log() - smoothed.sum(-1, keepdim=True).log()


def _weighted_sums(rows: Tensor, weights: Tensor) -> Float[Tensor, "states features"]:
    """Return for each state s and feature v the weighted sum Σ_t weights_ts x_tv of rows, dense or CSR."""
    return (rows.t() @ weights).mT


def _check_counts(rows: Tensor) -> None:
    _check_values(rows, lambda values: (values >= 0) & (values < torch.inf), "finite counts of at least 0")


def _check_bits(rows: Tensor) -> None:
    _check_values(rows, lambda values: (values == 0) | (values == 1), "bits, 0 or 1")


def _check_values(rows: Tensor, allowed: Callable[[Tensor], Tensor], wanted: str) -> None:
    """Raise ValueError unless all entries are allowed; implicit zeros of CSR tensors are not checked."""
    fine = allowed(rows.values() if rows.layout == torch.sparse_csr else rows)

    def refuse() -> None:
        raise ValueError(f"x: expected {wanted}, got other values in {int((~fine).sum())} entries")

    refuse_unless(f"x: expected {wanted}", (fine,), fine.all, refuse)


def _check_dense(rows: Tensor) -> None:
    if rows.layout != torch.strided:
        raise ValueError(f"x: expected dense features, got {rows.layout}")
    check_finite("x", rows)


def positions(
    features: Tensor,
    lengths: Int[Tensor, " batch"] | ArrayLike | None,
    num_features: int,
    max_length: int | None = None,
) -> Bool[Tensor, "batch length"]:
    """Return a mask (batch, length) that is true for positions and false for padding.

    Args:
        features: ``(batch, length, features)`` with padding; or concatenated sequences without padding,
            ``(positions, features)``, dense or CSR.
        lengths: the number of positions of each sequence, at least 1; by default the full length.
        num_features: the number of features of a position.
        max_length: for concatenated sequences, the length to pad to; by default the length of the
            longest sequence, which the CPU must read from a GPU.

    Raises:
        ValueError: features have another shape, or lengths do not fit the features.
    """
    is_padded = features.ndim == 3
    check_shape("x", features, *[None] * (2 if is_padded else 1), num_features)
    if lengths is None:
        if not is_padded:
            raise ValueError(
                "lengths: expected the length of each sequence, as x holds the positions of all sequences, "
                "got None"
            )
        return torch.ones(features.shape[:2], dtype=torch.bool, device=features.device)
    lengths = as_lengths(lengths, features)
    check_shape("lengths", lengths, len(features) if is_padded else None)
    check_device("lengths", lengths, features.device)
    if not is_padded:
        _check_total(lengths, len(features))
    if is_padded:
        max_length = features.shape[1]
    elif max_length is None:
        max_length = int(number("longest sequence", (lengths,), lengths.max))
    check_lengths(lengths, max_length)
    return torch.arange(max_length, device=features.device) < lengths[:, None]


def _check_total(lengths: Tensor, rows: int) -> None:
    wanted = f"lengths: expected lengths of at least 1 with a sum of {rows}"

    def refuse() -> None:
        raise ValueError(f"{wanted}, got a least of {int(lengths.min())} and a sum of {int(lengths.sum())}")

    refuse_unless(wanted, (lengths,), lambda: (lengths.min() >= 1) & (lengths.sum() == rows), refuse)


def rows_of(features: Tensor, inside: Bool[Tensor, "batch length"]) -> Tensor:
    """Concatenate the features of all sequences, (positions, features), without padding."""
    return features[inside] if features.ndim == 3 else features


def spread(rows: Tensor, inside: Bool[Tensor, "batch length"]) -> Tensor:
    """Pad the values of concatenated sequences, ``(positions, …)``, by 0 to ``(batch, length, …)``."""
    # Select by computed indices: indexing by a mask would make the backward pass wait for the GPU.
    place = (inside.flatten().cumsum(0) - 1).clamp(0, len(rows) - 1)
    return _masked(rows.index_select(0, place).unflatten(0, inside.shape), inside)


def at_positions(
    features: Tensor, inside: Bool[Tensor, "batch length"], values: Callable[[Tensor], Tensor]
) -> Tensor:
    """Apply ``values`` to the features of all positions; return ``(batch, length, …)`` with 0 in padding."""
    if features.ndim == 2:
        return spread(values(features), inside)
    # Set the padding to 0 first: padding may be NaN, which multiplication by 0 would not remove.
    rows = _masked(features, inside).flatten(0, 1)
    return _masked(values(rows).unflatten(0, inside.shape), inside)


def _masked(values: Tensor, inside: Tensor) -> Tensor:
    return values.masked_fill(~inside.view(*inside.shape, *[1] * (values.ndim - 2)), 0)


class HiddenMarkov(StoredModule):
    """A hidden Markov model, x → chain energy with score log P(x, y).

        P(x, y) = P(y_0) Π_t P(y_t | y_{t−1}) Π_t P(x_t | y_t)

    (max_margin_markov_networks_survey_2003, Equation 5). The log-partition function is log P(x), and the
    marginals are conditional on x. :meth:`count` estimates the parameters in closed form from labels;
    :meth:`maximise` from expected labels, as the M-step of expectation maximisation does. At the start, all
    probabilities are equal.

    Args:
        emission: P(x_t | y_t), a module like :class:`Multinomial`, which sets the number of states.

    Examples:
        >>> import torch
        >>> from lmbm_torch.models import HiddenMarkov
        >>> from lmbm_torch.models.hidden_markov import Multinomial
        >>> model = HiddenMarkov(Multinomial(num_states=2, num_features=2))
        >>> model(torch.eye(2)[None]).score(torch.tensor([[0, 1]])).exp()
        tensor([0.0625])
    """

    log_start: Tensor
    log_transition: Tensor

    def __init__(self, emission: Emission) -> None:
        super().__init__()
        states = emission.num_states
        self.emission = emission
        self.register_buffer("log_start", torch.full((states,), -math.log(states)))
        self.register_buffer("log_transition", torch.full((states, states), -math.log(states)))

    def arguments(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return {"emission": self.emission}

    def forward(
        self,
        x: Tensor,
        lengths: Int[Tensor, " batch"] | ArrayLike | None = None,
        max_length: int | None = None,
    ) -> ChainEnergy:
        """Return the energy of a batch.

        Args:
            x: observations, ``(batch, length, features)`` with padding, or of concatenated chains,
                ``(positions, features)``, dense or, except for normal emissions, CSR.
            lengths: the number of positions of each chain; by default the full length of padded ``x``.
            max_length: for concatenated chains, the length to pad to; by default the length of the
                longest chain, which the CPU must read from a GPU.

        Raises:
            ValueError: the observations have another width, or the emission refuses them; lengths do not fit.
        """
        inside = positions(x, lengths, self.emission.num_features, max_length)
        unary = at_positions(x, inside, self.emission.log_prob)
        unary = torch.cat([unary[:, :1] + self.log_start, unary[:, 1:]], 1)
        return ChainEnergy(unary, self.log_transition, inside.sum(1))

    def count(
        self,
        x: Tensor,
        labels: Int[Tensor, "batch length"],
        lengths: Int[Tensor, " batch"] | ArrayLike | None = None,
        *,
        smoothing: float = 1.0,
        weight: Float[Tensor, " batch"] | None = None,
    ) -> None:
        """Set the parameters to smoothed relative frequencies in labelled chains, the MAP estimate.

        Args:
            x, lengths: see :meth:`forward`.
            labels: class indices; values in the padding are ignored.
            smoothing: the number of pseudo-observations (above 0) of each start, transition and emission.
            weight: the weight of each chain; by default 1.

        Raises:
            ValueError: see :meth:`forward`; ``labels`` have another shape or are no states; ``smoothing`` is
                not above 0; ``weight`` has another shape.
        """
        inside = positions(x, lengths, self.emission.num_features)
        check_shape("labels", labels, *inside.shape)
        states = self.emission.num_states
        strange = inside & ((labels < 0) | (labels >= states))
        if bool(strange.any()):
            raise ValueError(f"labels: expected 0 to {states - 1}, got {int(strange.sum())} other labels")
        nodes = one_hot(labels.where(inside, 0), states).to(self.log_start.dtype) * inside[..., None]
        weighted = nodes
        if weight is not None:
            check_shape("weight", weight, len(nodes))
            weighted = nodes * weight.to(nodes.dtype)[:, None, None]
        steps = torch.einsum("btr,bts->rs", nodes[:, :-1], weighted[:, 1:])
        self.maximise(x, weighted, steps, lengths, smoothing=smoothing)

    @torch.no_grad()
    def maximise(
        self,
        x: Tensor,
        nodes: Float[Tensor, "batch length states"],
        transitions: Float[Tensor, "states states"],
        lengths: Int[Tensor, " batch"] | ArrayLike | None = None,
        *,
        smoothing: float = 1.0,
    ) -> None:
        """Set the parameters to the MAP estimate given expected labels (the M-step).

        Args:
            x, lengths: see :meth:`forward`.
            nodes: P(y_t = s), like ``StateMarginals.states``.
            transitions: Σ P(y_t = r, y_{t+1} = s) over all steps of all chains.
            smoothing: see :meth:`count`.

        Raises:
            ValueError: see :meth:`forward`; expectations have another shape; ``smoothing`` is not above 0.
        """
        check_positive("smoothing", smoothing)
        inside = positions(x, lengths, self.emission.num_features)
        states = self.emission.num_states
        check_shape("nodes", nodes, *inside.shape, states)
        check_shape("transitions", transitions, states, states)
        self.emission.maximise(rows_of(x, inside), nodes[inside], smoothing)
        self.log_start = log_frequencies(nodes[:, 0].sum(0), smoothing)
        self.log_transition = log_frequencies(transitions, smoothing)

    def log_prior(self, smoothing: float) -> Float[Tensor, ""]:
        """Return the log prior that ``smoothing`` in :meth:`maximise` stands for, up to a constant."""
        own = self.log_start.sum() + self.log_transition.sum()
        return smoothing * own + self.emission.log_prior(smoothing)
