"""Variations of contrastive divergence in search of why conditional RBMs run away, and of a remedy.

Occluded MNIST, 10,000 images to train with and 2,000 to validate, 256 hidden units. A row is one training:
the validation error in percent at its best and at its last epoch, and the couplings' norm at the end, which
tells how far they have run. "start" is where each step's chains begin: at the labels, at a sample of the
model without hidden units (regression), at the corrupted image (features), or at fair coins (uniform).

    OMP_NUM_THREADS=1 python scripts/bench/contrastive_runs.py [--task "noisy MNIST 10 %"] [--epochs 8]
"""

from __future__ import annotations

import os
import time
from typing import Any

import torch
from measuring import described, show, table, told, write_csv
from torch import Tensor

from lmbm_torch.inference.sampling.gibbs import draw
from reproduce import crbm_epochs
from reproduce.crbm_problems import problem
from reproduce.gradients import gradient

TRAIN, VALIDATION, NUM_HIDDEN, FIRST_ITERS = 10_000, 2_000, 256, 7
# The paper's: the largest rate, the smallest batch of the tables, no penalty.
BASE: dict[str, Any] = {
    "method": "cd",
    "num_steps": 1,
    "start": "labels",
    "learning_rate": 0.05,
    "batch_size": 20,
    "init_std": 0.01,
    "penalty": 0.0,
    "is_centred": False,
}
VARIATIONS: tuple[dict[str, Any], ...] = (
    {},
    {"learning_rate": 0.005, "batch_size": 100},
    {"start": "regression"},
    {"start": "features"},
    {"start": "uniform"},
    {"learning_rate": 0.0005, "batch_size": 100, "epochs": 6},
    {"init_std": 0.0001},
    {"init_std": 0.0001, "penalty": 0.01},
    {"init_std": 0.0001, "penalty": 0.1},
    {"init_std": 0.0001, "penalty": 1.0},
    {"penalty": 0.1},
    {"is_centred": True},
    {"is_centred": True, "init_std": 0.0001},
    {"init_std": 0.0001, "batch_size": 100, "epochs": 16},
    {"init_std": 0.0001, "learning_rate": 0.01},
    {"num_steps": 10},
    {"num_steps": 10, "init_std": 0.0001},
    {"num_steps": 10, "penalty": 0.1, "epochs": 5},
    {"num_steps": 10, "start": "regression", "epochs": 5},
    {"num_steps": 10, "start": "regression", "penalty": 0.1, "epochs": 5},
    {"method": "cd_percloss", "num_steps": 10, "start": "regression", "penalty": 0.1, "epochs": 5},
    {
        "method": "cd_percloss",
        "num_steps": 10,
        "start": "regression",
        "learning_rate": 0.01,
        "epochs": 4,
    },
    {
        "method": "cd_percloss",
        "num_steps": 10,
        "start": "regression",
        "learning_rate": 0.01,
        "penalty": 0.1,
        "epochs": 4,
    },
)


class Started(crbm_epochs.Steps):
    """Steps of contrastive divergence with chains that start anywhere, and steps of CD-PercLoss.

    Args:
        images: to train with.
        start: of the chains.
        options: see :class:`~reproduce.crbm_epochs.Steps`.
    """

    def __init__(self, images: crbm_epochs.Images, *, start: str, **options: Any) -> None:
        super().__init__(images, hidden=NUM_HIDDEN, seed=0, **options)
        self.start = start

    def _gradient(self, rows: Tensor, num_iters: int) -> tuple[Tensor, Any, Tensor, Any]:
        if self.method != "cd":
            return super()._gradient(rows, num_iters)
        features, labels = self.images.batch(rows)
        energy = self._energy(features)
        starts = {
            "labels": lambda: labels,
            "regression": lambda: draw(torch.sigmoid(energy.visible)),
            "features": lambda: features,
            "uniform": lambda: draw(torch.full_like(labels, 0.5)),
        }
        chains = starts[self.start]()
        return (
            features,
            energy,
            labels,
            gradient("pcd", energy, labels, num_steps=self.num_steps, chains=chains),
        )


def trained(task: str, images: list[crbm_epochs.Images], *, epochs: int, **own: Any) -> dict[str, Any]:
    """Return the row of one variation."""
    train, validation = images
    settings = BASE | own
    steps, errors, started = Started(train, **settings), [], time.process_time()
    for epoch in range(epochs):
        steps.epoch(epoch, FIRST_ITERS + epoch)
        errors.append(100 * crbm_epochs.error(steps.restored(validation, FIRST_ITERS + epoch), validation))
    best = min(errors)
    return {
        "problem": task,
        **settings,
        "epochs": epochs,
        "best": round(best, 2),
        "best_epoch": 1 + errors.index(best),
        "last": round(errors[-1], 2),
        "coupling_norm": round(float(steps.model.coupling.norm()), 1),
        "cpu_seconds": round(time.process_time() - started),
    }


def main() -> None:
    parser = described(__file__, __doc__)
    parser.add_argument("--task", default="occluded MNIST 8x8")
    parser.add_argument("--epochs", type=int, default=8)
    args = parser.parse_args()
    data = problem(args.task, os.environ["LMBM_DATA"], (TRAIN, VALIDATION, 0))
    parts = [
        crbm_epochs.Images.part(data, rows, torch.device("cpu")) for rows in (data.train, data.validation)
    ]
    rows = []
    with table(args.output, args.name) as folder:
        for variation in VARIATIONS:
            rows.append(told(trained(args.task, parts, **{"epochs": args.epochs} | variation)))
            write_csv(folder / "table.csv", rows)
    show(rows)


if __name__ == "__main__":
    main()
