"""A linear-chain conditional random field as the last layer of a neural network."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from lmbm_torch.checks import check_counts
from lmbm_torch.constraints.transitions import allowed_transitions
from lmbm_torch.energies.chain import PADDING, ChainEnergy
from lmbm_torch.inference.common.results import Decoding
from lmbm_torch.inference.trees import chain_dp
from lmbm_torch.shapes import Bool, Float, Int, Shaped
from lmbm_torch.torch_internals import is_mapped
from lmbm_torch.verdicts import is_traced, one_door, supposing

__all__ = ["CRF"]

Reduction = Literal["none", "sum", "mean", "token_mean"]


class _Tokens(NamedTuple):
    """The tokens of a batch.

    Args:
        emissions: log-potentials of the tags, batch first.
        kept: the mask, batch first.
        sizes: the number of kept tokens of each sequence.
        order: the places of the kept tokens in order, then the places of masked tokens; None if the kept
            tokens are known to stand first.
    """

    emissions: Float[Tensor, "batch length tags"]
    kept: Bool[Tensor, "batch length"]
    sizes: Int[Tensor, " batch"]
    order: Int[Tensor, "batch length"] | None

    def packed(self, values: Tensor) -> Tensor:
        """Move the values of the kept tokens to the front; values are (batch, length, …)."""
        return values if self.order is None else _reordered(values, self.order)

    def placed(self, values: Tensor) -> Tensor:
        """Return packed values at the places of the tokens."""
        return values if self.order is None else _reordered(values, self.order.argsort(1))


class CRF(nn.Module):
    """Score tag sequences by emissions of a neural network and learned transitions between tags.

        score(y) = start_{y_1} + Σ_t emissions_t(y_t) + Σ_t transitions_{y_t, y_{t+1}} + end_{y_T}

    with P(y) ∝ exp(score(y)) (Lafferty, McCallum and Pereira, ICML 2001). Names, arguments and results are
    equal to those of pytorch-crf, so that programs for pytorch-crf work unchanged. The log-likelihood,
    gradients and decoding are exact.

    Emissions in half precision, as under autocast, are summed in float32. A mask may exclude any tokens, also
    at the start or in the middle; the tokens before and after an excluded token become neighbours. A sequence
    without tokens has log-likelihood 0. :meth:`forward` and :meth:`log_partition` work in
    ``torch.func.vmap``; tags cannot be checked there, and the log-likelihood of an invalid tag is NaN.

    Args:
        num_tags: the number of tags.
        batch_first: whether the first axis of emissions, tags and masks is the batch instead of the length.
        tags: the names of the tags, by class index, for ``constraints``.
        constraints: a scheme (``"BIO"``, ``"IOB1"``, ``"BIOES"``) or allowed pairs of tags, see
            :func:`~lmbm_torch.constraints.allowed_transitions`. All other sequences of tags have probability
            0, in training and in decoding.

    Raises:
        ValueError: ``num_tags`` is below 1, ``constraints`` are given without ``tags``, the number of
            ``tags`` differs, or :func:`~lmbm_torch.constraints.allowed_transitions` raises it.

    Examples:
        >>> import torch
        >>> from lmbm_torch.nn import CRF
        >>> crf = CRF(2, batch_first=True)
        >>> _ = [torch.nn.init.zeros_(parameter) for parameter in crf.parameters()]
        >>> emissions = torch.tensor([[[1.0, 0.0], [0.0, 2.0], [3.0, 0.0]]])
        >>> crf.decode(emissions)
        [[0, 1, 0]]
        >>> round(crf(emissions, torch.tensor([[0, 1, 0]])).item(), 3)
        -0.489
    """

    def __init__(
        self,
        num_tags: int,
        batch_first: bool = False,
        *,
        tags: Sequence[str] | None = None,
        constraints: str | Iterable[tuple[str | None, str | None]] | None = None,
    ) -> None:
        super().__init__()
        check_counts(num_tags=num_tags)
        self.num_tags, self.batch_first = num_tags, batch_first
        self.tags = None if tags is None else list(tags)
        self.start_transitions = nn.Parameter(torch.empty(num_tags))
        self.end_transitions = nn.Parameter(torch.empty(num_tags))
        self.transitions = nn.Parameter(torch.empty(num_tags, num_tags))
        if self.tags is not None and len(self.tags) != num_tags:
            raise ValueError(f"tags: expected {num_tags} names, got {len(self.tags)}")
        if constraints is not None and self.tags is None:
            raise ValueError("tags: expected the names of the tags, because constraints name tags, got None")
        allowed = None if constraints is None else allowed_transitions(self.tags or [], constraints)
        for name in ("start", "steps", "end"):
            mask = None if allowed is None else ~getattr(allowed, name)
            self.register_buffer(f"_forbidden_{name}", mask, persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all parameters from the uniform distribution over −0.1 to 0.1."""
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -0.1, 0.1)

    def extra_repr(self) -> str:
        return f"num_tags={self.num_tags}, batch_first={self.batch_first}"

    def energy(
        self,
        emissions: Float[Tensor, "_ _ tags"],
        mask: Shaped[Tensor, "_ _"] | None = None,
        transitions: Float[Tensor, "batch length tags tags"] | None = None,
    ) -> ChainEnergy:
        """Return the energy of the kept tokens, without the excluded tokens, batch first.

        A sequence without tokens gets one position.

        Args:
            emissions: log-potentials of the tags, (length, batch, tags), or batch first.
            mask: True for tokens to keep; by default all tokens are kept.
            transitions: log-potentials added to the learned transitions: ``transitions[:, t]`` to the step
                from the last kept token to token t. Always batch first; ``transitions[:, 0]`` is ignored.

        Raises:
            ValueError: shapes of the tensors do not fit.
        """
        return self._energy(self._tokens(emissions, mask), transitions)

    @one_door
    def forward(
        self,
        emissions: Float[Tensor, "_ _ tags"],
        tags: Int[Tensor, "_ _"],
        mask: Shaped[Tensor, "_ _"] | None = None,
        reduction: Reduction = "sum",
        *,
        transitions: Float[Tensor, "batch length tags tags"] | None = None,
    ) -> Tensor:
        """Return the log-likelihood log P(tags); the loss to minimise is minus the log-likelihood.

        Args:
            emissions, mask, transitions: see :meth:`energy`.
            tags: class indices, in the layout of the mask; ignored if the mask is False.
            reduction: ``"sum"`` or ``"mean"`` over the batch, ``"token_mean"`` (the sum divided by the number
                of tokens), or ``"none"`` for one number per sequence, (batch,).

        Raises:
            ValueError: see :meth:`energy`; the reduction is unknown; a tag is no class index; a value is NaN.
        """
        if tags.shape != emissions.shape[:2]:
            expected = tuple(emissions.shape[:2])
            raise ValueError(f"tags: expected shape {expected}, got {tuple(tags.shape)}")
        with _reading(emissions, tags, mask, transitions, *self.parameters()) as can_read:
            tokens = self._tokens(emissions, mask)
            energy = self._energy(tokens, transitions)
            labels = tokens.packed(tags if self.batch_first else tags.mT)
            # A sequence without tokens has one position, whose tag does not matter: set tag 0.
            labels = labels.where(tokens.sizes[:, None] > 0, 0)
            logs = energy.score(labels) - chain_dp.log_partition(energy)
            if not can_read:
                strange = energy.inside & ((labels < 0) | (labels >= self.num_tags))
                logs = logs.masked_fill(strange.any(1), torch.nan)
        return reduced(logs, tokens.sizes, reduction)

    @one_door
    def marginal_log_likelihood(
        self,
        emissions: Float[Tensor, "_ _ tags"],
        allowed_tags: Bool[Tensor, "_ _ tags"],
        mask: Shaped[Tensor, "_ _"] | None = None,
        reduction: Reduction = "sum",
        *,
        transitions: Float[Tensor, "batch length tags tags"] | None = None,
    ) -> Tensor:
        """Return the log-probability of all allowed tag sequences, to train on partly tagged sequences.

        Args:
            emissions, mask, transitions: see :meth:`energy`.
            allowed_tags: True for each allowed tag of a token, in the layout of the emissions: a single tag
                if the tag is known, all tags if nothing is known.
            reduction: see :meth:`forward`.

        Raises:
            ValueError: see :meth:`forward`; also if all tag sequences of a sequence are forbidden.
        """
        if allowed_tags.shape != emissions.shape or allowed_tags.dtype != torch.bool:
            got = f"{tuple(allowed_tags.shape)}, {allowed_tags.dtype}"
            raise ValueError(f"allowed_tags: expected bool, shape {tuple(emissions.shape)}, got {got}")
        tokens = self._tokens(emissions, mask)
        energy = self._energy(tokens, transitions)
        allowed = tokens.packed(allowed_tags if self.batch_first else allowed_tags.transpose(0, 1))
        allowed = allowed | ~energy.inside[..., None] | (tokens.sizes == 0)[:, None, None]
        some = replace(energy, unary=energy.unary.masked_fill(~allowed, -torch.inf))
        logs = chain_dp.log_partition(some) - chain_dp.log_partition(energy)
        return reduced(logs, tokens.sizes, reduction)

    @one_door
    def log_partition(
        self,
        emissions: Float[Tensor, "_ _ tags"],
        mask: Shaped[Tensor, "_ _"] | None = None,
        *,
        transitions: Float[Tensor, "batch length tags tags"] | None = None,
    ) -> Float[Tensor, " batch"]:
        """Return log Σ_y exp(score(y)) of each sequence, differentiable; 0 for sequences without tokens.

        Args:
            emissions, mask, transitions: see :meth:`energy`.
        """
        with _reading(emissions, mask, transitions, *self.parameters()):
            tokens = self._tokens(emissions, mask)
            return chain_dp.log_partition(self._energy(tokens, transitions)).where(tokens.sizes > 0, 0)

    @torch.no_grad()
    def decode(
        self,
        emissions: Float[Tensor, "_ _ tags"],
        mask: Shaped[Tensor, "_ _"] | None = None,
        *,
        transitions: Float[Tensor, "batch length tags tags"] | None = None,
    ) -> list[list[int]]:
        """Return the most probable tags (MAP) of the kept tokens of each sequence.

        Args:
            emissions, mask, transitions: see :meth:`energy`.
        """
        tokens = self._tokens(emissions, mask)
        labels = chain_dp.best_labels(self._energy(tokens, transitions)).numpy(force=True).tolist()
        return [row[:size] for row, size in zip(labels, tokens.sizes.tolist(), strict=True)]

    def top_k(
        self,
        emissions: Float[Tensor, "_ _ tags"],
        mask: Shaped[Tensor, "_ _"] | None = None,
        k: int = 1,
        *,
        transitions: Float[Tensor, "batch length tags tags"] | None = None,
    ) -> Decoding:
        """Return the k most probable tag sequences of each sequence, the best first.

        Args:
            emissions, mask, transitions: see :meth:`energy`.
            k: at least 1 and at most the number of tag sequences of the longest sequence.

        Returns:
            Labels (batch, length) for k = 1, otherwise (batch, k, length), with −1 for tokens that are not
            kept; the objective holds the scores, and ``status`` is ``exact``.

        Raises:
            ValueError: see :meth:`energy`; also if k is out of range.
        """
        tokens = self._tokens(emissions, mask)
        found = chain_dp.decode(self._energy(tokens, transitions), top_k=k)
        labels = tokens.placed(found.labels.movedim(-1, 1)).movedim(1, -1)
        return replace(found, labels=labels.where(tokens.kept if k == 1 else tokens.kept[:, None], PADDING))

    def marginals(
        self,
        emissions: Float[Tensor, "_ _ tags"],
        mask: Shaped[Tensor, "_ _"] | None = None,
        *,
        transitions: Float[Tensor, "batch length tags tags"] | None = None,
    ) -> Float[Tensor, "_ _ tags"]:
        """Return P(y_t = tag) for each token, in the layout of the emissions; 0 for tokens that are not kept.

        Args:
            emissions, mask, transitions: see :meth:`energy`.
        """
        tokens = self._tokens(emissions, mask)
        states = tokens.placed(chain_dp.marginals(self._energy(tokens, transitions)).states)
        states = states.where(tokens.kept[..., None], 0)
        return states if self.batch_first else states.transpose(0, 1)

    def _weights(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the weights of first tags, transitions and last tags, with −∞ for forbidden entries."""
        weights = self.start_transitions, self.transitions, self.end_transitions
        masks: Any = self._forbidden_start, self._forbidden_steps, self._forbidden_end
        pairs = zip(weights, masks, strict=True)
        start, steps, end = (w if m is None else w.masked_fill(m, -torch.inf) for w, m in pairs)
        return start, steps, end

    def _tokens(self, emissions: Tensor, mask: Tensor | None) -> _Tokens:
        """Return emissions and mask, batch first, with the order that moves kept tokens to the front.

        Raises:
            ValueError: emissions do not have ``num_tags`` tags, or the shape of the mask does not fit.
        """
        if emissions.ndim != 3 or emissions.shape[2] != self.num_tags or 0 in emissions.shape:
            axes = "(batch, length" if self.batch_first else "(length, batch"
            got = tuple(emissions.shape)
            raise ValueError(f"emissions: expected shape {axes}, {self.num_tags}), no size 0, got {got}")
        is_dense = mask is None
        if mask is None:
            mask = torch.ones(emissions.shape[:2], dtype=torch.bool, device=emissions.device)
        if mask.shape != emissions.shape[:2]:
            expected = tuple(emissions.shape[:2])
            raise ValueError(f"mask: expected shape {expected}, got {tuple(mask.shape)}")
        kept = mask.bool()
        if not self.batch_first:
            emissions, kept = emissions.transpose(0, 1), kept.mT
        if not is_dense and kept.device.type == "cpu" and not is_traced() and not is_mapped(kept):
            array = kept.numpy()
            is_dense = bool((array[:, 1:] <= array[:, :-1]).all())
        order = None if is_dense else kept.argsort(dim=1, descending=True, stable=True)
        return _Tokens(emissions, kept, kept.sum(1), order)

    def _energy(self, tokens: _Tokens, transitions: Tensor | None) -> ChainEnergy:
        """Return the energy of tokens, see :meth:`energy`."""
        emissions, kept = tokens.emissions, tokens.kept
        shape = (*kept.shape, self.num_tags, self.num_tags)
        if transitions is not None and transitions.shape != shape:
            raise ValueError(f"transitions: expected shape {shape}, got {tuple(transitions.shape)}")
        with torch.autocast(emissions.device.type, enabled=False):
            dtype = torch.float64 if emissions.dtype == torch.float64 else torch.float32
            start, steps, end = (weights.to(dtype) for weights in self._weights())
            unary = tokens.packed(emissions.to(dtype))
            lengths = tokens.sizes.clamp(min=1)
            rows = torch.arange(len(kept), device=emissions.device)
            places = torch.cat([rows, rows]), torch.cat([torch.zeros_like(lengths), lengths - 1])
            ends = torch.cat([start.expand(len(kept), -1), end.expand(len(kept), -1)])
            unary = unary.index_put(places, ends, accumulate=True)
            if transitions is not None:
                steps = steps + tokens.packed(transitions.to(dtype))[:, 1:]
            return ChainEnergy(unary, steps, lengths)


def _reordered(values: Tensor, order: Int[Tensor, "batch length"]) -> Tensor:
    return values.take_along_dim(order[(..., *(None,) * (values.ndim - 2))], 1)


@contextmanager
def _reading(*tensors: Tensor | None) -> Iterator[bool]:
    """Yield whether values of tensors can be checked, which is impossible in ``torch.func.vmap``."""
    can_read = is_traced() or not any(each is not None and is_mapped(each) for each in tensors)
    with nullcontext() if can_read else supposing({}):
        yield can_read


def reduced(values: Float[Tensor, " batch"], sizes: Int[Tensor, " batch"], reduction: str) -> Tensor:
    """Return the values of sequences with a token, summed as asked for; ``sizes`` are numbers of tokens."""
    values = values.where(sizes > 0, 0)
    if reduction == "none":
        return values
    if reduction == "sum":
        return values.sum()
    if reduction == "mean":
        return values.mean()
    if reduction == "token_mean":
        return values.sum() / sizes.sum()
    raise ValueError(f"reduction: expected none, sum, mean or token_mean, got {reduction!r}")
