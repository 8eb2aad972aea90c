"""Tempering beside persistent contrastive divergence, and annealing by checkpoints: exact likelihoods.

16 hidden units, whose partition function is enumerated; 10,000 MNIST images, binarised at 127. Machines are
trained by single chains, by as many epochs of chains with replicas at several temperatures, and by single
chains for twice as many epochs, which takes about the seconds of the latter. log Z of the first is estimated
by annealing at several numbers of temperatures: straight from its own biases, straight from the pixels'
frequencies, and from those along machines of earlier epochs. ``error`` is the root mean square of
estimate − exact.

python scripts/bench/rbm_tempering.py
"""

from __future__ import annotations

import math
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from measuring import described, show, table, write_csv
from quiet_training import train
from torch import Tensor

from lmbm_torch.data import images as readers
from lmbm_torch.data.datamodule import MultilabelDataModule
from lmbm_torch.data.scaling import unscaled
from lmbm_torch.energies import BipartiteEnergy
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.inference.sampling import annealed_importance, log_likelihood
from lmbm_torch.models import RestrictedBoltzmannMachine
from lmbm_torch.training.callbacks.display import SeededEpochs
from lmbm_torch.training.callbacks.latent import CentredGradients
from lmbm_torch.training.parallel_chains import ParallelChainsModule

HIDDEN, BATCH, RATE, CHAINS = 16, 500, 0.1, 100


class Checkpoints(Callback):
    """The machine as it is after some of the epochs."""

    def __init__(self, epochs: list[int]) -> None:
        self.epochs = epochs
        self.energies: list[BipartiteEnergy] = []

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.current_epoch + 1 in self.epochs:
            self.energies.append(machine(pl_module))


def machine(module: Any) -> BipartiteEnergy:
    """Return a copy of the energy."""
    energy = module.model(torch.zeros(1, 0))
    return BipartiteEnergy(
        *(each.detach().clone() for each in (energy.visible, energy.hidden, energy.coupling))
    )


def trained(
    data: MultilabelDataModule, epochs: int, replicas: int, seed: int, checkpoints: list[int]
) -> tuple[BipartiteEnergy, list[BipartiteEnergy], float]:
    """Return the machine, those of the checkpoints, and the CPU seconds."""
    seed_everything(seed, verbose=False)
    module = ParallelChainsModule(
        RestrictedBoltzmannMachine(data.num_labels, HIDDEN),
        C=1.0,
        num_chains=BATCH,
        num_replicas=replicas,
        optimizer=partial(torch.optim.SGD, lr=RATE, fused=True),
        scheduler=partial(torch.optim.lr_scheduler.PolynomialLR, total_iters=epochs),
    )
    kept = Checkpoints(checkpoints)
    started = time.process_time()
    train(module, data, [CentredGradients(), SeededEpochs(seed), kept], epochs)
    return machine(module), kept.energies, time.process_time() - started


def paths(
    energy: BipartiteEnergy,
    earlier: list[BipartiteEnergy],
    base: Tensor,
    temperatures: list[int],
    repeats: int,
) -> list[dict[str, Any]]:
    """Return rows of annealing: how far its estimates are from log Z."""
    log_partition = float(exact.log_partition(energy))
    ways: dict[str, dict[str, Any]] = {
        "straight, from the biases": {},
        "straight, from the frequencies": {"base": base},
        "along checkpoints": {"base": base, "path": earlier},
    }
    rows = []
    for count in temperatures:
        for name, way in ways.items():
            started = time.process_time()
            found = [
                annealed_importance.estimate(
                    energy,
                    num_chains=CHAINS,
                    num_temperatures=count,
                    generator=torch.Generator().manual_seed(seed),
                    **way,
                )
                for seed in range(repeats)
            ]
            errors = [float(each.value) - log_partition for each in found]
            rows.append(
                {
                    "path": name,
                    "temperatures": count,
                    "error": round(math.sqrt(sum(each**2 for each in errors) / repeats), 3),
                    "standard_error": round(sum(float(each.standard_error) for each in found) / repeats, 3),
                    "effective_size": round(sum(float(each.effective_size) for each in found) / repeats, 1),
                    "cpu_seconds": round((time.process_time() - started) / repeats, 2),
                }
            )
    return rows


def main() -> None:
    """Train, measure and write."""
    parser = described(__file__, __doc__)
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--temperatures", type=int, nargs="+", default=[100, 300, 1000])
    parser.add_argument("--repeats", type=int, default=20)
    options = parser.parse_args()
    torch.set_num_threads(1)
    images = readers.first_images(readers.mnist(), options.images, 0, None)
    data = MultilabelDataModule(readers.alone(images), scaling=unscaled, batch_size=BATCH)
    labels, test = data.train_set.labels, data.test_set.labels
    base = ((labels.sum(0, keepdim=True) + 1) / (len(labels) + 2)).logit()
    runs = {
        "single chains": (options.epochs, 1),
        f"{options.replicas} replicas": (options.epochs, options.replicas),
        "single chains, longer": (2 * options.epochs, 1),
    }
    earlier = [options.epochs // 8, options.epochs // 4, options.epochs // 2]
    rows, of_paths = [], []
    for name, (epochs, replicas) in runs.items():
        for seed in options.seeds:
            energy, machines, seconds = trained(data, epochs, replicas, seed, earlier)
            sides = {
                part: log_likelihood.bounds(energy, each)
                for part, each in (("train", labels), ("test", test))
            }
            values = {part: round(found.upper.value, 2) for part, found in sides.items()}
            rows.append(
                {"training": name, "epochs": epochs, "seed": seed, **values, "cpu_seconds": round(seconds, 1)}
            )
            print(rows[-1], flush=True)
            if not of_paths:
                of_paths = paths(energy, machines, base, options.temperatures, options.repeats)
                show(of_paths)
    show(rows)
    with table(options.output, options.name) as folder:
        write_csv(folder / "table.csv", rows)
        write_csv(Path(folder) / "paths.csv", of_paths)


if __name__ == "__main__":
    main()
