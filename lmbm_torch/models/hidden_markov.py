"""Hidden Markov models: chains of hidden states that generate observations."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.nn.functional import one_hot

from lmbm_torch.checks import check_device, check_positive, check_shape
from lmbm_torch.energies import ChainEnergy
from lmbm_torch.energies.chain import as_lengths, check_lengths
from lmbm_torch.models.base import StoredModule
from lmbm_torch.models.emissions import Emission, log_frequencies
from lmbm_torch.shapes import Bool, Float, Int
from lmbm_torch.verdicts import number, refuse_unless


def positions(
    features: Tensor,
    lengths: Int[Tensor, " batch"] | ArrayLike | None,
    num_features: int,
    max_length: int | None = None,
) -> Bool[Tensor, "batch length"]:
    """Return a mask (batch, length) that is true for positions and false for padding.

    Args:
        features: ``(batch, length, features)`` with padding, or all sequences' positions in turn,
            ``(positions, features)``, dense or CSR.
        lengths: the number of positions of each sequence, at least 1; by default the full length.
        num_features: width of a position's features.
        max_length: for positions in turn, the length to pad to; by default the length of the
            longest sequence, which the CPU must read from a GPU.

    Raises:
        ValueError: features of another shape, or lengths that do not fit the features.
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
    """Return the features of all sequences' positions in turn, (positions, features), unpadded."""
    return features[inside] if features.ndim == 3 else features


def spread(rows: Tensor, inside: Bool[Tensor, "batch length"]) -> Tensor:
    """Pad values of positions in turn, ``(positions, …)``, by 0 to ``(batch, length, …)``."""
    # Not indexed by the mask: the backward pass would count the true entries, and wait for the GPU.
    place = (inside.flatten().cumsum(0) - 1).clamp(0, len(rows) - 1)
    return _masked(rows.index_select(0, place).unflatten(0, inside.shape), inside)


def at_positions(
    features: Tensor, inside: Bool[Tensor, "batch length"], values: Callable[[Tensor], Tensor]
) -> Tensor:
    """Return ``values`` of each position's features: ``(batch, length, …)``, 0 in padding."""
    if features.ndim == 2:
        return spread(values(features), inside)
    # Padding may be NaN, and NaN times 0 is NaN.
    rows = _masked(features, inside).flatten(0, 1)
    return _masked(values(rows).unflatten(0, inside.shape), inside)


def _masked(values: Tensor, inside: Tensor) -> Tensor:
    return values.masked_fill(~inside.view(*inside.shape, *[1] * (values.ndim - 2)), 0)


class HiddenMarkov(StoredModule):
    """A hidden Markov model, x → chain energy with score log P(x, y).

        P(x, y) = P(y_0) Π_t P(y_t | y_{t−1}) Π_t P(x_t | y_t)

    (max_margin_markov_networks_survey_2003, Equation 5). The log partition is log P(x), and the marginals are
    conditional on x. :meth:`count` estimates the parameters in closed form from labels; :meth:`maximise` from
    expected labels, as the M-step of expectation maximisation does. The start is uniform.

    Args:
        emission: P(x_t | y_t), a module like :class:`~lmbm_torch.models.emissions.Multinomial`, which sets
            the number of states.

    Examples:
        >>> import torch
        >>> from lmbm_torch.models import HiddenMarkov, Multinomial
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
            x: observations, ``(batch, length, features)`` with padding, or the observations of all chains
                in turn, ``(positions, features)``, dense or, except for normal emissions, CSR.
            lengths: the number of positions of each chain; by default the full length of padded ``x``.
            max_length: for positions in turn, the length to pad to; by default the length of the
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
        """Set the MAP parameters given labelled chains: smoothed relative frequencies.

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
        """Set the MAP parameters given expected labels (the M-step).

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
        """Return the log-likelihood of the ``smoothing`` in :meth:`maximise`, up to a constant."""
        own = self.log_start.sum() + self.log_transition.sum()
        return smoothing * own + self.emission.log_prior(smoothing)
