"""Results of inference: for each example of a batch the answer, and what is proven about the answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from lmbm_torch.energies.base import Energy
from lmbm_torch.shapes import Bool, Float, Int, Known

Value = TypeVar("Value", float, Tensor)


@dataclass(frozen=True)
class Status:
    """Status of an answer for each example: what is proven, and how the method ended.

    Args:
        exact: whether the objective equals the proven bound, or the method is exact for the energy.
        converged: whether the method ended by its stopping rule and not at a limit.
        num_iters: the number of iterations, samples or search nodes.
        residual: the difference of objective and bound, or the last change of iterated values; 0 if exact.

    Examples:
        >>> import torch
        >>> from lmbm_torch.inference import Status
        >>> from lmbm_torch.energies import PairwiseEnergy
        >>> energy = PairwiseEnergy(torch.zeros(2, 3), torch.zeros(3, 3))
        >>> Status.certain(energy, 8).exact
        tensor([True, True])
    """

    exact: Bool[Tensor, " batch"]
    converged: Bool[Tensor, " batch"]
    num_iters: Int[Tensor, " batch"]
    residual: Float[Tensor, " batch"]

    @classmethod
    def certain(cls, energy: Energy, num_iters: int | Int[Tensor, ...]) -> Status:
        """Return the status of an exact answer for every example, after ``num_iters`` iterations."""
        zero = torch.zeros(energy.batch_size, dtype=energy.dtype, device=energy.device)
        sure = torch.ones_like(zero, dtype=torch.bool)
        return cls(sure, sure.clone(), torch.zeros_like(zero, dtype=torch.int64) + num_iters, zero)


@dataclass(frozen=True)
class Marginals:
    """Marginal probabilities of binary labels.

    Args:
        labels: P(y_i = 1).
        log_partition: log Σ_y exp(score(y)), a bound or an approximation, as the routine documents; 0 for a
            directed model.
        standard_error: the standard error of ``labels``, if ``labels`` were estimated from samples.
        method: the routine in words, if the routine was chosen automatically.

    Examples:
        >>> import torch
        >>> from lmbm_torch.energies import PairwiseEnergy
        >>> from lmbm_torch.inference import marginals
        >>> marginals(PairwiseEnergy(torch.zeros(1, 2), torch.zeros(2, 2))).labels
        tensor([[0.5000, 0.5000]])
    """

    labels: Float[Tensor, "batch labels"]
    log_partition: Float[Tensor, " batch"]
    status: Status
    standard_error: Float[Tensor, "batch labels"] | None = None
    method: str = ""


@dataclass(frozen=True)
class StateMarginals:
    """Marginal probabilities of labels of several states, in chains, trees and sequential energies.

    Args:
        states: P(y_i = s); 0 for states that a label does not have, and beyond a chain's end.
        log_partition: log Σ_y exp(score(y)); for a sequential energy, an upper bound of log P(known).
        edges: for chains P(y_t = r, y_{t+1} = s), (batch, steps, states, states), 0 beyond a chain's end; for
            trees P(y_{parent of t} = r, y_t = s), (batch, nodes, states, states), 0 at roots.
        mass_left: for a sequential energy, the largest error of any probability.
        method: the routine in words, if the routine was chosen automatically.

    Examples:
        >>> import torch
        >>> from lmbm_torch.energies import ChainEnergy
        >>> from lmbm_torch.inference import marginals
        >>> marginals(ChainEnergy(torch.zeros(1, 3, 2), torch.zeros(2, 2))).states[0, 0]
        tensor([0.5000, 0.5000])
    """

    states: Float[Tensor, "batch labels states"]
    status: Status
    log_partition: Float[Tensor, " batch"]
    edges: Float[Tensor, "batch edges states states"] | None = None
    mass_left: Float[Tensor, " batch"] | None = None
    method: str = ""


@dataclass(frozen=True)
class BipartiteMessages:
    """Log-odds messages between both sides of a restricted Boltzmann machine; a message of 0 is neutral.

    Args:
        to_hidden: the message from each visible unit to each hidden unit.
        to_visible: the message from each hidden unit to each visible unit.

    Examples:
        >>> import torch
        >>> from lmbm_torch.inference.common.results import BipartiteMessages
        >>> BipartiteMessages(torch.zeros(1, 3, 2), torch.zeros(1, 3, 2)).to_hidden.shape
        torch.Size([1, 3, 2])
    """

    to_hidden: Float[Tensor, "batch visible hidden"]
    to_visible: Float[Tensor, "batch visible hidden"]


@dataclass(frozen=True)
class BipartiteMarginals:
    """Marginal probabilities of the units of a restricted Boltzmann machine.

    Args:
        visible: P(v_i = 1).
        hidden: P(h_j = 1).
        log_partition: log Σ_v Σ_h exp(score(v, h)), a bound or an approximation, as the routine documents.
        messages: the last messages of belief propagation, on request; a later call can start from them.
        coupling: the weights along which ``messages`` were passed.
        method: the routine in words, if the routine was chosen automatically.

    Examples:
        >>> import torch
        >>> from lmbm_torch.energies import BipartiteEnergy
        >>> from lmbm_torch.inference import marginals
        >>> marginals(BipartiteEnergy(torch.zeros(1, 2), torch.zeros(1, 1), torch.zeros(2, 1))).hidden
        tensor([[0.5000]])
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
        """Return ``visible``, under the same name as in :class:`Marginals`."""
        return self.visible

    def pairwise(self) -> Float[Tensor, "batch visible hidden"]:
        """Return P(v_i = 1, h_j = 1) = P(h_j = 1) P(v_i = 1 | h_j = 1), by the messages.

        See Equation 18 of belief_propagation_in_crbms_2017. The log-odds of P(v_i = 1 | h_j = 1) are the
        log-odds of v_i with the message from h_j replaced by coupling_ij. Summed over v_i the result is P(h_j
        = 1); summed over h_j it is P(v_i = 1), but only at a fixed point. :func:`matrix_bp.moments
        <lmbm_torch.inference.messages.matrix_bp.moments>` returns the sum over the batch. A P(v_i = 1)
        rounded to 0 or 1 at a fixed point adds only rounding errors.

        Raises:
            ValueError: no messages were kept.
        """
        if self.messages is None or self.coupling is None:
            raise ValueError("messages: expected a result with kept messages (keep_messages=True), got none")
        log_odds = torch.logit(self.visible)[..., None] - self.messages.to_visible + self.coupling
        return self.hidden[:, None] * torch.sigmoid(log_odds)


@dataclass(frozen=True)
class BipartiteSamples:
    """States in {0, 1} of the units of a restricted Boltzmann machine.

    Args:
        visible: one row for each chain and example. From tempering (replicas, chains, batch, visible), where
            the replicas are in the order of the path, and the last has the given energy.
        hidden: the hidden states from which ``visible`` was drawn; None from tempering.
        swap_rate: from tempering, the share of accepted exchanges between neighbouring replicas, over all
            steps, chains and examples; NaN if no exchange was proposed.

    Examples:
        >>> import torch
        >>> from lmbm_torch.inference.common.results import BipartiteSamples
        >>> BipartiteSamples(torch.tensor([[1, 0]]), torch.tensor([[1]])).visible
        tensor([[1, 0]])
    """

    visible: Int[Tensor, "*chains batch visible"]
    hidden: Int[Tensor, "*chains batch hidden"] | None = None
    swap_rate: Float[Tensor, " neighbours"] | None = None


@dataclass(frozen=True)
class LogPartitionBounds:
    """Lower and upper bound of a log partition.

    Args:
        lower: the lower bound.
        upper: the upper bound.
        status: ``exact`` if both equal the log partition up to rounding; ``residual`` is upper − lower.

    Examples:
        >>> import torch
        >>> from lmbm_torch.energies import PairwiseEnergy
        >>> from lmbm_torch.inference.messages import mini_buckets
        >>> mini_buckets.bounds(PairwiseEnergy(torch.zeros(1, 2), torch.zeros(2, 2))).upper
        tensor([1.3863])
    """

    lower: Float[Tensor, " batch"]
    upper: Float[Tensor, " batch"]
    status: Status


@dataclass(frozen=True)
class Estimate(Generic[Value]):
    """Number, or a number for each example, that is estimated from weighted samples.

    An estimated log partition or log-likelihood, the logarithm of an unbiased number, is too low on average.

    Args:
        value: the number, or (batch,).
        standard_error: the standard error of ``value``, from the samples; 0 if ``value`` is exact, and
            meaningless if few samples carry all the weight.
        effective_size: (Σ w)² / Σ w² for the weights w, the number of samples of equal weight with the same
            precision; infinite if ``value`` is exact.

    Examples:
        >>> from lmbm_torch.inference.common.results import Estimate
        >>> print(Estimate(-2.5, 0.1, 80.0))
        -2.50 ± 0.10 (80.0 samples effectively)
    """

    value: Value
    standard_error: Value
    effective_size: Value

    def __str__(self) -> str:
        return f"{self.value:.2f} ± {self.standard_error:.2f} ({self.effective_size:.1f} samples effectively)"


@dataclass(frozen=True)
class LogLikelihoodBounds:
    """Upper and lower estimate of the mean log-likelihood of labels, in nats; use both together.

    If ``gap`` is negative by more than the standard errors, the labels are unlike the model's samples, or the
    chains do not mix. The two estimates are then no bounds.

    Args:
        upper: the estimate by forward annealing, too high on average.
        lower: the estimate by reverse annealing, too low on average.
        exact: whether both are the exact log-likelihood.

    Raises:
        TypeError: ``upper`` or ``lower`` is no :class:`Estimate`.

    Examples:
        >>> from lmbm_torch.inference.common.results import Estimate, LogLikelihoodBounds
        >>> upper, lower = Estimate(-2.0, 0.1, 80.0), Estimate(-2.5, 0.1, 80.0)
        >>> LogLikelihoodBounds(upper, lower, exact=False).gap
        0.5
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
        """Return upper − lower."""
        return self.upper.value - self.lower.value

    def __str__(self) -> str:
        if self.exact:
            return f"{self.upper.value:.2f} nats, exactly"
        if self.gap < 0:
            return f"{self.upper} by forward and {self.lower} by reverse annealing, which bound nothing"
        return f"from {self.lower} to {self.upper} nats"


@dataclass(frozen=True)
class Decoding:
    """Best labelling found, with the objective and the proven bound.

    Args:
        labels: {0, 1}; for chains class indices, and ``energies.chain.PADDING`` beyond the ends; with several
            labellings ``(batch, top_k, labels)``, best first.
        objective: the routine's objective for the labels; ``(batch, top_k)`` with several labellings.
        bound: an upper bound of the objective of all labellings (for losses, a lower bound); with several
            labellings, of all others.
        nodes: the number of search nodes, if the routine searches.
        hidden: {0, 1}, the hidden units' states, if the objective is the score of both sides.
        relaxed: labels in [0, 1], the solution of a relaxation, from which ``labels`` are rounded.
        regret: for an expected measure, an upper bound of how much larger another labelling's measure can be.
            The objective is then the measure, a lower bound if probability is left out, or a sample mean.
        mass_left: the probability of the labellings that the search did not visit. Without samples, the
            expected measure exceeds the objective by at most this probability.

    Examples:
        >>> import torch
        >>> from lmbm_torch.energies import PairwiseEnergy
        >>> from lmbm_torch.inference import decode
        >>> found = decode(PairwiseEnergy(torch.tensor([[0.5, -0.2]]), torch.zeros(2, 2)))
        >>> found.labels, found.objective == found.bound
        (tensor([[1, 0]]), tensor([True]))
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
class LikelyLabellings:
    """Likely labellings of each example, best first, and the probability of all further labellings.

    Args:
        labels: {0, 1} or class indices, the most probable first; zeros beyond an example's last labelling.
        probability: P(labelling), given the known labels; 0 beyond an example's last labelling.
        mass_left: the total probability of all other labellings. With known labels, ``mass_left`` is an upper
            bound, and ``probability`` a lower bound.
        log_known: an upper bound of log P(known); 0 without known labels.
        status: ``exact`` if no probability is left, ``converged`` if no more than requested.

    Examples:
        >>> import torch
        >>> from lmbm_torch.energies import DirectedEnergy
        >>> from lmbm_torch.inference.search import most_probable
        >>> energy = DirectedEnergy(torch.tensor([[2.0, 3.0]]), torch.zeros(2, 2), torch.arange(2))
        >>> most_probable.labellings(energy, mass_left=0.1).labels
        tensor([[[1, 1]]])
    """

    labels: Int[Tensor, "batch found labels"]
    probability: Float[Tensor, "batch found"]
    mass_left: Float[Tensor, " batch"]
    log_known: Float[Tensor, " batch"]
    status: Status

    def marginals(self, num_states: int, known: Known | None = None) -> StateMarginals:
        """Return P(y_i = s) over the labellings found; a ``known`` label has probability 1 for its value."""
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
        return StateMarginals(states, self.status, self.log_known, mass_left=self.mass_left)


def joined(parts: Sequence[Any]) -> Any:
    """Join the results for parts of a batch into one result for the batch."""
    if len(parts) == 1:
        return parts[0]
    if isinstance(parts[0], Tensor):
        return torch.cat([*parts])
    return _by_field(parts[0], lambda name: joined([getattr(part, name) for part in parts]))


def replaced(whole: Any, rows: Int[Tensor, " examples"], part: Any) -> Any:
    """Return the result ``whole`` of a batch, with the examples ``rows`` replaced by ``part``."""
    if isinstance(whole, Tensor):
        return whole.index_copy(0, rows, part)
    return _by_field(whole, lambda name: replaced(getattr(whole, name), rows, getattr(part, name)))


def rows_of(result: Any, rows: Int[Tensor, " examples"]) -> Any:
    """Return a batch's result for the examples ``rows`` only."""
    if isinstance(result, Tensor):
        return result[rows]
    return _by_field(result, lambda name: rows_of(getattr(result, name), rows))


def _by_field(result: Any, value: Callable[[str], Any]) -> Any:
    """Return a record with ``value`` applied to each field's name; return other objects unchanged."""
    if not is_dataclass(result):
        return result
    return type(result)(**{field.name: value(field.name) for field in fields(result)})  # pyright: ignore[reportCallIssue]
