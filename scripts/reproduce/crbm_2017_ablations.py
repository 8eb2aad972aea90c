"""Ablations of belief_propagation_in_crbms_2017 (section 6, and its footnote 3), one by one.

For a conditional machine that restores images, trained by maximum likelihood: propagation with damping; tests
with another inference than that of the training; and a Frobenius penalty on the weights, with the weights of
the best epoch and with those of the last. The strength of the penalty is per image. For a machine without
input: the log-likelihood of test images by annealed importance sampling forward, from above, and in reverse,
from below as far as test images are like the machine's samples, for every method that defines a distribution.
Where the two have changed sides, nothing is known. Chains begin with the frequencies of the pixels; each
method chooses its learning rate from the same few by the reverse estimate of the validation images.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from lightning.pytorch import seed_everything

from lmbm_torch.compare.tables import Result
from lmbm_torch.data.datamodule import MultilabelDataModule
from lmbm_torch.inference.messages import matrix_bp, mean_field
from lmbm_torch.inference.messages.matching import MatchedInference
from lmbm_torch.inference.sampling import log_likelihood
from lmbm_torch.models import RestrictedBoltzmannMachine
from lmbm_torch.training.callbacks.display import SeededEpochs
from lmbm_torch.training.callbacks.latent import IterationSchedule
from reproduce import crbm_training
from reproduce.cells import Cell

COLUMNS = {
    "tested_by": "tested by",
    "all": "all pixels, %",
    "changed": "changed pixels, %",
    "validation": "validation, best epoch, %",
    "last_validation": "validation, last epoch, %",
    "lower": "test log-likelihood (nats), annealed in reverse",
    "lower_error": "standard error",
    "lower_size": "chains of an image, effectively",
    "upper": "annealed forward",
    "upper_error": "standard error",
    "upper_size": "chains, effectively",
    "learning_rate": "learning rate",
    "converged": "converged in the last epoch",
    "cpu_seconds": "training (CPU s)",
}
MATCHED = "what trained it"
UNCONDITIONAL = "MNIST, no input"


@dataclass(frozen=True, kw_only=True)
class Ablations(crbm_training.Training):
    """The settings of all ablations.

    Args:
        tasks: problems of restoration, as in the tables.
        learning_rate, batch_size, seed: of all restorations.
        damping: of propagation.
        penalties: strengths of the Frobenius penalty, for each image.
        other_iters: numbers of iterations that the training did not use.
        unconditional: methods that are trained without input.
        unconditional_rates: their learning rates.
        chains, temperatures: of annealed importance sampling; ``chains`` forward, and as many images in
            reverse.
    """

    tasks: Sequence[str]
    learning_rate: float
    batch_size: int
    seed: int
    damping: float
    penalties: Sequence[float]
    other_iters: Sequence[int]
    unconditional: Sequence[str]
    unconditional_rates: Sequence[float]
    chains: int
    temperatures: int


def cells(folder: str, protocol: Mapping[str, Any], **_: Any) -> Iterator[Cell]:
    """Yield restorations first, then the machines without input."""
    settings = Ablations(**protocol)
    for task in settings.tasks:
        for name, (method, options, tests) in _variants(settings).items():
            yield Cell(task, name, partial(_restore, settings, folder, task, method, options, tests))
    for method in settings.unconditional:
        yield Cell(UNCONDITIONAL, method, partial(_learn_distribution, settings, folder, method))


def _variants(settings: Ablations) -> dict[str, tuple[str, dict[str, Any], dict[str, MatchedInference]]]:
    """Return the method, options of its training, and the tests besides the matched one."""
    by_bp = {
        f"belief propagation, {count} iterations": MatchedInference(matrix_bp.marginals, count)
        for count in settings.other_iters
    }
    by_mean_field = {"mean field": MatchedInference(mean_field.marginals, settings.first_iters)}
    variants: dict[str, tuple[str, dict[str, Any], dict[str, MatchedInference]]] = {
        "MLE-BP": ("MLE-BP", {}, {**by_mean_field, **by_bp}),
        f"MLE-BP, damping {settings.damping}": ("MLE-BP", {"damping": settings.damping}, {}),
        "MLE-MF": (
            "MLE-MF",
            {},
            {"belief propagation": MatchedInference(matrix_bp.marginals, settings.first_iters)},
        ),
    }
    for strength in settings.penalties:
        variants[f"MLE-BP, Frobenius {strength:g}"] = "MLE-BP", {"penalty": strength}, {}
    return variants


def _restore(
    settings: Ablations,
    folder: str,
    task: str,
    method: str,
    options: Mapping[str, Any],
    tests: Mapping[str, MatchedInference],
) -> Result:
    """Train and test by the training's inference, then by others."""
    found, module, data = crbm_training.train(
        settings,
        folder,
        task,
        method,
        settings.learning_rate,
        settings.batch_size,
        settings.seed,
        **options,
    )
    rows = {MATCHED: crbm_training.errors(settings, module, data)}
    for name, inference in tests.items():
        module.decoder = inference.decode
        rows[name] = crbm_training.errors(settings, module, data)
    return {**found, "tests": rows}


def _learn_distribution(settings: Ablations, folder: str, method: str) -> Result:
    """Return the machine with the best learning rate on the validation images."""
    runs = [_learn_once(settings, folder, method, rate) for rate in settings.unconditional_rates]
    return max(runs, key=lambda run: run["validation_lower"])


def _learn_once(settings: Ablations, folder: str, method: str, learning_rate: float) -> Result:
    seed_everything(settings.seed, verbose=False)
    # All of each image is covered: nothing is left of the input.
    data = crbm_training.served(settings, folder, "occluded MNIST 28x28", settings.batch_size, settings.seed)
    model = RestrictedBoltzmannMachine(data.num_labels, settings.hidden, init_std=settings.init_std)
    module = crbm_training.module_for(settings, model, method, learning_rate)
    curves = crbm_training.Curves()
    callbacks = [
        SeededEpochs(settings.seed),
        IterationSchedule(settings.first_iters),
        crbm_training.FallingRate(settings.last_rate),
        curves,
    ]
    with crbm_training.quiet():
        trainer = crbm_training.trainer(
            settings,
            max_epochs=settings.epochs_of(method),
            callbacks=callbacks,
            limit_val_batches=0,
            enable_checkpointing=False,
        )
        trainer.fit(module, datamodule=data)
    return {
        **_log_likelihoods(settings, model.cpu(), data),
        "learning_rate": learning_rate,
        "epochs": curves.epochs,
    }


@torch.no_grad()
def _log_likelihoods(
    settings: Ablations, model: RestrictedBoltzmannMachine, data: MultilabelDataModule
) -> dict[str, float]:
    """Return both sides of the means over the test and the validation images, each with its accuracy."""
    energy = model(data.test_set.labels[:1])
    train = data.train_set.labels
    # One more image with each pixel on and one with it off: some pixels are never on.
    frequencies = (train.sum(0, keepdim=True) + 1) / (len(train) + 2)
    found = {}
    for prefix, part in (("validation_", data.validation_set), ("", data.test_set)):
        bounds = log_likelihood.bounds(
            energy,
            part.labels,
            base=frequencies.to(energy.dtype).logit(),
            num_chains=settings.chains,
            num_examples=settings.chains,
            num_temperatures=settings.temperatures,
            generator=torch.Generator().manual_seed(settings.seed),
        )
        for side, estimate in (("lower", bounds.lower), ("upper", bounds.upper)):
            found[f"{prefix}{side}"] = estimate.value
            found[f"{prefix}{side}_error"] = estimate.standard_error
            found[f"{prefix}{side}_size"] = estimate.effective_size
    return found


def summary(results: Sequence[Result]) -> list[Result]:
    """Return one row for each test of a training."""
    rows = []
    for result in results:
        kept = {key: value for key, value in result.items() if key not in ("tests", "epochs")}
        last = result["epochs"][-1]
        kept["converged"] = last.get("train/converged")
        tests = result.get("tests", {None: {}})
        for number, (tested_by, found) in enumerate(tests.items()):
            row = {"data": kept["data"], "method": kept["method"], "tested_by": tested_by, **found}
            if number == 0:
                row |= kept
                if "val/hamming_loss" in last:
                    row["last_validation"] = 100 * last["val/hamming_loss"]
            rows.append(row)
    return rows
