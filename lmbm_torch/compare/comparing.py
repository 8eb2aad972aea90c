"""The comparison of methods on one data set: a folder with trials, a table and a figure."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from lmbm_torch.compare import trials
from lmbm_torch.compare.tables import Result, print_tables, recipe_used, write_tables, write_text
from lmbm_torch.data import MultilabelData
from lmbm_torch.files import write_figure
from lmbm_torch.viz.quality import interval_plot

# Name of the file to which the error of a failed comparison is written.
FAILED = "failed.txt"


def compare(
    data: MultilabelData,
    methods: list[str],
    reference: str,
    settings: trials.Settings,
    folder: Path,
    console: Console,
) -> list[Result]:
    """Try all methods, print and write the table and the figure, and return the rows of the table.

    Instances with missing labels are left out of training and test, because the baselines cannot use missing
    labels; the note above the table gives the number.

    Raises:
        Exception: the error of a trial; afterwards a call with other settings starts from the beginning.
        ValueError: the reference is unknown, the folder holds trials with other settings, or
            :func:`lmbm_torch.compare.trials.check_methods` raises the error.
    """
    if reference not in methods:
        raise ValueError(f"reference: expected one of the methods {methods}, got {reference!r}")
    complete = trials.completely_labelled(data)
    protocol = settings.protocol()
    if missing := data.num_instances - complete.num_instances:
        protocol += f" {missing} of {data.num_instances} instances are left out: they lack labels."
    data = complete
    trials.check_methods(data, methods)
    _keep_settings(folder / "settings.json", data, settings)
    try:
        found = trials.tried(data, methods, settings, folder, console)
    except Exception as error:
        write_text(folder / FAILED, f"{type(error).__name__}: {error}\n")
        raise
    rows = trials.summary(found, reference, settings)
    write_tables(rows, trials.columns(reference), folder, note=protocol)
    print_tables(rows, trials.columns(reference), console)
    console.print(protocol, soft_wrap=True, highlight=False)
    panels = {heading: trials.intervals(rows, key) for key, heading in trials.MEASURES.items()}
    differing = {heading: trials.significant(rows, key) for key, heading in trials.MEASURES.items()}
    figure = interval_plot(panels, reference=reference, differing=differing)
    write_figure(folder / "table.png", figure, dpi=150)
    return rows


def _keep_settings(file: Path, data: MultilabelData, settings: trials.Settings) -> None:
    """Write the settings to the folder of the trials; refuse changes, except for the number of splits.

    If the last comparison has failed, other settings are allowed, and the trials are removed.
    """
    made: dict[str, Any] = {"data": data.sha256(), "recipe": recipe_used(), **asdict(settings)}
    del made["splits"]
    if file.exists():
        before = json.loads(file.read_text(encoding="utf-8"))
        if before != made and (file.parent / FAILED).exists():
            # After a failed comparison the next comparison may use the folder with other settings.
            shutil.rmtree(file.parent / trials.TRIALS, ignore_errors=True)
        elif before != made:
            changed = [key for key in made if before.get(key) != made[key]]
            others = {"data": "of other data", "recipe": "of another training recipe"}
            words = [others.get(key, f"of {key}={before.get(key)} instead of {made[key]}") for key in changed]
            raise ValueError(
                f"output: expected a folder without trials of other settings, got {file.parent}, whose "
                f"trials are {' and '.join(words)}; choose another folder by output=FOLDER"
            )
    (file.parent / FAILED).unlink(missing_ok=True)
    write_text(file, json.dumps(made, indent=1))
