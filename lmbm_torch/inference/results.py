"""Results of inference: an answer and how far to trust it, per example of the batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from lmbm_torch.energies.base import Energy
from lmbm_torch.shapes import Bool, Float, Int, Known

Value = TypeVar("Value", float, Tensor)


@dataclass(frozen=True)
class Status:
    """How an answer came about.

    Args:
        exact: the objective meets its proven bound, or the method is exact on this energy.
        converged: the method ended by its own rule, not by a limit.
        num_iters: iterations (or samples, or search nodes) spent.
        residual: the distance between the answer and its proof or fixed point; 0 where exact.
    """

    exact: Bool[Tensor, " batch"]
    converged: Bool[Tensor, " batch"]
    num_iters: Int[Tensor, " batch"]
    residual: Float[Tensor, " batch"]

    @classmethod
    def certain(cls, energy: Energy, num_iters: int | Int[Tensor, ...]) -> Status:
        """Exact for every example, after so many iterations."""
        zero = torch.zeros(energy.batch_size, dtype=energy.dtype, device=energy.device)
        sure = torch.ones_like(zero, dtype=torch.bool)
        return cls(sure, sure.clone(), torch.zeros_like(zero, dtype=torch.int64) + num_iters, zero)


@dataclass(frozen=True)
class PairwiseMessages:
    """Messages between the labels of a Boltzmann machine; 0 says nothing.

    Args:
        neighbours: of each label; rows shorter than the longest end in the label itself.
        to_labels: their messages, each a term of the label's local field, half its log-odds.
    """

    neighbours: Int[Tensor, "labels neighbours"]
    to_labels: Float[Tensor, "batch labels neighbours"]


@dataclass(frozen=True)
class Marginals:
    """Marginal probabilities of binary labels.

    Args:
        labels: P(y_i = 1).
        log_partition: log Σ_y exp(score(y)), its bound or its approximation: the routine says which; 0 for a
            directed model.
        standard_error: of ``labels``, where they were estimated from samples.
        messages: the last messages of belief propagation, where asked for; a next call may start from them.
        method: how they came about, in words, where :mod:`lmbm_torch.inference.routes` chose.
    """

    labels: Float[Tensor, "batch labels"]
    log_partition: Float[Tensor, " batch"]
    status: Status
    standard_error: Float[Tensor, "batch labels"] | None = None
    messages: PairwiseMessages | None = None
    method: str = ""


@dataclass(frozen=True)
class TreeMarginals:
    """Marginal probabilities in trees.

    Args:
        nodes: P(y_t = s).
        edges: P(y_{parent of t} = r, y_t = s), row r and column s, one matrix for each node; 0 at roots.
        log_partition: log Σ_y exp(score(y)).
        method: how they came about, in words, where :mod:`lmbm_torch.inference.routes` chose.
    """

    nodes: Float[Tensor, "batch nodes states"]
    edges: Float[Tensor, "batch edges states states"]
    log_partition: Float[Tensor, " batch"]
    status: Status
    method: str = ""


class ChainMarginals(TreeMarginals):
    """Marginal probabilities along chains; 0 beyond a chain's end.

    Args:
        nodes: P(y_t = s), (batch, length, states).
        edges: P(y_t = r, y_{t+1} = s), row r and column s, (batch, steps, states, states).
        log_partition, status, method: see :class:`TreeMarginals`.
    """


@dataclass(frozen=True)
class BipartiteMessages:
    """Log-odds messages between the two sides of a restricted Boltzmann machine; 0 says nothing.

    Args:
        to_hidden: from each visible unit to each hidden one.
        to_visible: from each hidden unit to each visible one.
    """

    to_hidden: Float[Tensor, "batch visible hidden"]
    to_visible: Float[Tensor, "batch visible hidden"]


@dataclass(frozen=True)
class BipartiteMarginals:
    """Marginal probabilities of the units of a restricted Boltzmann machine.

    Args:
        visible: P(v_i = 1).
        hidden: P(h_j = 1).
        log_partition: log Σ_v Σ_h exp(score(v, h)), its bound or its approximation: the routine says which.
        messages: the last messages of belief propagation, where asked for; a next call may start from them.
        coupling: the weights that ``messages`` were passed along.
        method: how they came about, in words, where :mod:`lmbm_torch.inference.routes` chose.
    """

    visible: Float[Tensor, "batch visible"]
    hidden: Float[Tensor, "batch hidden"]
    log_partition: Float[Tensor, " batch"]
    status: Status
    messages: BipartiteMessages | None = None
    coupling: Float[Tensor, "visible hidden"] | None = None
    method: str = ""

    @property
    def labels(self) -> Float[Tensor, "batch visible"]:
        """``visible``, by the name that :class:`Marginals` have for it."""
        return self.visible

    def pairwise(self) -> Float[Tensor, "batch visible hidden"]:
        """P(v_i = 1, h_j = 1) = P(h_j = 1) P(v_i = 1 | h_j = 1), by the messages.

        Equation 18 of belief_propagation_in_crbms_2017. The log-odds of the latter are those of v_i with the
        message from h_j replaced by coupling_ij. The sum over the batch is
        :func:`lmbm_torch.inference.messages.matrix_bp.expected_pairwise_sum`, converged or not. The belief of
        a pair has P(h_j = 1) for its marginal, and P(v_i = 1) at a fixed point alone; there a P(v_i = 1) that
        has rounded to 0 or 1 does no harm: the result is off by at most that rounding.

        Raises:
            ValueError: no messages were kept.
        """
        if self.messages is None or self.coupling is None:
            raise ValueError("messages: expected to have been kept, with their coupling, got none")
        log_odds = torch.logit(self.visible)[..., None] - self.messages.to_visible + self.coupling
        return self.hidden[:, None] * torch.sigmoid(log_odds)


@dataclass(frozen=True)
class BipartiteSamples:
    """States of the units of a restricted Boltzmann machine, {0, 1}.

    Args:
        visible: one row for each chain and example.
        hidden: the states that ``visible`` was drawn given.
    """

    visible: Int[Tensor, "*chains batch visible"]
    hidden: Int[Tensor, "*chains batch hidden"]


@dataclass(frozen=True)
class LogPartitionBounds:
    """A log partition from both sides.

    Args:
        lower: at most the log partition.
        upper: at least the log partition.
        status: ``exact`` where both are the log partition, up to rounding; ``residual`` is upper − lower.
    """

    lower: Float[Tensor, " batch"]
    upper: Float[Tensor, " batch"]
    status: Status


@dataclass(frozen=True)
class Estimate(Generic[Value]):
    """A number estimated from weighted samples, or one for each example of a batch.

    A log partition or a log-likelihood is the logarithm of an unbiased estimate, so low on average.

    Args:
        value: the number, or (batch,).
        standard_error: of ``value``, as far as the samples know; 0 where it is exact. It is without meaning
            where few samples carry all the weight.
        effective_size: (Σ w)² / Σ w², of the weights w: how many equally weighted samples these are worth;
            infinite where the value is exact.
    """

    value: Value
    standard_error: Value
    effective_size: Value

    def __str__(self) -> str:
        return f"{self.value:.2f} ± {self.standard_error:.2f} ({self.effective_size:.1f} samples effectively)"


@dataclass(frozen=True)
class LogLikelihoodBounds:
    """The mean log-likelihood of labels, in nats, from both sides; neither stands without the other.

    Where ``gap`` is negative by more than the errors, the labels are not like the machine's samples, or
    chains do not mix: the two bound nothing.

    Args:
        upper: high on average, by forward annealing.
        lower: low on average, by reverse annealing.
        exact: both are the exact number.

    Raises:
        TypeError: one of the two is no :class:`Estimate`.
    """

    upper: Estimate[float]
    lower: Estimate[float]
    exact: bool

    def __post_init__(self) -> None:
        for name in ("upper", "lower"):
            if not isinstance(getattr(self, name), Estimate):
                raise TypeError(f"{name}: expected an Estimate, got {getattr(self, name)!r}")

    @property
    def gap(self) -> float:
        """upper − lower: how much the two leave open."""
        return self.upper.value - self.lower.value

    def __str__(self) -> str:
        if self.exact:
            return f"{self.upper.value:.2f} nats, exactly"
        if self.gap < 0:
            return f"{self.upper} by forward and {self.lower} by reverse annealing, which bound nothing"
        return f"from {self.lower} to {self.upper} nats"


@dataclass(frozen=True)
class TemperedSamples:
    """States of the visible units of restricted Boltzmann machines along a path.

    Args:
        visible: {0, 1}, the replicas in the order of the path; those of the energy itself come last.
        swap_rate: the share of exchanges between neighbouring replicas that were accepted, over all steps,
            chains and examples; NaN for neighbours that were never proposed.
    """

    visible: Int[Tensor, "replicas chains batch visible"]
    swap_rate: Float[Tensor, " neighbours"]


@dataclass(frozen=True)
class Decoding:
    """The best labelling found, its objective and the bound that was proven.

    Args:
        labels: {0, 1}, for chains class indices and ``energies.PADDING`` beyond their ends; where several
            were asked for ``(batch, top_k, labels)``, best first.
        objective: of the routine, at the best labelling found; ``(batch, top_k)`` for several.
        bound: no labelling (no further one, for several) does better than this.
        nodes: search nodes visited, where there is a search.
        hidden: {0, 1}, the hidden units' states, where the objective is the score of both sides.
        relaxed: labels in [0, 1], where a relaxation was solved and ``labels`` are it rounded.
        regret: where the objective is an expected measure, no labelling's exceeds this one's by more; proven,
            unlike a standard error. The objective is the measure itself, its least possible value where some
            probability is left, or the mean over samples.
        mass_left: the probability of labellings that were not looked at: the expected measure is at most so
            much more than the objective, where it was not sampled.
    """

    labels: Int[Tensor, "batch labels"] | Int[Tensor, "batch top_k labels"]
    objective: Float[Tensor, " batch"] | Float[Tensor, "batch top_k"]
    bound: Float[Tensor, " batch"]
    status: Status
    nodes: Int[Tensor, " batch"] | None = None
    hidden: Int[Tensor, "batch hidden"] | None = None
    relaxed: Float[Tensor, "batch labels"] | None = None
    regret: Float[Tensor, " batch"] | None = None
    mass_left: Float[Tensor, " batch"] | None = None


@dataclass(frozen=True)
class StateMarginals:
    """Marginal probabilities of labels of several values.

    Args:
        states: P(y_i = s); 0 for values that a label does not have.
        mass_left: none of them is wrong by more.
        method: how they came about, in words, where :mod:`lmbm_torch.inference.routes` chose.
    """

    states: Float[Tensor, "batch labels states"]
    mass_left: Float[Tensor, " batch"]
    status: Status
    method: str = ""


@dataclass(frozen=True)
class LikelyLabellings:
    """The most probable labellings of each example, and what is left of the probability.

    Args:
        labels: {0, 1} or class indices, the most probable first; zeros beyond an example's last one.
        probability: of each, given what is known; 0 beyond an example's last one.
        mass_left: of all other labellings together. Where something is known this, and with it
            ``probability``, is a bound: no more than this is left.
        log_known: log P(known), at most; 0 where nothing is known.
        status: ``exact`` where nothing is left, ``converged`` where no more than was asked for.
    """

    labels: Int[Tensor, "batch found labels"]
    probability: Float[Tensor, "batch found"]
    mass_left: Float[Tensor, " batch"]
    log_known: Float[Tensor, " batch"]
    status: Status

    def marginals(self, num_states: int, known: Known | None = None) -> StateMarginals:
        """P(y_i = s), as shares of what was found; of a ``known`` label its value, even if nothing was."""
        shares = torch.stack(
            [
                torch.einsum("bn,bni->bi", self.probability, (self.labels == state).to(self.probability))
                for state in range(num_states)
            ],
            -1,
        )
        total = self.probability.sum(1)[:, None, None]
        states = torch.where(total > 0, shares / total, shares)
        if known is not None:
            is_value = known[..., None] == torch.arange(num_states, device=known.device)
            states = torch.where(known.isnan()[..., None], states, is_value.to(states))
        return StateMarginals(states, self.mass_left, self.status)


def joined(parts: Sequence[Any]) -> Any:
    """One result from those of a batch's parts, which have the same tensors."""
    if isinstance(parts[0], Tensor):
        return torch.cat([*parts])
    if not is_dataclass(parts[0]):
        return parts[0]
    fields_of = {field.name: [getattr(part, field.name) for part in parts] for field in fields(parts[0])}
    return type(parts[0])(**{name: joined(values) for name, values in fields_of.items()})


def replaced(whole: Any, rows: Int[Tensor, " examples"], part: Any) -> Any:
    """A batch's result with that of some of its examples, ``rows``, from another one of the same tensors."""
    if isinstance(whole, Tensor):
        return whole.index_copy(0, rows, part)
    if not is_dataclass(whole):
        return whole
    values = {
        field.name: replaced(getattr(whole, field.name), rows, getattr(part, field.name))
        for field in fields(whole)
    }
    return type(whole)(**values)


def rows_of(result: Any, rows: Int[Tensor, " examples"]) -> Any:
    """A batch's result for some of its examples."""
    if isinstance(result, Tensor):
        return result[rows]
    if not is_dataclass(result):
        return result
    parts = {field.name: rows_of(getattr(result, field.name), rows) for field in fields(result)}
    return type(result)(**parts)  # pyright: ignore[reportCallIssue]
