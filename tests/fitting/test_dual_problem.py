"""The problem of a model in the dual: inputs that do not belong to the model are refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lmbm_torch.fitting.dual import dual_problem
from lmbm_torch.models import BoltzmannMachine
from lmbm_torch.solvers.gram import PrecomputedGram


def test_a_machine_with_kernel_values_is_refused():
    gram = PrecomputedGram(torch.eye(4, dtype=torch.float64))
    with pytest.raises(TypeError, match="inputs: expected features for a Boltzmann machine, got Precomputed"):
        dual_problem(BoltzmannMachine(4, 3), gram, np.zeros((4, 3)), C=1.0)
