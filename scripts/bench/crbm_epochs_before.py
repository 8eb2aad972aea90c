"""Processor seconds of an epoch by the module and its trainer (autograd, Lightning), for crbm_epochs.py.

Run with the library's folder of another commit in PYTHONPATH, it measures that commit's.

python scripts/bench/crbm_epochs_before.py weights.pt MLE-BP 100 2000 /data
"""

from __future__ import annotations

import logging
import sys
import time
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from lmbm_torch.data.datamodule import MultilabelDataModule
from lmbm_torch.data.scaling import unscaled
from lmbm_torch.models import ConditionalRBM
from lmbm_torch.reproductions import crbm_training
from lmbm_torch.training.latent import by_method

NUM_ITERS, RATE = 10, 0.05


def epoch(weights: dict[str, torch.Tensor], method: str, batch_size: int, data: Any) -> float:
    """One, without validation, from these weights."""
    served = MultilabelDataModule(data, scaling=unscaled, batch_size=batch_size)
    sizes = data.num_features, data.num_labels
    is_alone = method == "LR"
    model = (
        ConditionalRBM.logistic_regression(*sizes)
        if is_alone
        else ConditionalRBM(*sizes, len(weights["hidden_bias"]))
    )
    with torch.no_grad():
        for name, value in weights.items():
            model.get_parameter(name).copy_(value)
    optimizer = partial(torch.optim.SGD, lr=RATE, fused=True)
    inference = {"num_iters": NUM_ITERS}
    module = by_method(model, **crbm_training.METHODS[method], inference=inference, optimizer=optimizer)
    settings: Any = SimpleNamespace(accelerator="cpu")
    options = {"max_epochs": 1, "limit_val_batches": 0, "enable_checkpointing": False}
    with crbm_training.quiet():
        fitting = crbm_training.trainer(settings, **options)
        started = time.process_time()
        fitting.fit(module, datamodule=served)
        return time.process_time() - started


def main() -> None:
    """Print the seconds of a second epoch from the same weights: the first one compiles."""
    file, method, batch_size, images, folder = sys.argv[1:]
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    data = crbm_training.problem("noisy MNIST 10 %", folder, (int(images), 0, 0))
    weights = torch.load(file, weights_only=True)
    print([epoch(weights, method, int(batch_size), data) for _ in range(2)][1])


if __name__ == "__main__":
    main()
