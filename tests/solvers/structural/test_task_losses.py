"""Other losses and slack rescaling: loss-augmented decoding by hand, and the optimum of a convex solver."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from sklearn.metrics import f1_score
from strategies.structural import random_label_problem

from lmbm_torch.inference import decode
from lmbm_torch.inference.relaxations import lp_relaxation
from lmbm_torch.references.structural import enumerated_planes, structural_primal
from lmbm_torch.solvers.base import run
from lmbm_torch.solvers.structural import frank_wolfe
from lmbm_torch.solvers.structural import label_vectors as task_losses
from lmbm_torch.solvers.structural.label_vectors import LabelVectorOracle, TaskLossOracle

COSTS = np.random.default_rng(9).uniform(0.1, 3, (12, 3))
CASES = [
    ("hamming", "slack", None),
    ("hamming", "slack", COSTS),
    ("hamming", "margin", COSTS),
    ("zero_one", "margin", None),
    ("zero_one", "slack", None),
    ("f1", "margin", None),
    ("f1", "slack", None),
]


def delta(loss: str, costs: np.ndarray | None, truth: np.ndarray, other: np.ndarray) -> float:
    if loss == "zero_one":
        return float((truth != other).any())
    if loss == "f1":
        return 1.0 - f1_score(truth, other, zero_division=1.0)
    return float(((truth != other) * (1 if costs is None else costs)).sum())


def problem_of(loss, rescaling, costs, seed=0, **settings):
    problem = random_label_problem(seed, **settings)
    assert isinstance(problem.oracle, LabelVectorOracle)
    return replace(problem, oracle=TaskLossOracle(replace(problem.oracle, costs=costs), loss, rescaling))


def violations(problem, scores, couplings, example) -> dict[tuple[int, ...], float]:
    """Every labelling's, by the definitions."""
    oracle, truth = problem.oracle, problem.oracle.labels[example]

    def score(labels):
        spins = 2 * np.array(labels) - 1
        pairs = zip(oracle.vectors.first, oracle.vectors.second, couplings, strict=True)
        return spins @ scores[example] + sum(v * spins[i] * spins[j] for i, j, v in pairs)

    costs = None if oracle.vectors.costs is None else oracle.vectors.costs[example]
    found = {}
    for labels in product((0, 1), repeat=len(truth)):
        loss, excess = delta(oracle.loss, costs, truth, np.array(labels)), score(labels) - score(truth)
        found[labels] = loss + excess if oracle.rescaling == "margin" else loss * (1 + excess)
    return found


def answered(problem, seed=0):
    """The oracle's answers at random scores: planes, bounds and what they should be."""
    random = np.random.default_rng(seed)
    scores, couplings = (
        random.normal(size=problem.oracle.labels.shape),
        random.normal(size=problem.num_couplings),
    )
    found = problem.oracle(scores, couplings, np.arange(problem.num_examples))
    best = [
        max(violations(problem, scores, couplings, example).values())
        for example in range(problem.num_examples)
    ]
    return found, np.array(best), scores, couplings


@pytest.mark.parametrize(("loss", "rescaling", "costs"), CASES)
def test_decoding_is_that_of_enumeration(monkeypatch, loss, rescaling, costs):
    problem = problem_of(loss, rescaling, costs)
    monkeypatch.setattr(task_losses, "SCORES_AT_ONCE", 40)
    found, best, scores, couplings = answered(problem)
    np.testing.assert_allclose(found.bound, best, atol=1e-12)
    # And the planes are of labellings that reach it: loss − ⟨w, ψ⟩.
    planes, values = found.planes, found.planes.loss.copy()
    for p in range(len(planes)):
        for place, value in zip(
            *(part[planes.plane == p] for part in (planes.index, planes.value)), strict=True
        ):
            values[p] -= value * (scores[p, place] if place >= 0 else couplings[-1 - place])
    np.testing.assert_allclose(values, best, atol=1e-12)


@pytest.mark.parametrize("decoder", [decode, lp_relaxation.decode])
def test_the_best_labelling_beside_the_truth_is_decoded(monkeypatch, decoder):
    monkeypatch.setattr(task_losses, "MOST_LABELS", 2)
    problem = problem_of("zero_one", "margin", None, decoder=decoder)
    if decoder is lp_relaxation.decode:
        with pytest.raises(ValueError, match="decoder: expected whole labellings"):
            answered(problem)
        return
    # Where the truth is the best labelling, and where not.
    found, best, scores, couplings = answered(problem, seed=3)
    others = [
        max(v for k, v in violations(problem, scores, couplings, example).items() if k != tuple(truth))
        for example, truth in enumerate(problem.oracle.labels)
    ]
    np.testing.assert_allclose(found.bound, others, atol=1e-9)
    assert (found.planes.loss == 1).all()
    assert (best > np.array(others) + 1e-9).any()


@pytest.mark.parametrize(("loss", "rescaling", "costs"), CASES)
def test_training_reaches_the_optimum_of_every_plane(loss, rescaling, costs):
    problem = problem_of(loss, rescaling, costs, C=0.7, coupling_penalty=2.0)
    state = run(frank_wolfe, problem, tol=1e-5, max_iter=3000)
    assert state.gap <= 1e-5
    oracle = problem.oracle
    planes = enumerated_planes(oracle)
    losses = [
        delta(loss, None if costs is None else costs[example], oracle.labels[example], np.array(y))
        for example in range(problem.num_examples)
        for y in product((0, 1), repeat=3)
    ]
    np.testing.assert_allclose(planes.loss, losses, atol=1e-12)
    assert state.primal == pytest.approx(structural_primal(problem, planes).primal, rel=1e-4)


@pytest.mark.parametrize(
    ("loss", "rescaling", "costs", "labels", "message"),
    [
        ("f2", "margin", None, 3, "loss: expected one of"),
        ("f1", "both", None, 3, "rescaling: expected one of"),
        ("f1", "margin", COSTS, 3, "costs: expected None with the loss 'f1'"),
        ("f1", "margin", None, 15, "loss: expected 'zero_one', or 'hamming' with the margin rescaled"),
        ("hamming", "slack", None, 15, "loss: expected 'zero_one', or 'hamming' with the margin rescaled"),
    ],
)
def test_what_cannot_be_decoded_is_refused(loss, rescaling, costs, labels, message):
    with pytest.raises(ValueError, match=message):
        problem_of(loss, rescaling, costs, num_labels=labels)
