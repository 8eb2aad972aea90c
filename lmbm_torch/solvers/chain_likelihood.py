"""Conditional random fields of chains, linear or with a kernel, in the dual through marginals.

    min_w ½‖w‖² + Σ_i C_i (−log p(y_i | x_i)),   max_μ −½‖w‖² + Σ_i C_i H(μ_i),
    w = Σ_i C_i (statistics of y_i − those expected under μ_i),

where μ_i are the node and edge marginals of a distribution over a chain's labellings. It has the product form
of a chain, so that its entropy is Σ_edges H + Σ_nodes (1 − neighbours) H, and the duality gap is
Σ_i C_i KL(μ_i ‖ p_i) (dual_optimization_conditional_models_2006, Section 4.2, with the tree entropy in place
of its Equation 18).

One chain after another is moved towards what the model of the current weights says of it, p_i, and the dual
climbs with every step. A change of two labellings alone, the paper's, would leave the product form.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from scipy.optimize import brentq
from torch import Tensor

from lmbm_torch.checks import check_count, check_finite, check_shape
from lmbm_torch.energies.chain import ChainEnergy
from lmbm_torch.inference import chain_dp
from lmbm_torch.shapes import Float, Int
from lmbm_torch.solvers.base import relative_gap, run_to_gap
from lmbm_torch.solvers.gram import Gram

# Stands for a probability that has underflowed, so that its logarithm stays finite.
_LEAST = 1e-300
_HALVINGS = 40


@dataclass(frozen=True, eq=False)
class ChainLikelihood:
    """The problem: chains' positions one after another.

    score(y) = Σ_t ⟨w_{y_t}, φ(x_t)⟩ + Σ_t transition_{y_t, y_{t+1}}, transitions penalised like the rest.

    Args:
        gram: kernel values between positions, float64; ⟨x_t, x_t'⟩ for a linear model.
        labels: int64, 0 … ``num_states`` − 1.
        lengths: int64, positions of each chain, at least one.
        upper: C_i of each chain, float64, above zero.
        num_states: S.

    Raises:
        ValueError: lengths that do not sum to the positions, labels that are no states, weights not above
            zero.
    """

    gram: Gram
    labels: Int[Tensor, " positions"]
    lengths: Int[Tensor, " chains"]
    upper: Float[Tensor, " chains"]
    num_states: int

    def __post_init__(self) -> None:
        check_count("num_states", self.num_states)
        check_shape("labels", self.labels, self.gram.num_instances)
        check_shape("lengths", self.lengths, None)
        total, shortest = int(self.lengths.sum()), int(self.lengths.min())
        if shortest < 1 or total != len(self.labels):
            raise ValueError(
                f"lengths: expected at least 1 and {len(self.labels)} in all, got {shortest} and {total}"
            )
        if not 0 <= int(self.labels.min()) <= int(self.labels.max()) < self.num_states:
            raise ValueError(f"labels: expected 0 to {self.num_states - 1}, got others")
        check_shape("upper", self.upper, len(self.lengths))
        check_finite("upper", self.upper)
        if bool((self.upper <= 0).any()):
            raise ValueError(f"upper: expected values above 0, got {float(self.upper.min())}")

    @property
    def spans(self) -> list[slice]:
        """Where each chain's positions are."""
        ends = self.lengths.cumsum(0).tolist()
        return [slice(end - length, end) for end, length in zip(ends, self.lengths.tolist(), strict=True)]


@dataclass(frozen=True, eq=False)
class ChainMarginalPair:
    """μ of one chain."""

    nodes: Float[Tensor, "length states"]
    edges: Float[Tensor, "steps states states"]

    def entropy(self) -> float:
        """H(μ) by the chain's product form."""
        nodes = _less_degree(len(self.nodes)) * torch.special.entr(self.nodes)
        return float(torch.special.entr(self.edges).sum() + nodes.sum())

    def energy(self) -> ChainEnergy:
        """The chain with these marginals: log P(y_0) and log P(y_{t+1} | y_t)."""
        unary = torch.zeros_like(self.nodes)
        unary[0] = _log(self.nodes[0])
        steps = _log(self.edges) - _log(self.nodes[:-1])[:, :, None]
        return ChainEnergy(unary[None], steps[None])


@dataclass(frozen=True, eq=False)
class ChainDualState:
    """Where the solver stands.

    Args:
        marginals: μ, one for each chain.
        coef: C_i (t_i − μ_i) at every position, which times the kernel gives unaries.
        transition: the transitions' weights.
        primal: the objective at the weights that the duals make; dual: never above the optimum.
        num_passes: passes over the chains made so far; with the seed it determines the next one's order.
    """

    marginals: tuple[ChainMarginalPair, ...]
    coef: Float[Tensor, "positions states"]
    transition: Float[Tensor, "states states"]
    primal: float
    dual: float
    num_passes: int

    @property
    def gap(self) -> float:
        """The duality gap relative to the primal value."""
        return float(relative_gap(self.primal - self.dual, self.primal))


@dataclass(frozen=True, eq=False)
class ChainBlock:
    """One chain's share of the dual, as a function of its marginals alone.

    Args:
        gram: kernel values among its positions.
        unary, transition: scores of the current weights.
        upper: C_i.
        current: μ_i.
    """

    gram: Float[Tensor, "length length"]
    unary: Float[Tensor, "length states"]
    transition: Float[Tensor, "states states"]
    upper: float
    current: ChainMarginalPair

    def score(self, nodes: Tensor, edges: Tensor) -> float:
        """⟨w, the statistics that are expected under marginals, or under a change of them⟩."""
        return float((self.unary * nodes).sum() + (self.transition * edges.sum(0)).sum())

    def square_norm(self, nodes: Tensor, edges: Tensor) -> float:
        """‖the same statistics‖²."""
        return float((nodes * (self.gram @ nodes)).sum() + edges.sum(0).square().sum())

    def gain(self, other: ChainMarginalPair) -> float:
        """By how much the dual is larger at other marginals."""
        nodes, edges = other.nodes - self.current.nodes, other.edges - self.current.edges
        entropy = other.entropy() - self.current.entropy()
        step = self.upper * (self.score(nodes, edges) + entropy)
        return step - 0.5 * self.upper**2 * self.square_norm(nodes, edges)


Step = Callable[[ChainBlock], ChainMarginalPair]
"""A chain's block → marginals where the dual is not smaller."""


def line_search_step(block: ChainBlock) -> ChainMarginalPair:
    """The best marginals on the line from μ_i to those of the model: exact, under the chain's entropy."""
    current, model = block.current, _marginals(ChainEnergy(block.unary[None], block.transition))
    nodes, edges = model.nodes - current.nodes, model.edges - current.edges
    slope = block.score(nodes, edges)
    curvature = block.upper * block.square_norm(nodes, edges)

    def derivative(share: float) -> float:
        """Of the dual divided by C_i; falls as the share grows."""
        on_edges = (edges * _log(current.edges + share * edges)).sum()
        on_nodes = (_less_degree(len(nodes)) * nodes * _log(current.nodes + share * nodes)).sum()
        return slope - share * curvature - float(on_edges + on_nodes)

    if derivative(0.0) <= 0:
        return current
    share: Any = 1.0 if derivative(1.0) >= 0 else brentq(derivative, 0.0, 1.0, xtol=1e-14)
    return ChainMarginalPair(current.nodes + share * nodes, current.edges + share * edges)


def exponentiated_step(block: ChainBlock) -> ChainMarginalPair:
    """μ_i^{1−η} p_i^η, normalised, with the first η of 1, ½, ¼ … at which the dual climbs.

    Collins, Globerson, Koo, Carreras and Bartlett, "Exponentiated gradient algorithms for conditional random
    fields and max-margin Markov networks", JMLR 9, 2008.
    """
    own = block.current.energy()
    rate = 1.0
    for _ in range(_HALVINGS):
        unary = (1 - rate) * own.unary + rate * block.unary
        found = _marginals(ChainEnergy(unary, (1 - rate) * own.transition + rate * block.transition))
        if block.gain(found) > 0:
            return found
        rate /= 2
    return block.current


def init(problem: ChainLikelihood) -> ChainDualState:
    """The state at uniform distributions over labellings."""
    states = problem.num_states
    marginals = tuple(
        ChainMarginalPair(
            torch.full((length, states), 1 / states, dtype=torch.float64),
            torch.full((length - 1, states, states), 1 / states**2, dtype=torch.float64),
        )
        for length in problem.lengths.tolist()
    )
    return _certified(problem, marginals, num_passes=0)


def update(
    problem: ChainLikelihood, state: ChainDualState, *, step: Step = line_search_step, seed: int = 0
) -> ChainDualState:
    """One pass over all chains in random order, then a new certificate.

    Raises:
        ValueError: a state of another problem.
    """
    check_shape("state.coef", state.coef, len(problem.labels), problem.num_states)
    marginals, spans = list(state.marginals), problem.spans
    coef, transition = state.coef.clone(), state.transition.clone()
    for chain in np.random.default_rng((seed, state.num_passes)).permutation(len(spans)).tolist():
        span, upper, current = spans[chain], float(problem.upper[chain]), marginals[chain]
        rows = problem.gram.rows(span)
        block = ChainBlock(rows[:, span], rows @ coef, transition, upper, current)
        found = step(block)
        coef[span] -= upper * (found.nodes - current.nodes)
        transition = transition - upper * (found.edges - current.edges).sum(0)
        marginals[chain] = found
    return _certified(problem, tuple(marginals), state.num_passes + 1)


def run(
    problem: ChainLikelihood,
    *,
    step: Step = line_search_step,
    tol: float = 1e-6,
    max_passes: int = 1000,
    seed: int = 0,
    callback: Callable[[ChainDualState], None] | None = None,
) -> ChainDualState:
    """Maximise the dual to a relative duality gap of ``tol``.

    Args:
        problem: chains, their labels and kernel.
        step: :func:`line_search_step` or :func:`exponentiated_step`.
        tol: the gap relative to the primal objective.
        max_passes: the end, reached or not; ``state.gap`` tells.
        seed: of the order of the chains.
        callback: called after every pass; may raise to stop.

    Raises:
        ValueError: ``tol`` not above zero, ``max_passes`` below one.
    """
    return run_to_gap(
        partial(init, problem),
        lambda state: update(problem, state, step=step, seed=seed),
        tol=tol,
        max_passes=max_passes,
        callback=callback,
    )


def _certified(
    problem: ChainLikelihood, marginals: tuple[ChainMarginalPair, ...], num_passes: int
) -> ChainDualState:
    """Both values at the duals, computed afresh from all of the kernel."""
    states, spans = problem.num_states, problem.spans
    truth = torch.nn.functional.one_hot(problem.labels, states).double()
    coef = torch.empty_like(truth)
    transition = torch.zeros(states, states, dtype=torch.float64)
    for span, upper, each in zip(spans, problem.upper, marginals, strict=True):
        coef[span] = upper * (truth[span] - each.nodes)
        pairs = truth[span][:-1, :, None] * truth[span][1:, None]
        transition += upper * (pairs - each.edges).sum(0)
    square_norm, loss, entropy = float(transition.square().sum()), 0.0, 0.0
    for span, upper, each in zip(spans, problem.upper.tolist(), marginals, strict=True):
        unary = problem.gram.rows(span) @ coef
        energy = ChainEnergy(unary[None], transition)
        square_norm += float((coef[span] * unary).sum())
        score = energy.score(problem.labels[span][None])
        loss += upper * float(chain_dp.log_partition(energy) - score)
        entropy += upper * each.entropy()
    primal, dual = 0.5 * square_norm + loss, entropy - 0.5 * square_norm
    return ChainDualState(marginals, coef, transition, primal, dual, num_passes)


def _marginals(energy: ChainEnergy) -> ChainMarginalPair:
    found = chain_dp.marginals(energy)
    return ChainMarginalPair(found.nodes[0], found.edges[0])


def _less_degree(length: int) -> Tensor:
    """(length, 1), 1 − the number of neighbours: how often a node's entropy counts beside its edges'."""
    weight = torch.ones(length, 1, dtype=torch.float64)
    weight[:-1] -= 1
    weight[1:] -= 1
    return weight


def _log(probabilities: Tensor) -> Tensor:
    return probabilities.clamp(min=_LEAST).log()
