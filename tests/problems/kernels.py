"""Kernel values as the solvers read them, and what holds of every state of theirs."""

from __future__ import annotations

import numpy as np
import torch

from lmbm_torch.solvers.gram import PrecomputedGram
from lmbm_torch.solvers.networks.kernel_problems import KernelLabelProblems
from lmbm_torch.solvers.networks.problems import NetworkState


def gram_of(matrix: np.ndarray) -> PrecomputedGram:
    return PrecomputedGram(torch.from_numpy(matrix))


def check_certificate(problems: KernelLabelProblems, state: NetworkState) -> None:
    box = problems.upper * (problems.spins != 0)
    assert (state.dual_coef >= 0).all()
    assert (state.dual_coef <= box).all()
    np.testing.assert_allclose(state.weights, problems.weights(state.dual_coef))
    np.testing.assert_allclose(state.primal, problems.primal(state.weights))
    np.testing.assert_allclose(state.dual, problems.dual(state.dual_coef, state.weights))
    assert (state.dual <= state.primal * (1 + 1e-12)).all()
