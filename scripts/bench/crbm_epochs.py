"""CPU seconds of an epoch of each method that trains conditional RBMs, and what the machine allows.

Noisy MNIST, 784 features, 784 visible and 256 hidden units, T = 10 iterations, plain steps; for 50,000
images, scaled up from fewer. "seconds" is an epoch of the tables' own steps, with the tolerance of 1e-2 that
training has by default, and "paper_tol" one with the paper's 1e-3. All from the same weights, those after two
epochs, one after the other with one thread; medians of such rounds.
The floor is the arithmetic alone: of matrix products at the speed of a product of the size of a step's, and
of propagation one division for each message and iteration made (none in the first), at the speed of numpy's
division within the first-level cache; both speeds are measured beside, the iterations counted. Maxima need no
division: none is counted for them.

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

from lmbm_torch.inference.messages.matching import MatchedInference
from lmbm_torch.losses import latent
from reproduce.crbm_epochs import Images, Steps
from reproduce.crbm_problems import METHODS, problem

NUM_HIDDEN, NUM_ITERS, RATE, ALL = 256, 10, 0.05, 50_000
VISIBLE = FEATURES = 784
TOLERANCES = {"seconds": 1e-2, "paper_tol": 1e-3}
processor = partial(seconds, clock=time.process_time)


def measured(method: str, data: Any, batch_size: int, repeats: int) -> dict[str, Any]:
    """Return the row of one method."""
    images = Images.part(data, data.train, torch.device("cpu"))
    options: dict[str, Any] = {"num_steps": 1} | METHODS[method]
    hidden = None if method == "LR" else NUM_HIDDEN
    given = {"learning_rate": RATE, "batch_size": batch_size, "is_centred": False, "seed": 0}
    steps = Steps(images, hidden=hidden, **options, **given, init_std=0.01)
    for number in range(2):
        steps.epoch(number, NUM_ITERS)
    state = steps.state()
    does_infer = hidden is not None and latent.METHODS[options["method"]].num_steps is None
    times: dict[str, list[float]] = {name: [] for name in TOLERANCES}
    for _ in range(repeats):
        for name, tol in TOLERANCES.items():
            if name == "seconds" or does_infer:
                steps.load(**state)
                steps.tol = tol
                times[name].append(processor(lambda: steps.epoch(2, NUM_ITERS)))
    medians = {name: ALL / len(images) * statistics.median(own) for name, own in times.items() if own}
    steps.load(**state)
    iterations = _iterations(steps, images, options["method"]) if does_infer else 0.0
    floor = _floor(method, options, batch_size, iterations)
    return {
        "method": method,
        "batch": batch_size,
        **{name: round(medians[name], 1) if name in medians else "" for name in times},
        "iterations": round(iterations, 2),
        "floor": round(floor, 1),
        "seconds_to_floor": round(medians["seconds"] / floor, 1),
    }


@torch.no_grad()
def _iterations(steps: Steps, images: Images, method: str) -> float:
    """Return the iterations of inference, the mean over the first images."""
    inference = MatchedInference(latent.METHODS[method].routine, NUM_ITERS, tol=TOLERANCES["seconds"])
    found = inference.decode(steps._energy(images.features[:500].float()))
    return float(found.status.num_iters.double().mean())


def _floor(method: str, options: dict[str, Any], batch_size: int, iterations: float) -> float:
    """Return seconds for all images at the machine's own speed."""
    side = 2.0 * ALL * VISIBLE * NUM_HIDDEN
    # Forward and into the weights: features with visible units, and, with hidden ones, features with these,
    # what the labels tell them, and their couplings.
    products = 4.0 * ALL * FEATURES * VISIBLE
    divisions = 0.0
    if method != "LR":
        products += 4.0 * ALL * FEATURES * NUM_HIDDEN + 2 * side
        if method in ("MLE-BP", "MSSVM"):
            divisions = ALL * VISIBLE * NUM_HIDDEN * (iterations - 1)
        elif method == "LSSVM":
            pass
        elif iterations:
            products += side * (2 * iterations + 1)
        else:
            products += side * (2 * options["num_steps"] + 2)
    return products / _product_speed(batch_size) + divisions / _division_speed()


def _product_speed(batch_size: int) -> float:
    """Return operations per second of a product of a batch with weights."""
    one, other = torch.rand(batch_size, FEATURES), torch.rand(FEATURES, VISIBLE)
    taken = min(processor(lambda: [one @ other for _ in range(50)]) for _ in range(7))
    return 50 * 2.0 * batch_size * FEATURES * VISIBLE / taken


def _division_speed() -> float:
    """Return quotients per second of float32."""
    one = np.random.default_rng(0).random(2048, dtype=np.float32) + 1
    out = np.empty_like(one)
    taken = min(processor(lambda: [np.divide(one, one, out=out) for _ in range(2000)]) for _ in range(7))
    return 2000 * one.size / taken


def main() -> None:
    """Measure, print and write."""
    parser = described(__file__, __doc__)
    parser.add_argument("--images", type=int, default=2_000)
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
