"""An epoch of maximum likelihood by belief propagation over noisy MNIST, part by part.

10,000 images, a conditional RBM of 784 features, 784 visible and 256 hidden units, T = 10 iterations, batches
of 100, plain stochastic gradients; every part by the same wall clock. "all iterations" runs all ten on every
image (tol = 0); "until converged" lets an image stop at the paper's tolerance of 1e-3. The floor of
propagation is one division for each message entry and iteration: 784 · 256 · 10 · 10,000 = 2 · 10¹⁰, which
two cores of 3 GHz that divide eight floats in five cycles do in 2 s. The products of features and weights
take 1.6 · 10¹⁰ operations forward and as many backward, under a second.
CPU seconds stand beside the wall clock's, because they tell more where others use the machine too.

python scripts/bench/conditional_rbm.py
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from measuring import described, table, write_csv

from lmbm_torch.data.corruptions import Flip
from lmbm_torch.data.datamodule import MultilabelDataModule
from lmbm_torch.data.images import first_images, mnist, restoration
from lmbm_torch.data.scaling import unscaled
from lmbm_torch.inference.messages import matrix_bp
from lmbm_torch.losses import bethe_negative_log_likelihood
from lmbm_torch.models import ConditionalRBM

NUM_HIDDEN, NUM_ITERS, TARGET_SECONDS = 256, 10, 25.0
TOLERANCES = {"all iterations": 0.0, "until converged": 1e-3}


class Clock:
    """Wall and CPU seconds by the name of a part."""

    def __init__(self) -> None:
        self.wall: dict[str, float] = defaultdict(float)
        self.cpu: dict[str, float] = defaultdict(float)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        self.wall[name] += time.perf_counter() - wall
        self.cpu[name] += time.process_time() - cpu


def epoch(
    data: MultilabelDataModule, model: ConditionalRBM, optimizer: torch.optim.Optimizer, tol: float
) -> Clock:
    """Return one pass over the training images."""
    clock = Clock()
    marginals = partial(matrix_bp.marginals, num_iters=NUM_ITERS, tol=tol)
    batches = iter(data.train_dataloader())
    while True:
        with clock.part("data"):
            batch = next(batches, None)
        if batch is None:
            return clock
        with clock.part("forward products"):
            energy = model(batch.features)
        with clock.part("belief propagation"):
            losses = bethe_negative_log_likelihood(energy, batch.labels, inference=marginals)
        with clock.part("backward"):
            optimizer.zero_grad()
            losses.mean().backward()
        with clock.part("update"):
            optimizer.step()


def main() -> None:
    """Measure, print and write."""
    parser = described(__file__, __doc__)
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--epochs", type=int, default=2, help="the second one is not at the start any more")
    options = parser.parse_args()
    images = first_images(mnist(), options.images, validation=0, test=0)
    data = MultilabelDataModule(restoration(images, Flip(0.1)), scaling=unscaled, batch_size=100)
    rows = []
    for name, tol in TOLERANCES.items():
        generator = torch.Generator().manual_seed(0)
        model = ConditionalRBM(data.num_features, data.num_labels, NUM_HIDDEN, generator=generator)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        # Loads the kernel and starts the threads.
        matrix_bp.marginals(model(torch.from_numpy(data.train_set.features[:2])), num_iters=1)
        for number in range(options.epochs):
            clock = epoch(data, model, optimizer, tol)
            whole = {"whole epoch": (sum(clock.wall.values()), sum(clock.cpu.values()))}
            parts = {part: (wall, clock.cpu[part]) for part, wall in clock.wall.items()}
            for part, (wall, cpu) in {**parts, **whole}.items():
                row = {"variant": name, "epoch": number, "part": part, "wall_seconds": round(wall, 3)}
                rows.append({**row, "cpu_seconds": round(cpu, 3)})
                print(f"{name:16} epoch {number} {part:20} {wall:8.2f} s {cpu:8.2f} CPU s")
    print(f"target: {TARGET_SECONDS} s for 10,000 images; {torch.get_num_threads()} threads")
    print(f"load of the machine in the last minute: {os.getloadavg()[0]:.1f} of {os.cpu_count()} cores")
    with table(options.output, options.name) as folder:
        write_csv(folder / "table.csv", rows)


if __name__ == "__main__":
    main()
