"""Primal and dual values of states, computed again by loops and enumeration from the data alone.

States are those of a few iterations, so that their gaps are open: at the optimum a wrong one would pass.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, pairwise, product

import numpy as np
import pytest
import torch

from lmbm_torch.inference.enumeration import exact
from lmbm_torch.references.structural import statistics
from lmbm_torch.solvers import smo as logistic_smo
from lmbm_torch.solvers.chains import exponentiated_gradient as chain_gradient
from lmbm_torch.solvers.chains import smo as chain_smo
from lmbm_torch.solvers.chains.kernel_problem import ChainKernelProblem
from lmbm_torch.solvers.chains.problems import chain_problem
from lmbm_torch.solvers.gram import PrecomputedGram
from lmbm_torch.solvers.machines import dual_coordinate as machine_coordinate
from lmbm_torch.solvers.machines import proximal_newton
from lmbm_torch.solvers.machines.problem import SharedProblem
from lmbm_torch.solvers.networks import (
    dual_coordinate,
    exponentiated_gradient,
    kernel_dual_coordinate,
    pegasos,
)
from lmbm_torch.solvers.networks.kernel_problems import KernelLabelProblems
from lmbm_torch.solvers.networks.problems import LabelProblems
from lmbm_torch.solvers.smo import MulticlassProblem
from lmbm_torch.solvers.structural import frank_wolfe, smoothing
from lmbm_torch.solvers.structural.label_vectors import LabelMargins, label_vector_problem

C, MARGIN, PENALTY = 3.0, 1.0, 2.0
RANDOM = np.random.default_rng(0)
ROWS, LABELS, STATES = 12, 3, 3
X = RANDOM.normal(size=(ROWS, 4))
Y = (X[:, :LABELS] + RANDOM.normal(size=(ROWS, LABELS)) > 0).astype(float)
WEIGHT = RANDOM.random(ROWS) + 0.5
SPINS, UPPER = 2 * Y - 1, C * WEIGHT
LENGTHS = (3, 2, 4, 1)
START = np.cumsum((0, *LENGTHS))
CLASSES = RANDOM.integers(STATES, size=START[-1])
TOKENS = RANDOM.normal(size=(START[-1], 4))
CHAIN_UPPER = C * WEIGHT[: len(LENGTHS)]


def after(solver, problem, count=2, **settings):
    """A state whose gap is open."""
    state = solver.init(problem)
    for _ in range(count):
        state = solver.update(problem, state, **settings)
    return state


def agree(state, primal, dual):
    """The values of all problems together, and the gap that they make."""
    assert np.sum(state.primal) == pytest.approx(primal, rel=1e-9)
    assert np.sum(state.dual) == pytest.approx(dual, rel=1e-9)
    assert state.gap == pytest.approx((primal - dual) / primal, rel=1e-6)
    assert state.gap > 1e-5


def network_values(duals, features, kernel, scale=1.0):
    """Label by label in the order of the columns; the kernel is that of features and the labels before."""
    primal = dual = 0.0
    for k in range(LABELS):
        joint = kernel + 1 + scale * SPINS[:, :k] @ SPINS[:, :k].T
        signed = duals[k] * SPINS[:, k]
        fields, square = joint @ signed, signed @ joint @ signed
        primal += square / 2 + sum(
            UPPER[row] * max(MARGIN - SPINS[row, k] * fields[row], 0) for row in range(ROWS)
        )
        dual += MARGIN * duals[k].sum() - square / 2
    return primal, dual


@pytest.mark.parametrize(
    ("solver", "count"),
    [(dual_coordinate, 1), (exponentiated_gradient, 2), (pegasos, 2)],
    ids=["dual coordinate", "exponentiated gradient", "pegasos"],
)
def test_networks(solver, count, monkeypatch):
    # A round of few labels by themselves leaves no gap.
    monkeypatch.setattr(dual_coordinate, "WORTH_SHARING", 0)
    problems = LabelProblems.from_labels(X, Y, C=C, sample_weight=WEIGHT, margin=MARGIN)
    state = after(solver, problems, count)
    assert ((state.dual_coef >= 0) & (state.dual_coef <= UPPER * (1 + 1e-12))).all()
    agree(state, *network_values(state.dual_coef, X, X @ X.T))


def test_networks_with_kernels():
    kernel = np.exp(-0.3 * np.square(X[:, None] - X).sum(-1))
    gram = PrecomputedGram(torch.from_numpy(kernel))
    settings = {"C": C, "sample_weight": WEIGHT, "margin": MARGIN, "parent_scale": 0.5}
    problems = KernelLabelProblems.from_labels(gram, Y, **settings)
    state = kernel_dual_coordinate.init(problems, RANDOM.random((LABELS, ROWS)) * UPPER)
    agree(state, *network_values(state.dual_coef, X, kernel, 0.5))


@pytest.mark.parametrize(
    ("solver", "options"),
    [(machine_coordinate, {}), (proximal_newton, {"tol": 0.9})],
    ids=["dual coordinate", "proximal Newton"],
)
def test_machines(solver, options):
    settings = {"C": C, "coupling_penalty": PENALTY, "sample_weight": WEIGHT, "margin": MARGIN}
    problem = SharedProblem.from_labels(X, Y, **settings)
    state = machine_coordinate.init(problem, RANDOM.random((LABELS, ROWS)) * UPPER)
    state = solver.update(problem, state, **options)
    duals = state.dual_coef
    assert ((duals >= 0) & (duals <= UPPER * (1 + 1e-12))).all()
    rows = np.column_stack([X, np.ones(ROWS)])
    unary = np.array([(duals[k] * SPINS[:, k]) @ rows for k in range(LABELS)])
    # A pair's weight is pulled by the margins of both of its labels.
    pairs = np.zeros((LABELS, LABELS))
    for i, j in combinations(range(LABELS), 2):
        pairs[i, j] = pairs[j, i] = (duals[i] + duals[j]) @ (SPINS[:, i] * SPINS[:, j]) / PENALTY
    square = np.square(unary).sum() + PENALTY * np.square(np.triu(pairs)).sum()
    margins = SPINS * (rows @ unary.T + SPINS @ pairs)
    hinge = sum(UPPER[row] * max(MARGIN - each, 0) for row in range(ROWS) for each in margins[row])
    agree(state, square / 2 + hinge, MARGIN * duals.sum() - square / 2)


PAIRS = list(combinations(range(LABELS), 2))
LABELLINGS = [np.array(spins) for spins in product((-1.0, 1.0), repeat=LABELS)]


def structural_problem(C):
    settings = {"C": C, "sample_weight": WEIGHT, "coupling_penalty": PENALTY}
    return label_vector_problem(X, Y, exact.decode, pairs=PAIRS, **settings)


def products(spins):
    return np.array([spins[i] * spins[j] for i, j in PAIRS])


def augmented(weights, couplings, row, spins):
    """Score and loss of a labelling."""
    unary = weights[:, :-1] @ X[row] + weights[:, -1]
    return spins @ unary + products(spins) @ couplings + (spins != SPINS[row]).sum()


def label_primal(weights, couplings, upper=UPPER):
    """The objective, by every labelling."""
    square = np.square(weights).sum() + PENALTY * np.square(couplings).sum()
    hinge = 0.0
    for row, truth in enumerate(SPINS):
        most = max(augmented(weights, couplings, row, each) for each in LABELLINGS)
        hinge += upper[row] * (most - augmented(weights, couplings, row, truth))
    return square / 2 + hinge


def test_structural_machines():
    problem = structural_problem(C)
    state = after(frank_wolfe, problem, 1)
    duals, psi = state.dual_coef, statistics(problem, state.planes)
    width = LABELS * (X.shape[1] + 1)
    total = duals @ psi
    weights, couplings = total[:width].reshape(LABELS, -1), total[width:] / PENALTY
    square = np.square(weights).sum() + PENALTY * np.square(couplings).sum()

    agree(state, label_primal(weights, couplings), duals @ state.planes.loss - square / 2)


# So little that the dual value of the mixture of labellings after a step is above 0.
SMALL = 0.1


def test_structural_machines_by_smoothed_hinges():
    problem = structural_problem(SMALL)
    before = smoothing.init(LabelMargins.of(problem))
    state = smoothing.update(LabelMargins.of(problem), before, num_iters=1)
    assert before.dual < state.dual
    weights, couplings = replace(state.inner, flat=state.temperature * state.inner.flat).weights
    means, total_weights, total_couplings = 0.0, np.zeros_like(weights), np.zeros_like(couplings)
    for row, truth in enumerate(SPINS):
        slopes = [augmented(weights, couplings, row, each) / before.temperature for each in LABELLINGS]
        shares = SMALL * WEIGHT[row] * np.exp(slopes) / np.exp(slopes).sum()
        for share, each in zip(shares, LABELLINGS, strict=True):
            means += share * (each != truth).sum()
            total_weights += share * np.outer(truth - each, [*X[row], 1.0])
            total_couplings += share * (products(truth) - products(each)) / PENALTY
    square = np.square(total_weights).sum() + PENALTY * np.square(total_couplings).sum()
    agree(state, label_primal(*state.weights, SMALL * WEIGHT), means - square / 2)


def chain_values(nodes, pairs):
    """Of marginals, by every labelling of every chain; ``pairs`` are weighted sums over all steps."""
    rows = np.column_stack([TOKENS, np.ones(len(TOKENS))])
    truth, upper = np.eye(STATES)[CLASSES], np.repeat(CHAIN_UPPER, LENGTHS)
    weights = (upper[:, None] * (truth - nodes)).T @ rows
    seen = np.zeros((STATES, STATES))
    chains = [range(first, last) for first, last in pairwise(START)]
    for own, chain in zip(CHAIN_UPPER, chains, strict=True):
        for t in chain[:-1]:
            seen[CLASSES[t], CLASSES[t + 1]] += own
    transition = (seen - pairs) / PENALTY
    dual = -(np.square(weights).sum() + PENALTY * np.square(transition).sum()) / 2
    for own, chain in zip(CHAIN_UPPER, chains, strict=True):
        dual += own * sum(1 - nodes[t, CLASSES[t]] for t in chain)
    return chain_primal(weights, transition), dual


def chain_primal(weights, transition):
    """The objective, by every labelling of every chain."""
    rows = np.column_stack([TOKENS, np.ones(len(TOKENS))])
    primal = (np.square(weights).sum() + PENALTY * np.square(transition).sum()) / 2
    for own, (first, last) in zip(CHAIN_UPPER, pairwise(START), strict=True):
        chain = range(first, last)
        correct = CLASSES[chain]

        def score(labels, chain=chain):
            unary = sum(weights[label] @ rows[t] for label, t in zip(labels, chain, strict=True))
            return unary + sum(transition[each] for each in pairwise(labels))

        most = max(
            (np.array(labels) != correct).sum() + score(labels)
            for labels in product(range(STATES), repeat=len(chain))
        )
        primal += own * (most - score(correct))
    return primal


def chain_kernel_problem():
    settings = {"C": C, "sample_weight": WEIGHT[: len(LENGTHS)], "coupling_penalty": PENALTY}
    return ChainKernelProblem(TOKENS @ TOKENS.T + 1, CLASSES, START, STATES, **settings)


def test_chains_by_sequential_optimisation():
    state = after(chain_smo, chain_kernel_problem(), 1, num_iters=1)
    steps = np.repeat(CHAIN_UPPER, np.array(LENGTHS) - 1)
    agree(state, *chain_values(state.nodes, np.einsum("t,trs->rs", steps, state.edges)))


def test_chains_by_exponentiated_gradients():
    state = after(chain_gradient, chain_kernel_problem(), 1, num_iters=1)
    agree(state, *chain_values(state.nodes, np.einsum("x,xrs->rs", CHAIN_UPPER, state.pairs)))


def test_chains_by_frank_wolfe():
    settings = {"C": C, "sample_weight": WEIGHT[: len(LENGTHS)], "coupling_penalty": PENALTY}
    problem = chain_problem(TOKENS, CLASSES, START, num_states=STATES, **settings)
    state = after(frank_wolfe, problem, 1)
    # The marginals of the duals, a chain's planes being differences from its truth.
    nodes = np.eye(STATES)[CLASSES]
    pairs = np.zeros((STATES, STATES))
    for own, (first, last) in zip(CHAIN_UPPER, pairwise(START), strict=True):
        for t in range(first, last - 1):
            pairs[CLASSES[t], CLASSES[t + 1]] += own
    planes = state.planes
    for p, (dual, chain) in enumerate(zip(state.dual_coef, planes.example, strict=True)):
        for entry in range(planes.start[p], planes.start[p + 1]):
            index, value = planes.index[entry], planes.value[entry]
            if index >= 0:
                nodes[START[chain] + index // STATES, index % STATES] -= dual * value / CHAIN_UPPER[chain]
            else:
                pairs.flat[-1 - index] -= dual * value
    agree(state, *chain_values(nodes, pairs))


def test_logistic_regression():
    kernel = X @ X.T
    targets = np.eye(STATES)[RANDOM.integers(STATES, size=ROWS)]
    parts = map(torch.from_numpy, (kernel, targets, UPPER))
    gram, own, upper = parts
    problem = MulticlassProblem(PrecomputedGram(gram), own, upper)
    state = after(logistic_smo, problem, 1, num_iters=1)
    chances = state.probabilities.numpy()
    coef = UPPER[:, None] * (targets - chances)
    scores = kernel @ coef
    square = (coef * scores).sum()
    primal, dual = square / 2, -square / 2
    for row in range(ROWS):
        total = np.log(np.exp(scores[row]).sum())
        primal += UPPER[row] * (total - targets[row] @ scores[row])
        dual -= UPPER[row] * sum(chance * np.log(chance) for chance in chances[row] if chance > 0)
    agree(state, primal, dual)
