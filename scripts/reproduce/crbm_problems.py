"""The problems and the methods of belief_propagation_in_crbms_2017, with the errors that the paper reports.

PCD is not in the paper's tables: the paper calls it unsuited and shows no number.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from lmbm_torch.data.corruptions import Flip, Occlude
from lmbm_torch.data.dataset import MultilabelData
from lmbm_torch.data.images import first_images, mnist, restoration, silhouettes

METHODS: dict[str, dict[str, Any]] = {
    "LR": {"method": "mle_mf"},
    "CD-1": {"method": "cd", "num_steps": 1},
    "CD-10": {"method": "cd", "num_steps": 10},
    "PCD-10": {"method": "pcd", "num_steps": 10},
    "CD-PercLoss": {"method": "cd_percloss", "num_steps": 10},
    "MLE-MF": {"method": "mle_mf"},
    "MLE-BP": {"method": "mle_bp"},
    "LSSVM": {"method": "lssvm"},
    "MSSVM": {"method": "mssvm"},
}
"""The paper's names, as arguments of :func:`~lmbm_torch.training.latent.by_method`."""
PAPER: dict[str, dict[str, tuple[float, float]]] = {
    "noisy MNIST 10 %": {
        "LR": (1.960, 12.531),
        "CD-1": (1.925, 12.229),
        "CD-10": (1.816, 11.103),
        "CD-PercLoss": (1.760, 11.121),
        "MLE-MF": (1.862, 11.319),
        "MLE-BP": (1.688, 10.718),
        "LSSVM": (1.807, 11.565),
        "MSSVM": (1.751, 11.023),
    },
    "noisy MNIST 20 %": {
        "LR": (4.088, 12.609),
        "CD-1": (4.012, 12.597),
        "CD-10": (3.995, 11.271),
        "CD-PercLoss": (3.970, 10.876),
        "MLE-MF": (3.917, 10.939),
        "MLE-BP": (3.691, 10.409),
        "LSSVM": (3.910, 11.175),
        "MSSVM": (3.804, 10.627),
    },
    "occluded MNIST 8x8": {
        "LR": (1.468, 61.304),
        "CD-1": (1.814, 63.130),
        "CD-10": (1.707, 67.925),
        "CD-PercLoss": (1.394, 45.684),
        "MLE-MF": (1.492, 49.553),
        "MLE-BP": (1.329, 39.785),
        "LSSVM": (1.496, 44.037),
        "MSSVM": (1.391, 41.829),
    },
    "occluded MNIST 12x12": {
        "LR": (3.498, 53.971),
        "CD-1": (3.983, 58.376),
        "CD-10": (3.921, 63.237),
        "CD-PercLoss": (3.483, 35.755),
        "MLE-MF": (3.477, 40.703),
        "MLE-BP": (3.117, 36.233),
        "LSSVM": (3.468, 39.140),
        "MSSVM": (3.273, 35.712),
    },
    "noisy Caltech 20 %": {
        "LR": (5.653, 11.460),
        "CD-1": (5.876, 12.423),
        "CD-10": (5.736, 12.013),
        "CD-PercLoss": (5.622, 10.808),
        "MLE-MF": (5.617, 11.083),
        "MLE-BP": (5.445, 10.731),
        "LSSVM": (5.628, 11.468),
        "MSSVM": (5.549, 11.389),
    },
    "occluded Caltech 12x12": {
        "LR": (4.771, 16.587),
        "CD-1": (5.033, 20.300),
        "CD-10": (5.149, 21.087),
        "CD-PercLoss": (5.081, 15.102),
        "MLE-MF": (4.692, 15.995),
        "MLE-BP": (4.548, 16.541),
        "LSSVM": (4.703, 16.014),
        "MSSVM": (4.534, 14.918),
    },
}
"""All and Changed of Tables 1, 2 and 3, in percent, by problem and method."""


@cache
def problem(task: str, folder: str, counts: tuple[int | None, int | None, int | None]) -> MultilabelData:
    """Return the data of a task such as ``occluded MNIST 8x8`` or ``noisy Caltech 20 %``."""
    kind, source, amount = task.split(" ", 2)
    images = mnist(folder) if source == "MNIST" else silhouettes(folder)
    corruption = (
        Flip(float(amount.removesuffix(" %")) / 100)
        if kind == "noisy"
        else Occlude(int(amount.partition("x")[0]), value=0 if source == "MNIST" else 1)
    )
    return restoration(first_images(images, *counts), corruption)
