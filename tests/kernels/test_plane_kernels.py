"""Products and sums of cutting planes are those of dense statistics."""

from __future__ import annotations

import numpy as np
import pytest
from strategies.structural import random_label_problem, random_words

from lmbm_torch.kernels.dual import structural
from lmbm_torch.solvers.base import run
from lmbm_torch.solvers.structural import frank_wolfe


@pytest.mark.parametrize("make", [random_label_problem, lambda seed: random_words(seed)[0]])
def test_planes_are_those_of_dense_statistics(make):
    problem = make(2)
    state = run(frank_wolfe, problem, tol=1e-2, max_iter=20)
    planes, size = state.planes, problem.num_rows * problem.num_outputs
    first = problem.start[planes.example] * problem.num_outputs
    dense = np.zeros((len(planes), size + problem.num_couplings))
    for p, entry in enumerate(zip(planes.start[:-1], planes.start[1:], strict=True)):
        for index, value in zip(planes.index[slice(*entry)], planes.value[slice(*entry)], strict=True):
            dense[p, first[p] + index if index >= 0 else size - 1 - index] = value
    random = np.random.default_rng(0)
    weights, duals = random.normal(size=dense.shape[1]), random.random(len(planes))
    duals[::3] = 0
    found = structural.products(planes, first, weights[:size], weights[size:])
    np.testing.assert_allclose(found, dense @ weights)
    found = structural.sums(planes, first, duals, size, problem.num_couplings)
    np.testing.assert_allclose(found, duals @ dense, atol=1e-12)
    chosen = random.permutation(len(planes))[: len(planes) // 2]
    start = np.append(0, np.diff(planes.start)[chosen].cumsum())
    parts = [slice(planes.start[p], planes.start[p + 1]) for p in chosen]
    entries = {"index": np.empty(start[-1], np.int32), "value": np.empty(start[-1])}
    structural.copy_entries(planes, chosen, start, *entries.values())
    for name, found in entries.items():
        np.testing.assert_array_equal(found, np.concatenate([getattr(planes, name)[part] for part in parts]))
