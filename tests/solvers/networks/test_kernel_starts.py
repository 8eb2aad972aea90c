"""What solutions of other problems over the same kernel values are worth: held-out fields, and starts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from problems.kernels import check_certificate, gram_of
from sklearn.metrics.pairwise import rbf_kernel
from strategies.label_problems import random_inputs

from lmbm_torch.memory import memory_budget
from lmbm_torch.solvers.base import run
from lmbm_torch.solvers.networks import kernel_dual_coordinate
from lmbm_torch.solvers.networks.kernel_problems import KernelLabelProblems


def independent(missing: float = 0.0) -> KernelLabelProblems:
    features, labels = random_inputs(14, 90, 4, 3, missing=missing)
    gram = gram_of(rbf_kernel(features, gamma=0.5))
    return KernelLabelProblems.from_labels(gram, labels, C=4.0, parents=False, ordering=[2, 0, 1])


@pytest.mark.parametrize("memory", [2**20, 90**2 * 4, 4000], ids=["others", "whole", "parts"])
@pytest.mark.parametrize("missing", [0.0, 0.2])
def test_held_out_fields_are_those_of_a_fit_to_the_other_folds(memory, missing):
    problems = independent(missing)
    folds = np.array_split(np.random.default_rng(0).permutation(90), 4)
    with memory_budget(memory):
        found = kernel_dual_coordinate.held_out(problems, folds, tol=1e-7)
    for fold in folds:
        upper = problems.upper.copy()
        upper[fold] = 0
        fitted = run(kernel_dual_coordinate, replace(problems, upper=upper), tol=1e-9)
        np.testing.assert_allclose(found[fold], fitted.fields[fold], atol=5e-3)


def test_labels_with_parents_are_not_held_out():
    features, labels = random_inputs(14, 20, 4, 3)
    problems = KernelLabelProblems.from_labels(gram_of(rbf_kernel(features)), labels)
    with pytest.raises(ValueError, match="problems: expected labels without parents"):
        kernel_dual_coordinate.held_out(problems, [np.arange(20)], tol=0.1)


@pytest.mark.parametrize("C", [4.0, 1.0])
def test_another_ordering_starts_where_the_last_one_ended(C):
    features, labels = random_inputs(15, 90, 4, 4)
    gram = gram_of(rbf_kernel(features, gamma=0.5))
    first = KernelLabelProblems.from_labels(gram, labels, C=4.0, ordering=[3, 1, 0, 2])
    solved = run(kernel_dual_coordinate, first, tol=1e-8)
    known = kernel_dual_coordinate.solution(first, solved)
    again = kernel_dual_coordinate.start(first, [known])
    np.testing.assert_allclose(again.primal, solved.primal, rtol=1e-9)
    second = KernelLabelProblems.from_labels(gram, labels, C=C, ordering=[0, 1, 2, 3], parent_scale=2.0)
    begun = kernel_dual_coordinate.start(second, [known])
    check_certificate(second, begun)
    warm = run(kernel_dual_coordinate, second, tol=1e-7, start=begun)
    expected = run(kernel_dual_coordinate, second, tol=1e-7)
    np.testing.assert_allclose(warm.primal, expected.primal, rtol=1e-6)


def test_labels_start_where_their_parents_differ_least():
    features, labels = random_inputs(15, 90, 4, 4)
    gram = gram_of(rbf_kernel(features, gamma=0.5))
    known, solved = [], []
    for ordering in ([0, 1, 2, 3], [3, 2, 1, 0]):
        problems = KernelLabelProblems.from_labels(gram, labels, ordering=ordering)
        state = run(kernel_dual_coordinate, problems, tol=1e-8)
        solved.append(state)
        known.append(kernel_dual_coordinate.solution(problems, state))
    third = KernelLabelProblems.from_labels(gram, labels, ordering=[0, 1, 3, 2])
    begun = kernel_dual_coordinate.start(third, known)
    np.testing.assert_array_equal(begun.dual_coef, known[0].dual_coef[third.ordering])
    np.testing.assert_allclose(begun.primal[:2], solved[0].primal[:2], rtol=1e-9)
    fourth = KernelLabelProblems.from_labels(gram, labels, ordering=[2, 3, 1, 0])
    begun = kernel_dual_coordinate.start(fourth, known)
    np.testing.assert_array_equal(begun.dual_coef[2:], known[1].dual_coef[[1, 0]])
    check_certificate(fourth, begun)
