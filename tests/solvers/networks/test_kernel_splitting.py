"""Starts of many networks over one kernel: feasible, near the optimum, the same for any number of threads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from problems.kernels import check_certificate, gram_of
from sklearn.metrics.pairwise import rbf_kernel
from strategies.label_problems import random_inputs

from lmbm_torch.memory import memory_budget
from lmbm_torch.solvers.base import run
from lmbm_torch.solvers.networks import kernel_dual_coordinate, kernel_splitting
from lmbm_torch.solvers.networks.kernel_dual_coordinate import Expansions, KernelState
from lmbm_torch.solvers.networks.kernel_problems import KernelLabelProblems

FEATURES, LABELS = random_inputs(21, 120, 4, 6)
GRAM = gram_of(rbf_kernel(FEATURES, gamma=0.5))
ORDERINGS = [np.random.default_rng(seed).permutation(6) for seed in range(5)]


def network(ordering: Any = None, **settings: Any) -> KernelLabelProblems:
    given: dict[str, Any] = {"C": 4.0, **settings}
    return KernelLabelProblems.from_labels(GRAM, LABELS, ordering=ordering, **given)


def solved(problems: KernelLabelProblems, tol: float = 1e-3) -> tuple[KernelState, Expansions]:
    state = run(kernel_dual_coordinate, problems, tol=tol)
    return state, kernel_dual_coordinate.solution(problems, state)


WEIGHT = np.random.default_rng(0).random((120, 6))
FORMS: dict[str, Any] = {
    "plain": {},
    "small C": {"C": 0.1},
    "large C": {"C": 300.0},
    "scaled parents": {"parent_scale": 0.2, "margin": 2.0},
    "weights of each label": {"sample_weight": WEIGHT},
    "weights": {"sample_weight": np.where(WEIGHT[:, 0] < 0.2, 0.0, WEIGHT[:, 1])},
}


@pytest.mark.parametrize("form", FORMS)
def test_starts_are_feasible_and_near_the_optimum(form):
    settings = FORMS[form]
    found = kernel_splitting.starts(network(**settings), ORDERINGS, tol=1e-3)
    gaps = []
    for ordering in ORDERINGS:
        problems = network(ordering, **settings)
        state = kernel_dual_coordinate.start(problems, found)
        check_certificate(problems, state)
        np.testing.assert_allclose(state.fields, problems.fields(state.weights), atol=1e-9 * problems.C)
        gaps.append(state.gaps)
        ended = run(kernel_dual_coordinate, problems, tol=1e-6, start=state)
        best = run(kernel_dual_coordinate, problems, tol=1e-6)
        np.testing.assert_allclose(ended.primal, best.primal, rtol=2e-6)
    # From zero it is 1. Many duals at large bounds take longer than these few iterations.
    assert np.median(gaps) < (1 if form == "large C" else 0.01)


def test_orderings_of_the_problems_make_no_difference():
    here, there = (
        kernel_splitting.starts(network(ordering), ORDERINGS[:2], tol=1e-3)
        for ordering in (None, [3, 5, 1, 0, 2, 4])
    )
    for one, two in zip(here, there, strict=True):
        np.testing.assert_array_equal(one.parents, two.parents)
        np.testing.assert_allclose(one.dual_coef, two.dual_coef, atol=1e-2)


def test_labels_with_the_parents_of_a_solved_network_take_its_solution():
    _, known = solved(network())
    found = kernel_splitting.starts(
        network(), [np.arange(6), np.array([0, 1, 2, 3, 5, 4])], [known], tol=1e-3
    )
    np.testing.assert_array_equal(found[0].dual_coef, known.dual_coef)
    np.testing.assert_array_equal(found[0].fields, known.fields)
    np.testing.assert_array_equal(found[1].dual_coef[:4], known.dual_coef[:4])
    assert (found[1].dual_coef[4:] != known.dual_coef[4:]).any(1).all()


def test_nothing_depends_on_the_number_of_threads(monkeypatch):
    monkeypatch.setattr(kernel_splitting, "TOGETHER", 4)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            found.append(kernel_splitting.starts(network(), ORDERINGS, tol=1e-3))
    finally:
        torch.set_num_threads(before)
    for one, two in zip(*found, strict=True):
        np.testing.assert_array_equal(one.dual_coef, two.dual_coef)
        np.testing.assert_array_equal(one.fields, two.fields)


def test_rho_is_corrected_by_the_residuals(monkeypatch):
    """At a large C it begins far from what suits."""
    gaps = []
    for factors in (kernel_splitting.CORRECT, (0.0, np.inf)):
        monkeypatch.setattr(kernel_splitting, "CORRECT", factors)
        problems = network(ORDERINGS[0], C=100.0)
        found = kernel_splitting.starts(problems, ORDERINGS[:1], tol=1e-3)
        gaps.append(np.median(kernel_dual_coordinate.start(problems, found).gaps))
    assert gaps[0] < 0.6 * gaps[1]


@pytest.mark.parametrize("values", [np.ones((120, 120)), 1e9 + FEATURES @ FEATURES.T])
def test_none_where_single_precision_holds_no_inverse(values):
    problems = KernelLabelProblems.from_labels(gram_of(values), LABELS)
    assert kernel_splitting.starts(problems, ORDERINGS, tol=1e-3) == []


def test_they_pay_where_steps_on_pairs_are_many():
    problems = network()
    state, _ = solved(problems)
    assert state.steps > 0
    many = replace(state, steps=100 * 120 * 6)
    assert kernel_splitting.pays(problems, many, 9)
    assert not kernel_splitting.pays(problems, many, 0)
    assert not kernel_splitting.pays(problems, replace(state, steps=120), 9)
    assert not kernel_splitting.pays(network(parents=False), many, 9)
    assert not kernel_splitting.pays(network(cliques=[(0, 1, 2)]), many, 9)
    missing = np.where(np.arange(120)[:, None] < 1, np.nan, LABELS)
    assert not kernel_splitting.pays(KernelLabelProblems.from_labels(GRAM, missing), many, 9)
    with memory_budget(2 * 4 * 120**2):
        assert not kernel_splitting.pays(problems, many, 9)
