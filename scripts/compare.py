"""Compare every family of models and the usual peers on one multi-label set.

python scripts/compare.py data=scene

Each method gets the same number of settings to choose from, by cross-validation on the training part of each
of several splits. Written are table.csv, table.md and table.png, which `make keep RUN=runs/compare/scene`
copies to results/compare_scene.*. Trials of an earlier call with the same settings are not computed again.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import hydra
from comparisons import trials
from comparisons.methods import METHODS
from hydra.utils import instantiate
from omegaconf import DictConfig
from reproductions.cells import Result, compute, write_tables
from rich.console import Console
from rich.markdown import Markdown
from tables import table, write_text

from lmbm_torch.data import MultilabelData
from lmbm_torch.files import write_figure
from lmbm_torch.viz import interval_plot


@hydra.main(config_path="../conf", config_name="compare", version_base="1.3")
def main(config: DictConfig) -> None:
    data = instantiate(config.data.data)
    settings = trials.Settings(config.splits, config.test_fraction, config.budget, config.folds, config.seed)
    methods = list(METHODS if config.methods is None else config.methods)
    folder, console = Path(config.output), Console()
    with table(folder, config.name):
        compare(data, methods, config.reference, settings, folder, console)
    console.print(f"written to {folder}")


def compare(
    data: MultilabelData,
    methods: list[str],
    reference: str,
    settings: trials.Settings,
    folder: Path,
    console: Console,
) -> list[Result]:
    """Try all methods, print and write the table and the figure; the rows of the table.

    Raises:
        ValueError: what :func:`comparisons.trials.cells` refuses; a reference that is not compared; a folder
            that holds trials of other settings.
    """
    if reference not in methods:
        raise ValueError(f"reference: expected one of the methods {methods}, got {reference!r}")
    cells = list(trials.cells(data, methods, settings))
    _keep_settings(folder / "settings.json", data, settings)
    found = compute(cells, folder, console)
    rows = trials.summary(found, reference, settings)
    text = write_tables(rows, trials.columns(reference), folder, note=settings.protocol())
    console.print(Markdown(text))
    panels = {heading: trials.intervals(rows, key) for key, heading in trials.MEASURES.items()}
    differing = {heading: trials.significant(rows, key) for key, heading in trials.MEASURES.items()}
    figure = interval_plot(panels, reference=reference, differing=differing)
    write_figure(folder / "table.png", figure, dpi=150)
    return rows


def _keep_settings(file: Path, data: MultilabelData, settings: trials.Settings) -> None:
    """Store the settings of the folder's trials; only the number of splits may change."""
    made: dict[str, Any] = {"data": data.sha256(), **asdict(settings)}
    del made["splits"]
    if file.exists():
        before = json.loads(file.read_text(encoding="utf-8"))
        if before != made:
            changed = {key: (before[key], made[key]) for key in made if before[key] != made[key]}
            raise ValueError(
                f"output: expected a folder without trials of other settings, got {file.parent}; "
                f"its settings and these: {changed}"
            )
    write_text(file, json.dumps(made, indent=1))


if __name__ == "__main__":
    main()
