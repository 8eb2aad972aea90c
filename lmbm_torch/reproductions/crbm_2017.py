"""Tables 1 to 3 and Figures 3 and 4 of belief_propagation_in_crbms_2017: image restoration by nine methods.

Every method gets the same learning rates, batch sizes and penalties, and chooses by the validation error of
its best epoch, with early stopping: first the rate, at the first batch size and penalty, then the batch size
at that rate, then the penalty.
The other seeds (of the initial weights, the order of the instances and Gibbs sampling; never of the
corruption or the split) use the same choice, and the test part is measured at the best epoch. The points of
Figure 3 beyond the tables are computed with the first seed only.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from lmbm_torch.files import write_figure
from lmbm_torch.reproductions import crbm_training
from lmbm_torch.reproductions.cells import Cell, Result
from lmbm_torch.reproductions.crbm_problems import PAPER
from lmbm_torch.viz.comparisons import error_curves, method_bars

COLUMNS = {
    "all": "all pixels, % (paper)",
    "changed": "changed pixels, % (paper)",
    "learning_rate": "learning rate",
    "batch_size": "batch",
    "penalty": "penalty",
    "epoch": "best epochs",
    "cpu_seconds": "training (CPU s)",
}
CHOSEN = ("learning_rate", "batch_size", "penalty")


@dataclass(frozen=True, kw_only=True)
class Protocol(crbm_training.Training):
    """The settings of all tables.

    Args:
        tasks: problems, keys of PAPER or occlusions of MNIST of other sizes.
        methods: in the order of the computation.
        curve: methods and occluded tasks of Figure 3.
        learning_rates, batch_sizes, seeds: see the module.
        penalties: strengths of the Frobenius penalty, for each image.
    """

    tasks: Sequence[str]
    methods: Sequence[str]
    curve: Mapping[str, Sequence[str]]
    learning_rates: Sequence[float]
    batch_sizes: Sequence[int]
    penalties: Sequence[float]
    seeds: Sequence[int]


def cells(folder: str, protocol: Mapping[str, Any], **_: Any) -> Iterator[Cell]:
    """The runs of each method on each task: the first setting of all, then the second, …, then more seeds.

    So a computation that is cut short has spent as much on every method. Figure 3 comes last.
    """
    settings = Protocol(**protocol)
    pairs = [(task, method) for method in settings.methods for task in settings.tasks]
    curve = [(task, method) for method in settings.curve["methods"] for task in settings.curve["tasks"]]
    chains = [_runs(settings, folder, *pair, settings.seeds) for pair in pairs]
    for step in zip(*chains, strict=True):
        yield from step
    for pair in curve:
        if pair not in pairs:
            yield from _runs(settings, folder, *pair, settings.seeds[:1])


def _runs(settings: Protocol, folder: str, task: str, method: str, seeds: Sequence[int]) -> Iterator[Cell]:
    """The runs of one method on one task, each with the results of the runs before it."""
    first_seed, *seeds = seeds
    first_size, *sizes = settings.batch_sizes
    first_penalty, *penalties = settings.penalties
    plan: list[dict[str, Any]] = [
        {"learning_rate": rate, "batch_size": first_size, "penalty": first_penalty, "seed": first_seed}
        for rate in settings.learning_rates
    ]
    plan += [{"batch_size": size, "seed": first_seed} for size in sizes]
    plan += [{"penalty": penalty, "seed": first_seed} for penalty in penalties]
    plan += [{"seed": seed} for seed in seeds]
    before = None
    for own in plan:
        name = f"{method}: " + ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in own.items())
        yield Cell(task, name, partial(_next_run, settings, folder, task, method, own), after=before)
        before = name


def _next_run(
    settings: Protocol,
    folder: str,
    task: str,
    method: str,
    own: Mapping[str, Any],
    before: Result | None = None,
) -> Result:
    runs = [] if before is None else [*before["runs"]]
    chosen = _best(runs) if runs else {}
    choice = {key: own.get(key, chosen.get(key)) for key in (*CHOSEN, "seed")}
    return {"learner": method, "runs": [*runs, {**choice, **run(settings, folder, task, method, **choice)}]}


def _best(runs: Sequence[Result]) -> Result:
    """The run of least validation error."""
    return min(runs, key=lambda each: each["validation"])


def run(
    settings: Protocol,
    folder: str,
    task: str,
    method: str,
    learning_rate: float,
    batch_size: int,
    penalty: float,
    seed: int,
) -> Result:
    """Train once, and measure at the best epoch; errors in percent."""
    found, module, data = crbm_training.train(
        settings, folder, task, method, learning_rate, batch_size, seed, penalty
    )
    return {**found, **crbm_training.errors(settings, module, data)}


def summary(results: Sequence[Result]) -> list[Result]:
    """One row for each method: its settings, and mean ± standard deviation over the seeds."""
    last = {(result["data"], result["learner"]): result["runs"] for result in results}
    rows = []
    for (task, method), runs in last.items():
        chosen = _best([each for each in runs if each["seed"] == runs[0]["seed"]])
        kept = [each for each in runs if all(each[key] == chosen[key] for key in CHOSEN)]
        paper = PAPER.get(task, {}).get(method, (None, None))
        rows.append(
            {
                "data": task,
                "method": method,
                "all": _spread([each["all"] for each in kept]),
                "paper_all": paper[0],
                "changed": _spread([each["changed"] for each in kept]),
                "paper_changed": paper[1],
                **{key: chosen[key] for key in CHOSEN},
                # Tables round numbers to three decimals.
                "penalty": f"{chosen['penalty']:g}",
                "epoch": ", ".join(str(each["epoch"]) for each in kept),
                **{key: statistics.mean(each[key] for each in kept) for key in ("seconds", "cpu_seconds")},
                "validation": statistics.mean(each["validation"] for each in kept),
                "mean_all": statistics.mean(each["all"] for each in kept),
                "seeds": len(kept),
            }
        )
    return rows


def _spread(values: Sequence[float]) -> str:
    deviation = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.3f}{deviation}"


def draw(results: Sequence[Result], folder: Path) -> None:
    """The tables as bars, beside those of the paper, and Figures 3 and 4."""
    rows = summary(results)
    for task in dict.fromkeys(row["data"] for row in rows):
        own = [row for row in rows if row["data"] == task]
        figure = method_bars(
            [row["method"] for row in own],
            {"ours": [row["mean_all"] for row in own], "paper": [row["paper_all"] for row in own]},
            title=task,
            label="error over all pixels (%)",
        )
        write_figure(folder / f"{_slug(task)}.png", figure, dpi=150)
    _draw_figure_3(rows, folder)
    _draw_figure_4(results, folder)


def _draw_figure_3(rows: Sequence[Result], folder: Path) -> None:
    lines: dict[str, dict[float, float]] = {}
    for row in rows:
        if row["data"].startswith("occluded MNIST"):
            size = int(row["data"].rpartition("x")[2])
            lines.setdefault(row["method"], {})[size] = row["mean_all"]
    lines = {method: line for method, line in lines.items() if len(line) > 1}
    if lines:
        figure = error_curves(
            lines, x_label="side of the patch (pixels)", y_label="error over all pixels (%)"
        )
        write_figure(folder / "figure_3.png", figure, dpi=150)


def _draw_figure_4(results: Sequence[Result], folder: Path) -> None:
    """For the chosen run with the first seed; the paper's figure shows the occlusion of 8 × 8."""
    lines: dict[str, dict[float, float]] = {}
    for result in results:
        if result["learner"] == "MLE-BP":
            first = [each for each in result["runs"] if each["seed"] == result["runs"][0]["seed"]]
            epochs = _best(first)["epochs"]
            lines[result["data"]] = {
                number: 100 * epoch["train/converged"] for number, epoch in enumerate(epochs, 1)
            }
    if lines:
        figure = error_curves(lines, x_label="epoch", y_label="training images with converged BP (%)")
        write_figure(folder / "figure_4.png", figure, dpi=150)


def _slug(task: str) -> str:
    return task.lower().replace(" %", "").replace(" ", "_")
