"""Belief propagation against another library's, where both converge."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from lmbm_torch.energies import BipartiteEnergy
from lmbm_torch.inference.messages import matrix_bp

# Made by the script of the same name.
PGMAX = Path(__file__).parent / "data" / "pgmax_beliefs.npz"


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(
    ("name", "routine"), [("sum", matrix_bp.marginals), ("max", matrix_bp.max_marginals)]
)
def test_beliefs_are_those_of_pgmax(name, routine, dtype):
    with np.load(PGMAX) as stored:
        arrays = {key: torch.from_numpy(stored[key]) for key in stored.files}
    assert arrays[f"{name}_change"] <= 1e-10
    energy = BipartiteEnergy(
        *(arrays[f"{name}_{field}"].to(dtype) for field in ("visible", "hidden", "coupling"))
    )
    came = routine(energy, num_iters=1000, tol=1e-5, damping=0.5)
    assert came.status.converged.all()
    assert not came.status.exact.any()
    for side in ("visible", "hidden"):
        expected = torch.sigmoid(arrays[f"{name}_{side}_log_odds"])
        torch.testing.assert_close(getattr(came, side).double(), expected, rtol=0.0, atol=1e-5)
