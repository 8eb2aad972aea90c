"""The benefit of a trained encoder: pixels against convolutions, with the same models on the same split.

Every row is an experiment of conf/experiment, trained as ``lmbm train`` would; numbers are means and
standard deviations over the seeds, which decide the starting weights, the order of the batches and, of data
without a validation part, what is held out.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from hydra import compose, initialize_config_dir

from lmbm_torch.cli.configuration import CONFIGURATION
from lmbm_torch.compare.tables import Result
from lmbm_torch.training import runs
from lmbm_torch.training.configured import build
from reproduce.cells import Cell

COLUMNS = {
    "right": "all labels right, %",
    "wrong": "labels wrong, %",
    "weights": "weights",
    "seeds": "seeds",
}
METRICS = {"exact_match": "right", "hamming_loss": "wrong"}
"""Metrics, and the columns that show them."""
QUIET = ("callbacks.progress_bar=null", "trainer.enable_progress_bar=false")


def cells(
    problems: Mapping[str, Mapping[str, Sequence[str]]],
    budgets: Mapping[str, Sequence[str]],
    seeds: Sequence[int],
    **_: object,
) -> Iterator[Cell]:
    """Yield one cell for each problem and row: its name → what ``lmbm train`` is told.

    Args:
        budgets: problem → what it is told in each of the problem's rows besides.
    """
    for problem, rows in problems.items():
        for method, overrides in rows.items():
            yield Cell(problem, method, partial(measure, [*overrides, *budgets.get(problem, ())], seeds))


def summary(results: Sequence[Result]) -> list[Result]:
    """Return the same with means and deviations in percent, for readers."""
    return [
        {
            **result,
            **{
                column: f"{result[name]:.2%} ± {result[f'{name}_deviation']:.2%}".replace("%", "")
                for name, column in METRICS.items()
            },
        }
        for result in results
    ]


def measure(overrides: Sequence[str], seeds: Sequence[int]) -> Result:
    """Train once with each seed: means, and standard deviations of the metrics as ``<name>_deviation``."""
    results = [run([*QUIET, *overrides, f"seed={seed}"]) for seed in seeds]
    means = {name: statistics.mean(each[name] for each in results) for name in results[0]}
    deviations = {
        f"{name}_deviation": statistics.stdev(each[name] for each in results)
        for name in METRICS
        if name in means and len(results) > 1
    }
    return {**means, **deviations, "weights": int(means["weights"]), "seeds": len(results)}


def run(overrides: Sequence[str]) -> dict[str, float]:
    """Return one training: the metrics on the test part, and how many weights were trained."""
    with TemporaryDirectory() as place, initialize_config_dir(CONFIGURATION, version_base="1.3"):
        config = compose("train", overrides=[*overrides, f"paths.run={place}"])
        trainer, module, data = build(config)
        metrics = runs.fit_and_measure(Path(place), trainer, module, data)
    measured = {name: metrics[f"test/{name}"] for name in METRICS if f"test/{name}" in metrics}
    weights = sum(value.numel() for value in module.model.parameters() if value.requires_grad)
    return {**measured, "weights": weights}
