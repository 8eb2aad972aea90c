"""Boltzmann machines for the small data set, and the optimum of their problem by another solver."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import cvxpy
import numpy as np
import pytest
import torch
from sweeps import slow

from lmbm_torch.training.runs import fit_and_measure
from lmbm_torch.training.structured import StructuredModule
from problems.small import (
    NUM_FEATURES,
    NUM_LABELS,
    C,
    KilledError,
    KillInEpoch,
    assert_bitwise_equal,
    last_checkpoint,
    quiet_trainer,
    served,
    small_data,
    weights_of,
)

EPOCHS = 120
CLIQUES = {
    "pairs": {},
    "tied": {"cliques": [(0, 1), (1, 2), (2, 3), (3,)], "groups": [0, 0, 1, 1]},
    "larger": {"cliques": [(0, 1, 2), (3, 2), (1,)], "clique_features": [None, 2, None], "bias": False},
}


every_form = pytest.mark.parametrize("cliques", ["tied", "larger", slow("pairs")])


def decaying(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)


def fast(**options: Any) -> dict[str, Any]:
    """Settings of the gradient route that come close to an optimum within ``EPOCHS``."""
    return {"optimizer": partial(torch.optim.Adam, lr=0.1), "scheduler": decaying, **options}


def convex_optimum(coupling_penalty: float) -> float:
    """½ Σ η w² + C Σ [1 − m]_+ for pairs, by a convex solver that knows the paper alone."""
    data = small_data()
    rows, spins = np.hstack([data.train_features, np.ones((60, 1))]), 2 * data.train_labels - 1
    own = cvxpy.Variable((NUM_FEATURES + 1, NUM_LABELS))
    pairs = cvxpy.Variable((NUM_LABELS, NUM_LABELS), symmetric=True)
    margins = cvxpy.multiply(spins, rows @ own + spins @ pairs)
    # Each pair is one weight, and stands twice in the matrix.
    square = cvxpy.sum_squares(own) + coupling_penalty / 2 * cvxpy.sum_squares(pairs)
    objective = square / 2 + C * cvxpy.sum(cvxpy.pos(1 - margins))
    return cvxpy.Problem(cvxpy.Minimize(objective), [cvxpy.diag(pairs) == 0]).solve(solver=cvxpy.CLARABEL)


def assert_resumes_exactly(folder: Path, build: Callable[[], StructuredModule], epochs: int) -> None:
    """A run that is killed in its third epoch and resumed ends like one that was not."""
    whole, resumed = build(), build()
    quiet_trainer(folder, epochs).fit(whole, datamodule=served(small_data(), 16))
    trainer = quiet_trainer(folder, epochs, last_checkpoint(folder), KillInEpoch(2))
    with pytest.raises(KilledError):
        trainer.fit(build(), datamodule=served(small_data(), 16))
    again = quiet_trainer(folder, epochs, last_checkpoint(folder))
    fit_and_measure(folder, again, resumed, served(small_data(), 16))
    assert_bitwise_equal(weights_of(whole), weights_of(resumed))
    assert whole.fit_report == resumed.fit_report
