"""A step of persistent contrastive divergence beside the same step by hand, in plain PyTorch.

500 hidden units on 784 visible ones, batches of 500 and 500 chains. By hand: the matrix products (of data
and chains with the coupling in one, of the chains' way down, two of statistics), the random numbers and
centred steps, without a trainer and without autograd. "products alone" are those products and nothing else.
Epochs of the three alternate; processor and wall seconds of the median one. "bfloat16" lets products round
their factors, by torch.set_float32_matmul_precision("medium").

python scripts/bench/rbm_steps.py
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from lightning.pytorch import Callback
from measuring import described, show, table, told, write_csv
from quiet_training import train
from torch import Tensor

from lmbm_torch.data.datamodule import MultilabelDataModule
from lmbm_torch.data.images import BinaryImages, alone
from lmbm_torch.data.scaling import unscaled
from lmbm_torch.models import RestrictedBoltzmannMachine
from lmbm_torch.training.callbacks.latent import CentredGradients
from lmbm_torch.training.parallel_chains import ParallelChainsModule
from lmbm_torch.training.structured import frobenius

VISIBLE, HIDDEN, BATCH, RATE, DECAY = 784, 500, 500, 0.05, 1e-4
Seconds = tuple[float, float]


class ByHand:
    """Centred persistent contrastive divergence, written out."""

    def __init__(self, data: Tensor) -> None:
        self.data = data
        self.mean = data.mean(0, keepdim=True)
        self.hidden_mean = torch.full((1, HIDDEN), 0.5)
        self.coupling = 0.01 * torch.randn(VISIBLE, HIDDEN)
        self.visible, self.hidden = torch.zeros(1, VISIBLE), torch.zeros(1, HIDDEN)
        self.chains = data[:BATCH].clone()

    def epoch(self) -> None:
        for rows in torch.randperm(len(self.data)).split(BATCH):
            self.step(self.data[rows])

    def step(self, labels: Tensor) -> None:
        states = torch.cat([labels, self.chains])
        positive, negative = torch.addmm(self.hidden, states, self.coupling).sigmoid_().split(BATCH)
        by_coupling = (labels.mT @ positive).addmm_(self.chains.mT, negative, alpha=-1) / BATCH
        by_visible = (labels - self.chains).mean(0, keepdim=True)
        by_hidden = (positive - negative).mean(0, keepdim=True)
        by_coupling -= by_visible.mT * self.hidden_mean + self.mean.mT * by_hidden
        self.hidden_mean.lerp_(positive.mean(0, keepdim=True), 0.04)
        drawn = torch.rand(BATCH, HIDDEN).lt_(negative)
        fields = torch.addmm(self.visible, drawn, self.coupling.mT)
        self.chains = torch.rand(BATCH, VISIBLE).lt_(fields.sigmoid_())
        self.coupling.mul_(1 - RATE * DECAY).add_(by_coupling, alpha=RATE)
        self.visible.add_(by_visible - self.hidden_mean @ by_coupling.mT, alpha=RATE)
        self.hidden.add_(by_hidden - self.mean @ by_coupling, alpha=RATE)

    def products(self) -> None:
        """Compute the five matrix products of an epoch's steps."""
        labels, hidden = self.data[:BATCH], torch.rand(BATCH, HIDDEN)
        for _ in range(len(self.data) // BATCH):
            torch.mm(torch.cat([labels, self.chains]), self.coupling)
            torch.mm(hidden, self.coupling.mT)
            torch.mm(labels.mT, hidden)
            torch.mm(self.chains.mT, hidden)


class Timed(Callback):
    """Processor and wall seconds of each epoch."""

    def __init__(self) -> None:
        self.seconds: list[Seconds] = []

    def on_train_epoch_start(self, *_: Any) -> None:
        self.started = time.process_time(), time.perf_counter()

    def on_train_epoch_end(self, *_: Any) -> None:
        ended = time.process_time(), time.perf_counter()
        self.seconds.append((ended[0] - self.started[0], ended[1] - self.started[1]))


def library(images: BinaryImages, repeats: int) -> list[Seconds]:
    """Return seconds of epochs by the library's trainer, without the first."""
    data = MultilabelDataModule(alone(images), scaling=unscaled, batch_size=BATCH)
    module = ParallelChainsModule(
        RestrictedBoltzmannMachine(VISIBLE, HIDDEN),
        C=1.0,
        num_chains=BATCH,
        penalty=partial(frobenius, strength=DECAY * len(data.train_rows)),
        optimizer=partial(torch.optim.SGD, lr=RATE, fused=True),
    )
    timed = Timed()
    train(module, data, [CentredGradients(), timed], 1 + repeats)
    return timed.seconds[1:]


def timed(work: Callable[[], None]) -> Seconds:
    """Return processor and wall seconds of one call."""
    started = time.process_time(), time.perf_counter()
    work()
    return time.process_time() - started[0], time.perf_counter() - started[1]


def main() -> None:
    """Measure, print and write."""
    parser = described(__file__, __doc__)
    parser.add_argument("--images", type=int, default=25_000)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    torch.manual_seed(0)
    pixels = (torch.rand(options.images, 28, 28) < 0.13).to(torch.uint8).numpy()
    rows = torch.arange(options.images).numpy()
    images = BinaryImages("noise", pixels, rows, rows[:0], rows[:0])
    by_hand = ByHand(torch.from_numpy(pixels).flatten(1).float())
    steps, table_rows = options.images // BATCH, []
    for threads in (1, 2):
        for precision in ("highest", "medium"):
            torch.set_num_threads(threads)
            torch.set_float32_matmul_precision(precision)
            found: dict[str, list[Seconds]] = {"products alone": [], "by hand": [], "lmbm_torch": []}
            for _ in range(options.repeats):
                found["products alone"].append(timed(by_hand.products))
                found["by hand"].append(timed(by_hand.epoch))
                found["lmbm_torch"] += library(images, 1)
            least = statistics.median(cpu for cpu, _ in found["by hand"])
            for name, seconds in found.items():
                cpu, wall = (statistics.median(times) for times in zip(*seconds, strict=True))
                row = {
                    "threads": threads,
                    "products": "float32" if precision == "highest" else "bfloat16",
                    "step": name,
                    "cpu_milliseconds": round(1000 * cpu / steps, 2),
                    "wall_milliseconds": round(1000 * wall / steps, 2),
                    "by_hand_times": round(cpu / least, 2),
                }
                table_rows.append(told(row))
    show(table_rows)
    with table(options.output, options.name) as folder:
        write_csv(folder / "table.csv", table_rows)


if __name__ == "__main__":
    main()
