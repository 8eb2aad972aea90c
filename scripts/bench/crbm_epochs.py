"""Processor seconds of an epoch of each method that trains conditional RBMs, and what the machine allows.

Noisy MNIST, 784 features, 784 visible and 256 hidden units, T = 10 iterations with the paper's tolerance of
1e-3, plain steps; for 50,000 images, scaled up from fewer. "before" is an epoch of the module and its trainer
(autograd, Lightning), "after" one of the tables' own steps at the paper's protocol; both from the same
weights, after two epochs, one after the other in one process with one thread, and the medians of such pairs.
The floor is the arithmetic alone: of matrix products at the speed of a product of the size of a step's,
measured here, and of propagation one division for each message and iteration made, at the speed of numpy's
division within the first-level cache, measured here too; the iterations are those counted. That of mixed
products would need no division; for maxima there is none, and what is shown are two additions in its place.

python scripts/bench/crbm_epochs.py
"""

from __future__ import annotations

import os
import statistics
import time
from functools import partial
from typing import Any

import numpy as np
import torch
from measuring import described, seconds, show, table, write_csv

from lmbm_torch.data.datamodule import MultilabelDataModule
from lmbm_torch.data.scaling import unscaled
from lmbm_torch.inference.matching import MatchedInference
from lmbm_torch.losses import methods
from lmbm_torch.models import ConditionalRBM
from lmbm_torch.reproductions import crbm_training
from lmbm_torch.reproductions.crbm_epochs import WEIGHTS, Images, Steps
from lmbm_torch.reproductions.crbm_problems import METHODS, problem
from lmbm_torch.training.latent import by_method

NUM_HIDDEN, NUM_ITERS, RATE, ALL = 256, 10, 0.05, 50_000
VISIBLE = FEATURES = 784
processor = partial(seconds, clock=time.process_time)


def measured(method: str, data: Any, batch_size: int, repeats: int) -> dict[str, Any]:
    """The row of one method."""
    images = Images.part(data, data.train, torch.device("cpu"))
    options: dict[str, Any] = {"num_steps": 1} | METHODS[method]
    hidden = None if method == "LR" else NUM_HIDDEN
    given = {"learning_rate": RATE, "batch_size": batch_size, "is_centred": False, "seed": 0}
    steps = Steps(images, hidden=hidden, **options, **given, init_std=0.01)
    for number in range(2):
        steps.epoch(number, NUM_ITERS)
    state = steps.state()
    before, after = [], []
    for number in range(repeats + 1):
        steps.load(**state)
        after.append(processor(lambda number=number: steps.epoch(2 + number, NUM_ITERS)))
        before.append(_epoch_before(method, data, batch_size, state["weights"]))
    scale = ALL / len(images)
    # The first of each compiles.
    medians = {
        name: scale * statistics.median(times[1:]) for name, times in (("before", before), ("after", after))
    }
    steps.load(**state)
    iterations = _iterations(steps, images, options["method"])
    return {
        "method": method,
        "batch": batch_size,
        **{f"cpu_seconds_{name}": round(value, 2) for name, value in medians.items()},
        "ratio": round(medians["before"] / medians["after"], 2),
        "iterations": round(iterations, 2),
        "floor": round(_floor(method, options, batch_size, iterations), 2),
    }


def _epoch_before(method: str, data: Any, batch_size: int, weights: dict[str, torch.Tensor]) -> float:
    """By the module, autograd and Lightning; without validation."""
    served = MultilabelDataModule(data, scaling=unscaled, batch_size=batch_size)
    model = (
        ConditionalRBM.logistic_regression(FEATURES, VISIBLE)
        if method == "LR"
        else ConditionalRBM(FEATURES, VISIBLE, NUM_HIDDEN)
    )
    with torch.no_grad():
        for name in WEIGHTS:
            model.get_parameter(name).copy_(weights[name])
    optimizer = partial(torch.optim.SGD, lr=RATE, fused=True)
    module = by_method(model, **METHODS[method], inference={"num_iters": NUM_ITERS}, optimizer=optimizer)
    trainer = crbm_training.trainer(
        _Accelerator(), max_epochs=1, limit_val_batches=0, enable_checkpointing=False
    )
    with crbm_training.quiet():
        return processor(lambda: trainer.fit(module, datamodule=served))


class _Accelerator:
    accelerator = "cpu"


@torch.no_grad()
def _iterations(steps: Steps, images: Images, method: str) -> float:
    """Of inference, the mean over the first images; 0 for methods that sample."""
    if methods.METHODS[method].num_steps is not None or steps.hidden is None:
        return 0.0
    found = MatchedInference(methods.METHODS[method].routine, NUM_ITERS).decode(
        steps._energy(images.features[:500].float())
    )
    return float(found.status.num_iters.double().mean())


def _floor(method: str, options: dict[str, Any], batch_size: int, iterations: float) -> float:
    """Seconds for all images at the machine's own speed."""
    side = 2.0 * ALL * VISIBLE * NUM_HIDDEN
    # Forward and into the weights: features with visible units, and, with hidden ones, features with these,
    # what the labels tell them, and their couplings.
    products = 4.0 * ALL * FEATURES * VISIBLE
    divisions = 0.0
    if method != "LR":
        products += 4.0 * ALL * FEATURES * NUM_HIDDEN + 2 * side
        if "bp" in options["method"] or "ssvm" in options["method"]:
            divisions = ALL * VISIBLE * NUM_HIDDEN * iterations
        elif iterations:
            products += side * (2 * iterations + 1)
        else:
            products += side * (2 * options["num_steps"] + 2)
    return products / _product_speed(batch_size) + divisions / _division_speed()


def _product_speed(batch_size: int) -> float:
    """Operations per second of a product of a batch with weights."""
    one, other = torch.rand(batch_size, FEATURES), torch.rand(FEATURES, VISIBLE)
    taken = min(processor(lambda: [one @ other for _ in range(50)]) for _ in range(7))
    return 50 * 2.0 * batch_size * FEATURES * VISIBLE / taken


def _division_speed() -> float:
    """Quotients per second of float32."""
    one = np.random.default_rng(0).random(2048, dtype=np.float32) + 1
    out = np.empty_like(one)
    taken = min(processor(lambda: [np.divide(one, one, out=out) for _ in range(2000)]) for _ in range(7))
    return 2000 * one.size / taken


def main() -> None:
    """Measure, print and write."""
    parser = described(__file__, __doc__)
    parser.add_argument("--images", type=int, default=5_000)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[100, 20])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--data", default=os.environ.get("LMBM_DATA"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    data = problem("noisy MNIST 10 %", options.data, (options.images, 0, 0))
    rows = []
    for batch_size in options.batch_sizes:
        for method in METHODS:
            rows.append(measured(method, data, batch_size, options.repeats))
            print(rows[-1], flush=True)
    show(rows)
    print(f"load of the machine in the last minute: {os.getloadavg()[0]:.1f} of {os.cpu_count()} cores")
    with table(options.output, options.name) as folder:
        write_csv(folder / "table.csv", rows)


if __name__ == "__main__":
    main()
