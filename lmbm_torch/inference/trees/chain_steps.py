"""Messages along chains, computed position after position for the whole batch, or together on a GPU."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from lmbm_torch.energies.base import kept
from lmbm_torch.energies.chain import ChainEnergy
from lmbm_torch.inference.trees import chain_scans
from lmbm_torch.kernels.installed import compiled
from lmbm_torch.shapes import Float
from lmbm_torch.verdicts import is_traced, number, refuse_unless

# Log-potential that replaces −∞: far below any sum of log-potentials, but sums and gradients stay finite.
FORBIDDEN = -1e30
# Largest magnitude of log-potentials in float32 for which rounding changes probabilities by less than 1e-5.
COARSE = 100.0
# Largest magnitude of log-potentials in float64, with the same effect of rounding.
COARSE_DOUBLE = COARSE * 2.0**29
# Smallest log-potential of a step, relative to the largest, for which float64 needs no check.
LEAST_STEP = math.log(1e-280)
_POSSIBLE = "energy: expected an allowed labelling of each chain"


class _Step(NamedTuple):
    """Step to one position: the unaries, the transition from the position before, and a mask of padding."""

    unary: Tensor
    transition: Tensor
    inside: Tensor


@dataclass(frozen=True)
class Chains:
    """Log-potentials of chains, prepared for the steps: at most 0, and finite, also in padding.

    Args:
        unaries: (batch, length, states).
        transition: (states, states), or (batch, steps, states, states).
        least: a sum of probabilities below this number may have lost terms by underflow; 0 if none can.
        mask: (batch, length), true up to each chain's end.
        is_full: whether there is no padding.
        shift: the sum of what was subtracted from each chain's log-potentials.
    """

    unaries: Tensor
    transition: Float[Tensor, "states states"] | Float[Tensor, "batch steps states states"]
    least: float
    mask: Tensor
    is_full: bool
    shift: Float[Tensor, " batch"]

    @classmethod
    def of(cls, energy: ChainEnergy) -> Chains:
        """Check an energy, and prepare its log-potentials."""
        energy.check_values()
        inside, shared = energy.inside, energy.is_shared
        # Check only on the CPU, because on a GPU the check would wait for the GPU.
        is_full = is_on_host(energy.unary) and bool(inside.all())
        unary, transition = (energy.unary, energy.transition) if is_full else energy.without_padding()
        unary, at_positions = _lowered(unary, -1)
        transition, at_steps = _lowered(transition, (-2, -1))
        at_steps = at_steps * (energy.lengths - 1) if shared else at_steps.sum(-1)
        return cls(
            unaries=unary,
            transition=transition,
            least=_least(transition),
            mask=inside,
            is_full=is_full,
            shift=at_positions.sum(-1) + at_steps,
        )

    @kept
    def unary(self) -> tuple[Tensor, ...]:
        """Return one (batch, states) tensor for each position."""
        return self.unaries.unbind(1)

    @kept
    def inside(self) -> tuple[Tensor, ...]:
        """Return one (batch, 1) mask for each position."""
        return self.mask[..., None].unbind(1)

    @kept
    def tables(self) -> Tensor:
        """Return the transitions as probabilities."""
        return self.transition.exp()

    @kept
    def is_parallel(self) -> bool:
        """Return whether all positions are computed together."""
        batch, length, states = self.unaries.shape
        steps, dtype = length - 1, self.transition.dtype
        return not is_on_host(self.transition) and chain_scans.fits(batch, steps, states, dtype)

    @kept
    def all_steps(self) -> Float[Tensor, "batch steps states states"]:
        """Return the log-potentials of all steps, for computing all positions together."""
        return chain_scans.steps_of(self.unaries, self.transition, self.mask, FORBIDDEN)

    def steps(self) -> list[_Step]:
        """Return the steps to every position but the first."""
        return list(map(_Step, self.unary[1:], self.by_step(self.transition), self.inside[1:]))

    def by_step(self, tables: Tensor) -> tuple[Tensor, ...]:
        """Return one table for each step."""
        # Use unbind: with indexing, the gradient of each index would fill a tensor of all steps.
        return tables.unbind(1) if tables.ndim == 4 else (tables,) * (len(self.unary) - 1)


def is_on_host(tensor: Tensor) -> bool:
    """Return whether Python may read the values: on the CPU, and not in traced code."""
    return tensor.device.type == "cpu" and not is_traced()


def is_coarse(energy: ChainEnergy) -> bool:
    """Return whether rounding in the energy's own precision changes probabilities too much."""
    return energy.dtype == torch.float32 and largest(energy) > COARSE


def largest(energy: ChainEnergy) -> float:
    """Return the largest magnitude of a log-potential, except for −∞."""
    finite = (tensor.detach().nan_to_num(0.0, neginf=0.0) for tensor in (energy.unary, energy.transition))
    # Use minimum and maximum: for long chains a copy of all tables, as by abs(), takes long.
    ends = [tensor.aminmax() for tensor in finite if tensor.numel()]
    largest = [torch.maximum(-least, most) for least, most in ends]
    return number("largest log-potential", (energy.unary, energy.transition), torch.stack(largest).max)


def _lowered(potentials: Tensor, axes: int | tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Subtract the largest log-potential along ``axes``; return the differences and the largest values."""
    if potentials.numel() and not (is_on_host(potentials) and bool(potentials.detach().amin() >= FORBIDDEN)):
        potentials = potentials.clamp(min=FORBIDDEN)
    largest = potentials.detach().amax(axes, keepdim=True)
    return potentials - largest, largest.squeeze(axes)


def _least(transition: Tensor) -> float:
    """Return the smallest sum of probabilities that is safe from underflow, for messages of at most 1.

    An underflow loses less than ``tiny`` for each state, which must be far below the sum. The best state
    before a step has message 1: every sum is at least e^−spread, with the range (spread) of the
    transitions. For a small spread, every sum is safe, and the result is 0. On a GPU the result is ∞, so that
    all sums are computed by logsumexp, because a check would wait for the GPU.
    """
    if not is_on_host(transition):
        return torch.inf
    limits = torch.finfo(transition.dtype)
    least = 16 * transition.shape[-1] * limits.tiny / limits.eps
    is_safe = not transition.numel() or float(transition.detach().amin()) > math.log(least)
    return 0.0 if is_safe else least


def _product(message: Tensor, table: Tensor, log_table: Tensor, least: float) -> Tensor:
    """Return log Σ_r exp(message_r) table_rs; by logsumexp for sums below ``least``."""
    if least == torch.inf:
        return (message[..., None] + log_table).logsumexp(-2)
    # Disable autocast, which would round the matrix product to half precision.
    with torch.autocast("cpu", enabled=False):
        sums = (message.exp()[:, None] @ table).squeeze(1)
    lost = sums < least
    if not least or not bool(lost.any()):
        return sums.log()
    example, state = lost.nonzero(as_tuple=True)
    columns = log_table.mT[state] if log_table.ndim == 2 else log_table.mT[example, state]
    again = (message[example] + columns).logsumexp(-1)
    return sums.where(~lost, 1).log().index_put((example, state), again)


def edges(before: Tensor, chains: Chains, ahead: Tensor) -> Float[Tensor, "batch steps states states"]:
    """Return exp(before_r + transition_rs + ahead_s), for log-messages from both sides."""
    limits = torch.finfo(before.dtype)
    if before.numel() and (
        not is_on_host(before) or float(before.amax()) > math.log(limits.eps / limits.tiny)
    ):
        # In logarithms, because probabilities of ``ahead`` might underflow.
        return (before[..., None] + chains.transition).add_(ahead[..., None, :]).exp_()
    return (before.exp()[..., None] * ahead.exp()[..., None, :]).mul_(chains.tables)


def forward(chains: Chains) -> tuple[list[Tensor], Float[Tensor, " batch"]]:
    """Return the log-message to each position, with the unary, at most 0, and the total subtracted.

    Beyond a chain's end, the message of the chain's last position is repeated.
    """
    if chains.is_parallel:
        return _all_forward(chains, torch.logsumexp)
    message = chains.unary[0]
    messages, lowered = [message], []
    for step, table in zip(chains.steps(), chains.by_step(chains.tables), strict=True):
        after = _product(message, table, step.transition, chains.least) + step.unary
        largest = after.detach().amax(-1, keepdim=True)
        message = (after - largest).where(step.inside, message)
        messages.append(message)
        lowered.append(largest.where(step.inside, 0))
    scale = chains.shift + torch.cat([torch.zeros_like(chains.shift)[:, None], *lowered], 1).sum(1)
    _check_possible(scale)
    return messages, scale


def backward(chains: Chains) -> tuple[Tensor, Tensor]:
    """Return log-messages from later positions, at most 0, after each step and before each step.

    Returns:
        ``(batch, steps, states)``, and ``(batch, length, states)``, 0 from a chain's end on.
    """
    if chains.is_parallel:
        return _all_backward(chains)
    backward = [torch.zeros_like(chains.unary[0])]
    ahead = []
    steps = list(zip(chains.steps(), chains.by_step(chains.tables), strict=True))
    for step, table in reversed(steps):
        message = step.unary + backward[-1]
        ahead.append(message - message.amax(-1, keepdim=True))
        before = _product(ahead[-1], table.mT, step.transition.mT, chains.least)
        backward.append(before.where(step.inside, 0))
    empty = chains.unary[0].new_empty(len(chains.shift), 0, chains.transition.shape[-1])
    return torch.stack(ahead[::-1], 1) if ahead else empty, torch.stack(backward[::-1], 1)


def _best_scores(chains: Chains) -> list[Tensor]:
    """Return the score of the best path to each state of each position, minus the largest there."""
    if chains.is_parallel:
        return _all_forward(chains, torch.amax)[0]
    messages, scale = [chains.unary[0]], chains.shift
    for step in chains.steps():
        # Store examples along the last axis, so that the maximum is vectorised over examples.
        before = messages[-1].mT.contiguous().mT[..., None]
        after = (before + step.transition).amax(-2) + step.unary
        largest = after.amax(-1, keepdim=True)
        messages.append((after - largest).where(step.inside, messages[-1]))
        scale = scale + largest.where(step.inside, 0)[:, 0]
    _check_possible(scale)
    return messages


def _all_forward(chains: Chains, total: chain_scans.Semiring) -> tuple[list[Tensor], Tensor]:
    """Compute :func:`forward`, or with ``torch.amax`` :func:`_best_scores`, for all positions together."""
    messages, lowered = chain_scans.forward(chains.unary[0], chains.all_steps, total)
    scale = chains.shift + lowered
    _check_possible(scale)
    return list(messages.unbind(1)), scale


def _all_backward(chains: Chains) -> tuple[Tensor, Tensor]:
    """Compute :func:`backward` for all positions together."""
    message = chains.unaries[:, 1:] + chain_scans.backward(chains.all_steps)
    ahead = message - message.amax(-1, keepdim=True)
    before = (chains.transition + ahead[..., None, :]).logsumexp(-1)
    before = before.where(chains.mask[:, 1:, None], 0)
    return ahead, torch.cat([before, torch.zeros_like(before[:, :1])], 1)


def best_labels(energy: ChainEnergy) -> Tensor:
    """Return the labelling of largest score of each chain, (batch, length); padding has arbitrary values.

    On the CPU a kernel computes one chain after another.
    """
    kernel = compiled("search.chains") if is_on_host(energy.unary) else None
    if kernel is None:
        chains = Chains.of(energy)
        return _best_path(_best_scores(chains), chains)
    energy.check_values()
    batch, length, states = energy.unary.shape
    labels = torch.zeros(batch, length, dtype=torch.int64, device="cpu")
    are_possible = kernel.best_paths(
        energy.unary.detach().contiguous().numpy().reshape(-1, states),
        length * np.arange(batch),
        energy.lengths.numpy(),
        *_steps_of(energy.transition.detach()),
        labels.view(-1).numpy(),
    )
    _refuse_impossible(torch.from_numpy(~are_possible))
    return labels


def sums(
    energy: ChainEnergy,
    chains: Chains,
    *,
    with_marginals: bool = True,
    each_step: bool = True,
    spends: bool = False,
) -> tuple[Tensor, Tensor, Tensor] | None:
    """Return P(y_t), P(y_t, y_{t+1}) and the log partition, by a kernel on the CPU in double precision.

    The result is None if the kernel does not apply: without numba, on a GPU, if sums of probabilities may
    have lost terms, if all labellings of a chain are forbidden, or for log-potentials too large for float64.

    Args:
        with_marginals: False to compute only the log partition; the marginals are then empty.
        each_step: False to sum P(y_t, y_{t+1}) over all steps, (batch, 1, states, states).
        spends: True to overwrite the transitions of ``chains``, which saves a copy of all tables.
    """
    kernel = compiled("search.chains") if is_on_host(energy.unary) else None
    if kernel is None or largest(energy) > COARSE_DOUBLE:
        return None
    unary = chains.unaries.contiguous()
    tables = chains.transition.exp_() if spends and not chains.least else chains.tables
    if chains.least:
        allowed = chains.transition > FORBIDDEN / 2
        least = float(chains.transition.where(allowed, 0).amin())
        if least < LEAST_STEP:
            return None
        if least < math.log(torch.finfo(tables.dtype).tiny):
            unary, tables = unary.double(), chains.transition.double().exp()
    batch, length, states = unary.shape
    rows = batch if with_marginals else 0
    nodes = unary.new_zeros(rows, length, states)
    edges = unary.new_zeros(rows, length - 1 if each_step else min(1, length - 1), states, states)
    steps = _steps_of(tables)
    total = kernel.marginals(unary.numpy(), energy.lengths.numpy(), *steps, nodes.numpy(), edges.numpy())
    if np.isnan(total).any():
        return None
    scale = chains.shift + torch.from_numpy(total).to(chains.shift)
    _check_possible(scale)
    return nodes.to(energy.dtype), edges.to(energy.dtype), scale


def sums_by_steps(energy: ChainEnergy, chains: Chains) -> tuple[Tensor, Tensor, Tensor]:
    """Return P(y_t), P(y_t, y_{t+1}) of each step and the log partition, one position after another."""
    messages, scale = forward(chains)
    before_each = torch.stack(messages, 1)
    ahead, behind = backward(chains)
    beliefs = before_each + behind
    nodes = beliefs.softmax(-1).masked_fill(~energy.inside[..., None], 0)
    before = before_each - beliefs.logsumexp(-1, keepdim=True)
    if largest(energy) > COARSE_DOUBLE:
        # With large log-potentials, the steps' rounding errors differ: normalise each step separately.
        tables = before[:, :-1, :, None] + chains.transition + ahead[..., None, :]
        pairs = tables.flatten(-2).softmax(-1).view_as(tables)
    else:
        pairs = edges(before[:, :-1], chains, ahead)
    if not chains.is_full:
        pairs = pairs.masked_fill_(~energy.inside[:, 1:, None, None], 0)
    return nodes, pairs, scale + messages[-1].logsumexp(-1)


def _steps_of(transition: Tensor) -> tuple[np.ndarray, tuple[int, int]]:
    """Return the steps' tables as an array for kernels, with the strides of chains and of steps."""
    strides = (0, 0) if transition.ndim == 2 else (transition.shape[1], 1)
    return transition.contiguous().numpy().reshape(-1, *transition.shape[-2:]), strides


def _best_path(messages: list[Tensor], chains: Chains) -> Tensor:
    """Trace the best path back from the best last state; return its states, (batch, length)."""
    if not chains.is_parallel:
        return trace(messages[-1][None], messages, chains, lambda scores: scores.argmax(-1))[0]
    pointers = (torch.stack(messages[:-1], 1)[..., None] + chains.transition).argmax(-2)
    # Beyond a chain's end, let pointers keep the label of the last position.
    same = torch.arange(pointers.shape[-1], device=pointers.device)
    pointers = pointers.where(chains.mask[:, 1:, None], same)
    return chain_scans.trace(messages[-1].argmax(-1), pointers)


def trace(last: Tensor, messages: list[Tensor], chains: Chains, choose: Callable[[Tensor], Tensor]) -> Tensor:
    """Trace labellings back from the last to the first position, (samples, batch, length).

    Args:
        last: (samples, batch, states), the scores of the states at the last position.
        messages: one message for each position, with an entry for each state.
        choose: a function from scores (samples, batch, states) to the chosen states (samples, batch).
    """
    labels = choose(last)
    found = [labels]
    for message, step in zip(messages[-2::-1], reversed(chains.steps()), strict=True):
        # Beyond a chain's end, keep the label of the last position, so that it is chosen only once.
        labels = choose(message + _into(step.transition, labels)).where(step.inside[:, 0], labels)
        found.append(labels)
    return torch.stack(found[::-1], -1)


def best_paths(chains: Chains, top_k: int) -> tuple[Tensor, list[tuple[Tensor, int]]]:
    """Return the ``top_k`` best paths to each state of the last position, and pointers along the paths.

    Returns:
        The paths' scores ``(batch, states, ranks)``, best first, 0 for the best path. For each step
        ``(batch, states, ranks)``: the index ``state · ranks + rank`` of the path that each path extends, and
        the number of ranks before the step.
    """
    best = chains.unary[0][..., None]
    pointers, scale = [], chains.shift
    for step in chains.steps():
        states, ranks = best.shape[1:]
        candidates = (best[:, None] + step.transition.mT[..., None]).flatten(-2)
        after, origin = candidates.topk(min(top_k, states * ranks), -1)
        after = after + step.unary[..., None]
        largest = after.amax((1, 2))
        goes_on = step.inside[..., None]
        more = after.shape[-1] - ranks
        best = (after - largest[:, None, None]).where(goes_on, pad(best, (0, more), value=-torch.inf))
        same = torch.arange(states * ranks, device=best.device).view(states, ranks)
        pointers.append((origin.where(goes_on, pad(same, (0, more))), ranks))
        scale = scale + largest.where(step.inside[:, 0], 0)
    _check_possible(scale)
    return best, pointers


def _into(transition: Tensor, states: Tensor) -> Tensor:
    """Return the column of the transition for each of the ``states``, (samples, batch, states)."""
    if transition.ndim == 2:
        return transition.mT[states]
    return transition.mT[torch.arange(states.shape[1], device=states.device), states]


def draw(log_weights: Tensor, generator: torch.Generator | None) -> Tensor:
    """Draw indices along the last axis in proportion to the weights, by exponential random numbers."""
    clocks = torch.empty_like(log_weights).exponential_(generator=generator)
    return (log_weights - clocks.clamp_min_(torch.finfo(clocks.dtype).tiny).log_()).argmax(-1)


def _check_possible(scale: Tensor) -> None:
    """Raise ValueError if all labellings of a chain are forbidden."""
    refuse_unless(
        _POSSIBLE,
        (scale,),
        lambda: (scale.detach() >= FORBIDDEN / 2).all(),
        lambda: _refuse_impossible(scale < FORBIDDEN / 2),
    )


def _refuse_impossible(are_impossible: Tensor) -> None:
    if are_impossible.any():
        rows = are_impossible.nonzero().flatten()
        raise ValueError(f"{_POSSIBLE}, got none for {len(rows)} chains, the first in row {int(rows[0])}")
