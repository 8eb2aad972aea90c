"""The compiled sweeps over chains against their plain references."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lmbm_torch.backends.dual.compiled import chain_gradient, chain_pairs
from lmbm_torch.backends.dual.plain import chain_gradient as numpy_chain_gradient
from lmbm_torch.backends.dual.plain import chain_pairs as numpy_chain_smo
from lmbm_torch.energies import ChainEnergy
from lmbm_torch.inference import chain_dp
from lmbm_torch.solvers.base import run
from lmbm_torch.solvers.chains import exponentiated_gradient, smo
from lmbm_torch.solvers.chains.kernel_problem import ChainKernelProblem


def random_problem(seed):
    random = np.random.default_rng(seed)
    start = np.concatenate([[0], random.integers(1, 6, 8).cumsum()])
    rows = random.normal(size=(start[-1], 3))
    labels = random.integers(0, 4, start[-1])
    weight = np.where(random.random(8) < 0.8, 1.0, 0.0)
    return ChainKernelProblem(1 + rows @ rows.T, labels, start, 4, C=2.0, sample_weight=weight)


@pytest.fixture(params=["smo", "gradient"])
def solver(request):
    """A solver, and its compiled and plain kernels."""
    if request.param == "smo":
        return smo, (chain_pairs, numpy_chain_smo)
    return exponentiated_gradient, (chain_gradient, numpy_chain_gradient)


@pytest.mark.parametrize("seed", range(4))
def test_compiled_and_plain_sweeps_agree(monkeypatch, solver, seed):
    solver, kernels = solver
    problem = random_problem(seed)
    begun = solver.update(problem, solver.init(problem), num_iters=5)
    # After a step to the best length two labellings are equally good, and rounding chooses the next.
    monkeypatch.setattr(smo, "STEPS_PER_VISIT", 1)
    found = []
    for each in kernels:
        monkeypatch.setattr(solver, "kernels", lambda *_, each=each: each)
        found.append(solver.update(problem, begun, num_iters=1))
    np.testing.assert_allclose(found[1].nodes, found[0].nodes, atol=1e-8)
    assert found[1].dual == pytest.approx(found[0].dual, rel=1e-9)
    assert found[1].dual > begun.dual


def test_compiled_and_plain_smo_reach_one_optimum(monkeypatch):
    problem = random_problem(5)
    values = []
    for each in (chain_pairs, numpy_chain_smo):
        monkeypatch.setattr(smo, "kernels", lambda *_, each=each: each)
        values.append(run(smo, problem, tol=1e-6, max_iter=2000).primal)
    assert values[1] == pytest.approx(values[0], rel=2e-6)


@pytest.mark.parametrize("scale", [1.0, 100.0, 1e4])
def test_marginals_of_log_potentials_however_far_apart(scale):
    random = np.random.default_rng(6)
    log_nodes, log_pairs = scale * random.normal(size=(6, 4)), scale * random.normal(size=(4, 4))
    nodes, pairs = np.empty_like(log_nodes), np.empty_like(log_pairs)
    chain_gradient.chain_marginals(log_nodes, log_pairs, nodes, pairs)
    energy = ChainEnergy(torch.from_numpy(log_nodes)[None], torch.from_numpy(log_pairs))
    expected = chain_dp.marginals(energy)
    for found in ((nodes, pairs), numpy_chain_gradient._marginals(log_nodes, log_pairs)):
        np.testing.assert_allclose(found[0], expected.nodes[0], atol=1e-9)
        np.testing.assert_allclose(found[1], expected.edges[0].sum(0), atol=1e-9)
