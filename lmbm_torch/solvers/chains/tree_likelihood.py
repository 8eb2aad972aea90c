"""Conditional random fields of trees, linear or with a kernel, trained in the dual over marginals.

    min_w ½‖w‖² + Σ_i C_i (−log p(y_i | x_i)),   max_μ −½‖w‖² + Σ_i C_i H(μ_i),
    w = Σ_i C_i (statistics of y_i − expected statistics under μ_i),

where μ_i are the node and edge marginals of a distribution over a tree's labellings. The distribution has the
tree's product form, so the entropy is Σ_edges H + Σ_nodes (1 − neighbours) H, and the duality gap is Σ_i C_i
KL(μ_i ‖ p_i) (dual_optimization_conditional_models_2006, Section 4.2, with the tree entropy in place of
Equation 18). A chain is a tree.

The duals of one tree after another are improved; every step raises the dual value. Joint probabilities are
never needed: if probability moves between two labellings, as in the paper, the product form is lost, but a
product-form distribution with the resulting marginals exists and has an even larger entropy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from scipy.optimize import brentq
from torch import Tensor

from lmbm_torch.checks import check_count, check_finite, check_shape
from lmbm_torch.energies.tree import TreeEnergy, check_parents
from lmbm_torch.inference.trees import tree_dp
from lmbm_torch.shapes import Float, Int
from lmbm_torch.solvers.base import SolverState
from lmbm_torch.solvers.gram import Gram

# Number of moves between two labellings in each step of a tree: D in Algorithm 1.
PAIR_STEPS = 10
# Least probability in logarithms, which stay finite even if a probability underflows to 0.
_LEAST = 1e-300
_HALVINGS = 40
# Largest share of a labelling's probability that a move takes: at 0, the entropy's slope would be infinite.
_NEARLY_ALL = 1 - 1e-9
# Least difference between two labellings' slopes for a move; below, no move raises the dual.
_SETTLED = 1e-12


@dataclass(frozen=True, eq=False)
class TreeLikelihood:
    """The training problem of tree-structured conditional random fields, with all trees' nodes concatenated.

    score(y) = Σ_t ⟨w_{y_t}, φ(x_t)⟩ + Σ_t transition_{y_parent, y_t}; transitions are penalised like all
    weights.

    Args:
        gram: kernel values between nodes, float64; ⟨x_t, x_t'⟩ for a linear model.
        labels: int64, 0 … ``num_states`` − 1.
        parents: int64, the parent of each node, counted from the tree's first node; −1 for a root.
        sizes: int64, number of nodes of each tree, at least one.
        upper: the weight C_i of each tree's loss, float64, above zero.
        num_states: the number of states.

    Raises:
        ValueError: ``sizes`` do not sum to the number of nodes; a parent comes after its child; a label is no
            state; a weight is not above zero.
    """

    gram: Gram
    labels: Int[Tensor, " nodes"]
    parents: Int[Tensor, " nodes"]
    sizes: Int[Tensor, " trees"]
    upper: Float[Tensor, " trees"]
    num_states: int

    def __post_init__(self) -> None:
        check_count("num_states", self.num_states)
        check_shape("labels", self.labels, self.gram.num_instances)
        check_shape("parents", self.parents, self.gram.num_instances)
        check_shape("sizes", self.sizes, None)
        total, smallest = int(self.sizes.sum()), int(self.sizes.min())
        if smallest < 1 or total != len(self.labels):
            raise ValueError(
                f"sizes: expected at least 1 each, {len(self.labels)} in all, got {smallest} and {total}"
            )
        for tree, span in enumerate(self.spans):
            check_parents(f"parents of tree {tree}", self.parents[span])
        least, largest = int(self.labels.min()), int(self.labels.max())
        if not 0 <= least <= largest < self.num_states:
            raise ValueError(f"labels: expected 0 to {self.num_states - 1}, got {least} to {largest}")
        check_shape("upper", self.upper, len(self.sizes))
        check_finite("upper", self.upper)
        if bool((self.upper <= 0).any()):
            raise ValueError(f"upper: expected values above 0, got {float(self.upper.min())}")

    @classmethod
    def of_chains(
        cls,
        gram: Gram,
        labels: Int[Tensor, " positions"],
        lengths: Int[Tensor, " chains"],
        upper: Float[Tensor, " chains"],
        num_states: int,
    ) -> TreeLikelihood:
        """Build the problem of chains, in which each position is the parent of the next position."""
        parents = torch.cat([torch.arange(-1, length - 1, device="cpu") for length in lengths.tolist()])
        return cls(gram, labels, parents, lengths, upper, num_states)

    @property
    def spans(self) -> list[slice]:
        """Return for each tree the slice of the tree's nodes."""
        ends = self.sizes.cumsum(0).tolist()
        return [slice(end - size, end) for end, size in zip(ends, self.sizes.tolist(), strict=True)]


@dataclass(frozen=True, eq=False)
class TreeBelief:
    """The marginals μ of a tree: of nodes, and of pairs of a node and its parent (0 at roots)."""

    parents: Int[Tensor, " nodes"]
    nodes: Float[Tensor, "nodes states"]
    edges: Float[Tensor, "nodes states states"]

    @classmethod
    def of(cls, energy: TreeEnergy) -> TreeBelief:
        """Return the marginals of a single tree's energy."""
        found = tree_dp.marginals(energy)
        assert found.edges is not None  # of trees
        return cls(energy.parents, found.states[0], found.edges[0])

    def entropy(self) -> float:
        """Return the entropy H(μ) of the tree-structured distribution with these marginals."""
        nodes = self.less_degree * torch.special.entr(self.nodes)
        return float(torch.special.entr(self.edges).sum() + nodes.sum())

    def energy(self) -> TreeEnergy:
        """Return the energy with the marginals μ: log-probabilities of roots, and of nodes given parents."""
        is_root = self.parents < 0
        unary = torch.where(is_root[:, None], _log(self.nodes), 0.0)
        tables = _log(self.edges) - _log(self.nodes[self.parents])[:, :, None]
        return TreeEnergy(unary[None], tables.masked_fill(is_root[:, None, None], 0)[None], self.parents)

    @classmethod
    def certain(
        cls, parents: Int[Tensor, " nodes"], labels: Int[Tensor, " nodes"], states: int
    ) -> TreeBelief:
        """Return the marginals of the distribution with all probability on one labelling."""
        nodes = torch.nn.functional.one_hot(labels, states).double()
        edges = nodes[parents][:, :, None] * nodes[:, None]
        return cls(parents, nodes, edges.masked_fill(parents[:, None, None] < 0, 0))

    def __sub__(self, other: TreeBelief) -> TreeBelief:
        """Return the difference between two sets of marginals of the same tree."""
        return replace(self, nodes=self.nodes - other.nodes, edges=self.edges - other.edges)

    def moved(self, change: TreeBelief, share: float) -> TreeBelief:
        """Return the marginals plus ``share`` of a change."""
        return replace(self, nodes=self.nodes + share * change.nodes, edges=self.edges + share * change.edges)

    @property
    def less_degree(self) -> Float[Tensor, "nodes 1"]:
        """Return 1 minus the number of neighbours: the coefficient of each node's entropy."""
        of_children = self.parents[self.parents >= 0]
        degree = (
            (self.parents >= 0)
            .double()
            .index_add(0, of_children, torch.ones(len(of_children), device="cpu").double())
        )
        return 1 - degree[:, None]


@dataclass(frozen=True, eq=False)
class TreeDualState(SolverState):
    """The dual variables, the weights, and the primal and dual values.

    Args:
        beliefs: the marginals μ_i of each tree.
        coef: C_i (t_i − μ_i) at every node; kernel values times ``coef`` give unaries.
        transition: weights of the transitions.
        primal: the objective at the weights of the duals.
        dual: the dual value, never above the optimum.
        num_iters: the number of passes made over the trees.
    """

    beliefs: tuple[TreeBelief, ...]
    coef: Float[Tensor, "nodes states"]
    transition: Float[Tensor, "states states"]
    primal: float
    dual: float
    num_iters: int


@dataclass(frozen=True, eq=False)
class TreeBlock:
    """The part of the dual that depends on one tree's marginals.

    Args:
        gram: kernel values among the nodes.
        unary: scores of the nodes at the current weights.
        transition: scores of the edges at the current weights.
        upper: the weight C_i of the tree's loss.
        current: the tree's marginals μ_i.
    """

    gram: Float[Tensor, "nodes nodes"]
    unary: Float[Tensor, "nodes states"]
    transition: Float[Tensor, "states states"]
    upper: float
    current: TreeBelief

    @property
    def model(self) -> TreeEnergy:
        """Return the energy of the tree's distribution p_i under the current weights."""
        return TreeEnergy(self.unary[None], self.transition, self.current.parents)

    def score(self, change: TreeBelief) -> float:
        """Return the expected score ⟨w, expected statistics⟩ for marginals, or for a change of marginals."""
        return float((self.unary * change.nodes).sum() + (self.transition * change.edges.sum(0)).sum())

    def square_norm(self, change: TreeBelief) -> float:
        """Return the squared norm of the expected statistics under a change of marginals."""
        nodes = (change.nodes * (self.gram @ change.nodes)).sum()
        return float(nodes + change.edges.sum(0).square().sum())

    def gain(self, other: TreeBelief) -> float:
        """Return the increase of the dual value if the marginals change from μ_i to ``other``."""
        change = other - self.current
        step = self.upper * (self.score(change) + (other.entropy() - self.current.entropy()))
        return step - 0.5 * self.upper**2 * self.square_norm(change)

    def best_share(self, change: TreeBelief, largest: float) -> float:
        """Return the step length along a change from μ_i that gives the largest dual."""
        slope, curvature = self.score(change), self.upper * self.square_norm(change)
        nodes, edges = self.current.less_degree * change.nodes, change.edges

        def derivative(share: float) -> float:
            """Return the derivative of the dual divided by C_i; decreasing in ``share``."""
            at = self.current.moved(change, share)
            entropy = (edges * _log(at.edges)).sum() + (nodes * _log(at.nodes)).sum()
            return slope - share * curvature - float(entropy)

        if derivative(0.0) <= 0:
            return 0.0
        if derivative(largest) >= 0:
            return largest
        found: Any = brentq(derivative, 0.0, largest, xtol=1e-14 * largest)
        return found

    def after(self, belief: TreeBelief) -> TreeBlock:
        """Return the block after a change of the tree's marginals to ``belief``."""
        change = belief - self.current
        unary = self.unary - self.upper * (self.gram @ change.nodes)
        transition = self.transition - self.upper * change.edges.sum(0)
        return replace(self, unary=unary, transition=transition, current=belief)


Step = Callable[[TreeBlock], TreeBelief]
"""Function of a tree's block that returns new marginals, at which the dual value is not lower."""


def line_search_step(block: TreeBlock) -> TreeBelief:
    """Return the best marginals on the line from μ_i to the model's marginals."""
    change = TreeBelief.of(block.model) - block.current
    return block.current.moved(change, block.best_share(change, 1.0))


def pair_step(block: TreeBlock) -> TreeBelief:
    """Move probability ``PAIR_STEPS`` times between the most violating pair of labellings (Algorithm 1).

    The slope of a labelling is score(y) − log μ_i(y), so dynamic programming finds both labellings of the
    pair. A labelling can lose at most the least of its marginals.
    """
    for _ in range(PAIR_STEPS):
        current = block.current
        own = current.energy()
        slopes = TreeEnergy(block.unary[None] - own.unary, block.transition - own.transition, own.parents)
        most = tree_dp.decode(slopes)
        least = tree_dp.decode(TreeEnergy(-slopes.unary, -slopes.transition, slopes.parents))
        if float(most.objective + least.objective) <= _SETTLED:
            break
        gaining, losing = (
            TreeBelief.certain(own.parents, found.labels[0], own.num_states) for found in (most, least)
        )
        change = gaining - losing
        giving = torch.cat([current.nodes[change.nodes < 0], current.edges[change.edges < 0]])
        share = block.best_share(change, _NEARLY_ALL * float(giving.min()))
        block = block.after(current.moved(change, share))
    return block.current


def exponentiated_step(block: TreeBlock) -> TreeBelief:
    """Return the marginals of μ_i^{1−η} p_i^η, normalised, for the first η of 1, ½, ¼ … to raise the dual.

    Source: Collins, Globerson, Koo, Carreras and Bartlett, "Exponentiated gradient algorithms for conditional
    random fields and max-margin Markov networks", JMLR 9, 2008.
    """
    own, model = block.current.energy(), block.model
    rate = 1.0
    for _ in range(_HALVINGS):
        unary = (1 - rate) * own.unary + rate * model.unary
        tables = (1 - rate) * own.transition + rate * model.transition
        found = TreeBelief.of(TreeEnergy(unary, tables, own.parents))
        if block.gain(found) > 0:
            return found
        rate /= 2
    return block.current


def init(problem: TreeLikelihood) -> TreeDualState:
    """Return the state at uniform distributions over labellings."""
    states, beliefs = problem.num_states, []
    for span in problem.spans:
        parents = problem.parents[span]
        flat = torch.zeros(1, len(parents), states, dtype=torch.float64, device="cpu")
        beliefs.append(TreeBelief.of(TreeEnergy(flat, flat.new_zeros(states, states), parents)))
    return _certified(problem, tuple(beliefs), num_iters=0)


def update(
    problem: TreeLikelihood, state: TreeDualState, *, step: Step = line_search_step, seed: int = 0
) -> TreeDualState:
    """Make one pass over all trees in random order, then compute the primal and dual values again.

    Args:
        step: :func:`line_search_step`, :func:`pair_step` or :func:`exponentiated_step`.
        seed: seed of the order of the trees.

    Raises:
        ValueError: ``state.coef`` has another shape than the problem.
    """
    check_shape("state.coef", state.coef, len(problem.labels), problem.num_states)
    beliefs, spans = list(state.beliefs), problem.spans
    coef, transition = state.coef.clone(), state.transition.clone()
    for tree in np.random.default_rng((seed, state.num_iters)).permutation(len(spans)).tolist():
        span, upper, current = spans[tree], float(problem.upper[tree]), beliefs[tree]
        rows = problem.gram.rows(span)
        beliefs[tree] = step(TreeBlock(rows[:, span], rows @ coef, transition, upper, current))
        change = beliefs[tree] - current
        coef[span] -= upper * change.nodes
        transition = transition - upper * change.edges.sum(0)
    return _certified(problem, tuple(beliefs), state.num_iters + 1)


def _certified(problem: TreeLikelihood, beliefs: tuple[TreeBelief, ...], num_iters: int) -> TreeDualState:
    """Compute the weights, the primal and the dual value at given marginals from all kernel values."""
    states, spans = problem.num_states, problem.spans
    coef = torch.empty(len(problem.labels), states, dtype=torch.float64, device="cpu")
    transition = torch.zeros(states, states, dtype=torch.float64, device="cpu")
    for span, upper, each in zip(spans, problem.upper, beliefs, strict=True):
        missing = TreeBelief.certain(each.parents, problem.labels[span], states) - each
        coef[span] = upper * missing.nodes
        transition += upper * missing.edges.sum(0)
    square_norm, loss, entropy = float(transition.square().sum()), 0.0, 0.0
    for span, upper, each in zip(spans, problem.upper.tolist(), beliefs, strict=True):
        unary = problem.gram.rows(span) @ coef
        energy = TreeEnergy(unary[None], transition, each.parents)
        square_norm += float((coef[span] * unary).sum())
        loss += upper * float(tree_dp.log_partition(energy) - energy.score(problem.labels[span][None]))
        entropy += upper * each.entropy()
    primal, dual = 0.5 * square_norm + loss, entropy - 0.5 * square_norm
    return TreeDualState(beliefs, coef, transition, primal, dual, num_iters)


def _log(probabilities: Tensor) -> Tensor:
    return probabilities.clamp(min=_LEAST).log()
