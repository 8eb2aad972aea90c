"""Planes, weights and objectives against dense statistics, and label vectors against their energy's loss."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies.structural import label_problems, random_label_problem, random_words

from lmbm_torch.energies import PairwiseEnergy
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.losses import structured_hinge
from lmbm_torch.references.structural import enumerated_planes, statistics
from lmbm_torch.solvers.structural.label_vectors import label_vector_problem, viterbi
from lmbm_torch.solvers.structural.problems import (
    CuttingPlanes,
    StructuralProblem,
    StructuralWeights,
)


def random_weights(problem, seed=0) -> StructuralWeights:
    random = np.random.default_rng(seed)
    features = random.normal(size=(problem.num_outputs, problem.num_features + 1))
    return StructuralWeights(features, random.normal(size=problem.num_couplings))


def flat(weights: StructuralWeights) -> np.ndarray:
    return np.concatenate([weights.features.ravel(), weights.couplings])


@pytest.mark.parametrize("csr", [False, True])
def test_planes_and_weights_are_their_statistics(csr):
    label_problem = random_label_problem(0, csr=csr, coupling_penalty=3.0)
    cases = [(label_problem, enumerated_planes(label_problem.oracle)), random_words(0, csr=csr)]
    for problem, planes in cases:
        psi = statistics(problem, planes)
        weights = random_weights(problem)
        np.testing.assert_allclose(problem.values(planes, weights), planes.loss - psi @ flat(weights))
        dual_coef = np.random.default_rng(1).random(len(planes))
        made = flat(problem.weights(planes, dual_coef))
        summed = dual_coef @ psi
        summed[problem.num_outputs * (problem.num_features + 1) :] /= problem.coupling_penalty
        np.testing.assert_allclose(made, summed, atol=1e-12)
        sizes = np.diff(problem.start)
        for each, size in enumerate(sizes):
            rows = problem.features[problem.start[each] : problem.start[each + 1]]
            rows = rows.toarray() if csr else rows
            gram = problem.gram[problem.gram_start[each] : problem.gram_start[each + 1]]
            np.testing.assert_allclose(gram.reshape(size, size), rows @ rows.T + 1)


@given(problem=label_problems(), seed=st.integers(0, 100))
def test_primal_is_the_structured_hinge_of_the_energy(problem, seed):
    weights = random_weights(problem, seed)
    oracle = problem.oracle
    pairwise = torch.zeros(problem.num_outputs, problem.num_outputs, dtype=torch.float64)
    pairwise[oracle.first, oracle.second] = torch.from_numpy(weights.couplings)
    energy = PairwiseEnergy(torch.from_numpy(problem.scores(weights)), pairwise + pairwise.mT)
    hinge = structured_hinge(energy, torch.from_numpy(oracle.labels)).numpy()
    found = problem.maximisers(weights)
    np.testing.assert_allclose(found.bound, hinge, atol=1e-9)
    np.testing.assert_allclose(problem.values(found.planes, weights), hinge, atol=1e-9)
    square = np.square(weights.features).sum() + problem.coupling_penalty * np.square(weights.couplings).sum()
    assert problem.primal(weights, found.bound) == pytest.approx(square / 2 + problem.upper @ hinge)


@given(problem=label_problems())
def test_some_examples_maximisers_are_those_of_all(problem):
    weights = random_weights(problem)
    every = problem.maximisers(weights)
    some = np.arange(0, problem.num_examples, 2)
    found = problem.maximisers(weights, some)
    np.testing.assert_allclose(found.bound, every.bound[some])
    np.testing.assert_array_equal(found.planes.index, every.planes.select(some).index)
    np.testing.assert_array_equal(found.planes.example, some)


def test_joined_planes_keep_the_order_within_an_example():
    problem, _ = random_words(0)
    truths = CuttingPlanes.of_truths(np.arange(problem.num_examples))
    found = problem.maximisers(random_weights(problem)).planes
    joined, order = truths.join(found, np.arange(len(truths)), np.arange(len(found)))
    assert joined.example.tolist() == np.repeat(np.arange(problem.num_examples), 2).tolist()
    assert (order[::2] < len(truths)).all()
    again = joined.select(np.arange(1, len(joined), 2))
    np.testing.assert_array_equal(again.index, found.index)
    np.testing.assert_array_equal(again.value, found.value)
    np.testing.assert_array_equal(again.start, found.start)


FEATURES, LABELS = np.ones((2, 1)), np.array([[0, 1], [1, 0]])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": np.array([[0, 1]])}, "labels: expected shape"),
        ({"labels": LABELS + 1}, "labels: expected 0 or 1"),
        ({"pairs": [(0, 2)]}, "pairs: expected different pairs of labels below 2"),
        ({"pairs": [(0, 1), (1, 0)]}, "pairs: expected different pairs"),
        ({"pairs": [(1, 1)]}, "pairs: expected different pairs"),
        ({"C": 0.0}, "C: expected"),
        ({"coupling_penalty": -1.0}, "coupling_penalty: expected"),
        ({"sample_weight": np.array([1.0, -1.0])}, "sample_weight: expected"),
        ({"features": np.full((2, 1), np.nan)}, "features: expected finite values"),
    ],
)
def test_label_vectors_refuse(changes, message):
    arguments = {"features": FEATURES, "labels": LABELS, "decoder": exact.decode, "pairs": [(0, 1)]} | changes
    with pytest.raises(ValueError, match=message):
        label_vector_problem(**arguments)


def test_label_vectors_refuse_what_is_no_decoder():
    with pytest.raises(TypeError, match="decoder: expected a function of an energy, got 'exact'"):
        label_vector_problem(FEATURES, LABELS, "exact", pairs=[])  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("start", [[0], [1, 2], [0, 1], [0, 0, 2], [0, 2, 1, 2]])
def test_rows_refuse_misplaced_starts(start):
    with pytest.raises(ValueError, match="start: expected"):
        StructuralProblem.from_rows(
            FEATURES,
            lambda *_: pytest.fail("no oracle is asked"),
            num_outputs=1,
            num_couplings=0,
            start=start,
        )


def test_viterbi_refuses_couplings_of_distant_labels():
    energy = PairwiseEnergy(torch.zeros(1, 3), torch.ones(3, 3) - torch.eye(3))
    with pytest.raises(ValueError, match="path"):
        viterbi(energy)
    single = viterbi(PairwiseEnergy(torch.tensor([[1.0], [-2.0]]), torch.zeros(1, 1)))
    assert single.labels.tolist() == [[1], [0]]
