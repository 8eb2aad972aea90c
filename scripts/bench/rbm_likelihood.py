"""The test log-likelihood of a restricted Boltzmann machine on MNIST, from above and from below.

500 hidden units, trained on 50,000 images by persistent contrastive divergence as training=pcd does it;
10,000 more choose among learning rates by the lower estimate, and the 10,000 test images are looked at
once. ``--data mnist`` is binarised at 127; of ``--data sampled_mnist`` each pixel is drawn once with its
grey value's probability (Salakhutdinov and Murray 2008): 20 nats harder, so that numbers of one kind say
nothing about the other. Upper: forward annealing from the pixels' frequencies. Lower: reverse annealing
(RAISE) from test images. Beside it scikit-learn's BernoulliRBM, and rbms where it is installed, for as many
CPU seconds, each with the best of its learning rates; all are measured by the same estimates.

python scripts/bench/rbm_likelihood.py --epochs 600
"""

from __future__ import annotations

import importlib.util
import math
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import seed_everything
from measuring import described, show, table, write_csv
from quiet_training import train
from sklearn.neural_network import BernoulliRBM
from torch import Tensor

from lmbm_torch.data import images as readers
from lmbm_torch.data.datamodule import MultilabelDataModule
from lmbm_torch.data.scaling import unscaled
from lmbm_torch.energies import BipartiteEnergy
from lmbm_torch.files import write_figure
from lmbm_torch.inference.common.results import LogLikelihoodBounds
from lmbm_torch.inference.sampling import gibbs, log_likelihood
from lmbm_torch.models import RestrictedBoltzmannMachine
from lmbm_torch.training.callbacks.display import SeededEpochs
from lmbm_torch.training.callbacks.latent import CentredGradients
from lmbm_torch.training.parallel_chains import ParallelChainsModule
from lmbm_torch.training.structured import frobenius
from lmbm_torch.viz.images import image_grid

HIDDEN, BATCH, STRENGTH = 500, 500, 5.0
PEER_RATES = {"scikit-learn": (0.05, 0.01), "rbms": (0.1, 0.02)}
MACHINES = ("lmbm_torch", *PEER_RATES)


def lmbm(data: MultilabelDataModule, rate: float, options: Any) -> tuple[BipartiteEnergy, float]:
    """Return a machine after all epochs, and the CPU seconds that these took."""
    seed_everything(0, verbose=False)
    module = ParallelChainsModule(
        RestrictedBoltzmannMachine(data.num_labels, HIDDEN),
        C=1.0,
        num_chains=options.chains,
        num_replicas=options.replicas,
        penalty=partial(frobenius, strength=STRENGTH),
        optimizer=partial(torch.optim.SGD, lr=rate, fused=True),
        scheduler=partial(torch.optim.lr_scheduler.PolynomialLR, total_iters=options.epochs),
    )
    started = time.process_time()
    train(module, data, [CentredGradients(), SeededEpochs(0)], options.epochs, options.device)
    seconds = time.process_time() - started
    return module.model.cpu()(torch.zeros(1, 0)), seconds


def shuffled(count: int, size: int) -> Iterator[np.ndarray]:
    """Yield rows of batches without end, in a new order every time."""
    generator = np.random.default_rng(0)
    while True:
        order = generator.permutation(count)
        yield from (order[start : start + size] for start in range(0, count - size + 1, size))


def scikit_learn(data: MultilabelDataModule, rate: float, seconds: float) -> BipartiteEnergy:
    """Train BernoulliRBM on batches of 100, as many as the CPU seconds allow."""
    pixels = data.train_set.labels.numpy()
    model = BernoulliRBM(HIDDEN, learning_rate=rate, batch_size=100, random_state=0)
    started = time.process_time()
    for rows in shuffled(len(pixels), 100):
        model.partial_fit(pixels[rows])
        if time.process_time() - started > seconds:
            break
    weights = model.intercept_visible_[None], model.intercept_hidden_[None], model.components_.T
    return BipartiteEnergy(*(torch.from_numpy(np.ascontiguousarray(each)).float() for each in weights))


def rbms(data: MultilabelDataModule, rate: float, seconds: float) -> BipartiteEnergy:
    """Return the steps of rbms' own training with 500 chains, as many as the CPU seconds allow."""
    from rbms.bernoulli_bernoulli.classes import BBRBM  # pyright: ignore[reportMissingImports]
    from rbms.dataset.dataset_class import RBMDataset  # pyright: ignore[reportMissingImports]
    from rbms.training.pcd import fit_batch_pcd  # pyright: ignore[reportMissingImports]

    torch.manual_seed(0)
    pixels = data.train_set.labels.numpy()
    count = len(pixels)
    served = RBMDataset(
        pixels, np.zeros(count), np.ones(count), np.arange(count), "MNIST", is_binary=True, device="cpu"
    )
    model = BBRBM.init_parameters(HIDDEN, served, torch.device("cpu"), torch.float32)
    chains = model.init_chains(BATCH)
    for weights in model.parameters():
        weights.grad = torch.zeros_like(weights)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, maximize=True)
    started = time.process_time()
    with torch.no_grad():
        for rows in shuffled(count, BATCH):
            optimizer.zero_grad(set_to_none=False)
            batch = served.data[rows], served.weights[rows]
            chains, _ = fit_batch_pcd(batch, chains, model, gibbs_steps=1, beta=1.0)
            optimizer.step()
            if time.process_time() - started > seconds:
                break
    return BipartiteEnergy(model.vbias[None], model.hbias[None], model.weight_matrix)


def measured(
    energy: BipartiteEnergy, labels: Tensor, base: Tensor, temperatures: int, options: Any
) -> LogLikelihoodBounds:
    """Return both estimates of the mean over labels."""
    device = torch.device(options.device)
    moved = BipartiteEnergy(
        *(each.detach().to(device) for each in (energy.visible, energy.hidden, energy.coupling))
    )
    return log_likelihood.bounds(
        moved,
        labels.to(device),
        num_chains=options.forward_chains,
        num_temperatures=temperatures,
        num_examples=options.examples,
        chains_per_example=options.chains_per_example,
        base=base.to(device),
        generator=torch.Generator(device).manual_seed(0),
    )


def row(
    data: str, name: str, part: str, rate: float, seconds: float, found: LogLikelihoodBounds
) -> dict[str, Any]:
    """Return a row of the table."""
    sides = {
        f"{side}{of}": round(getattr(getattr(found, side), field), 2)
        for side in ("upper", "lower")
        for of, field in (("", "value"), ("_error", "standard_error"), ("_samples", "effective_size"))
    }
    kept = {"data": data, "machine": name, "part": part, "rate": rate, "training_cpu_seconds": round(seconds)}
    return {**kept, **sides, "gap": round(found.gap, 2)}


def main() -> None:
    """Train, choose, measure and write."""
    parser = described(__file__, __doc__)
    parser.add_argument("--data", default="mnist", choices=("mnist", "sampled_mnist", "digits"))
    parser.add_argument("--epochs", type=int, default=600)
    parser.add_argument("--rates", type=float, nargs="+", default=[0.1])
    parser.add_argument("--chains", type=int, default=BATCH)
    parser.add_argument("--replicas", type=int, default=1, help="above 1: parallel tempering")
    parser.add_argument("--temperatures", type=int, default=20_000, help="of the test's annealing")
    parser.add_argument("--forward-chains", type=int, default=200)
    parser.add_argument("--examples", type=int, default=100, help="of the reverse annealing")
    parser.add_argument("--chains-per-example", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--peer-seconds", type=float, help="by default as many as the machine of lmbm_torch")
    parser.add_argument("--machines", nargs="+", default=list(MACHINES), choices=MACHINES)
    options = parser.parse_args()
    if "lmbm_torch" not in options.machines and options.peer_seconds is None:
        parser.error("--peer-seconds: expected without lmbm_torch among the machines")
    images = readers.digits() if options.data == "digits" else getattr(readers, options.data)()
    data = MultilabelDataModule(readers.alone(images), scaling=unscaled, batch_size=BATCH)
    train = data.train_set.labels
    base = ((train.sum(0, keepdim=True) + 1) / (len(train) + 2)).logit()
    rows: list[dict[str, Any]] = []

    def best(
        name: str, rates: tuple[float, ...], fit: Callable[[float], tuple[BipartiteEnergy, float]]
    ) -> Any:
        """Return the machine of the rate that validates best, measured on the test part too."""
        tried = []
        for rate in rates:
            energy, seconds = fit(rate)
            fewer = max(1, options.temperatures // 10)
            found = measured(energy, data.validation_set.labels, base, fewer, options)
            print(f"{name}, rate {rate}, {seconds:.0f} CPU s: validation {found}", flush=True)
            rows.append(row(options.data, name, "validation", rate, seconds, found))
            tried.append((found.lower.value, rate, seconds, energy))
        # A machine that ran away has no finite estimate.
        _, rate, seconds, energy = max(tried, key=lambda each: -math.inf if math.isnan(each[0]) else each[0])
        found = measured(energy, data.test_set.labels, base, options.temperatures, options)
        print(f"{name}, rate {rate}: test {found}", flush=True)
        rows.append(row(options.data, name, "test", rate, seconds, found))
        return energy, seconds

    energy, budget = None, options.peer_seconds
    if "lmbm_torch" in options.machines:
        rates = tuple(options.rates)
        energy, seconds = best("lmbm_torch", rates, lambda rate: lmbm(data, rate, options))
        budget = budget or seconds
    peers: dict[str, Callable[..., BipartiteEnergy]] = {"scikit-learn": scikit_learn}
    if importlib.util.find_spec("rbms") is not None:
        peers["rbms"] = rbms
    for name in (name for name in options.machines if name in peers):
        best(name, PEER_RATES[name], lambda rate, fit=peers[name]: (fit(data, rate, budget), budget))
    show(rows)
    with table(options.output, options.name) as folder:
        write_csv(folder / "table.csv", rows)
        if energy is not None:
            samples(energy, Path(folder) / "samples.png", images.pixels.shape[1:])


def samples(energy: BipartiteEnergy, path: Path, shape: tuple[int, ...]) -> None:
    """Write an image of P(v = 1 | h) of 64 chains, after 2,000 steps from nothing."""
    start = torch.zeros(64, *energy.visible.shape)
    hidden = gibbs.sample(energy, 2000, init=start, generator=torch.Generator().manual_seed(0)).hidden
    assert hidden is not None
    shown = energy.visible_given_hidden(hidden)[:, 0].unflatten(1, shape)
    write_figure(path, image_grid(shown.detach()))


if __name__ == "__main__":
    main()
