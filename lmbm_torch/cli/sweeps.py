"""A summary at the end of a sweep: overrides and metrics of all jobs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from lmbm_torch.files import METRICS

if TYPE_CHECKING:
    from rich.table import Table

MEASURES = (
    *("val/exact_match", "val/hamming_loss", "val/sample_f1"),
    *("test/exact_match", "test/hamming_loss", "test/sample_f1", "fit/objective", "fit/gap"),
)


class Summary(Callback):
    """A Hydra callback that prints number, overrides and metrics of each job of a sweep.

    Overrides that are equal in all jobs are left out. If a job has failed, the sweep ends with status 1.
    """

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        """Print the tables after all jobs."""
        from rich.console import Console

        folder, jobs = Path(config.hydra.sweep.dir), jobs_of(config.hydra.overrides.task)
        found = [metrics_of(folder / str(number)) for number in range(len(jobs))]
        console = Console()
        console.print(str(folder), soft_wrap=True, highlight=False, markup=False)
        for table in tables(jobs, found, console.width):
            console.print(table)
        ended = [(folder / str(number) / METRICS).is_file() for number in range(len(jobs))]
        if failed := [str(number) for number, has_ended in enumerate(ended) if not has_ended]:
            console.print(f"failed: job {', '.join(failed)}", soft_wrap=True, highlight=False)
            sys.exit(1)


def tables(jobs: Sequence[dict[str, str]], found: Sequence[dict[str, float]], width: int) -> Iterator[Table]:
    """Yield tables of overrides that differ between jobs, and of metrics, split to fit the width.

    Args:
        jobs: the overrides of each job, key → value.
        found: the metrics of each job.
        width: width of the console in characters.
    """
    from rich.table import Table

    keys = dict.fromkeys(key for job in jobs for key in job)
    varied = [key for key in keys if len({job.get(key) for job in jobs}) > 1]
    measured = [name for name in MEASURES if any(name in each for each in found)]
    numbered = [["job", *map(str, range(len(jobs)))]]
    told = [[key, *(job.get(key, "") for job in jobs)] for key in varied]
    values = [[name, *(f"{each[name]:.4g}" if name in each else "–" for each in found)] for name in measured]
    # Break headings after the slash, so that the group is above the name.
    columns = [[each[0].replace("/", "/\n"), *each[1:]] for each in values]
    fixed = numbered + [[each[0].replace(".", ".\n"), *each[1:]] for each in told]
    while True:
        # Each column needs three more characters: two blanks and a line.
        room, count = width - 1 - sum(map(_width, fixed)), 0
        while count < len(columns) and (room := room - _width(columns[count])) >= 0:
            count += 1
        count = max(count, 1)
        table = Table()
        for heading, *_ in fixed + columns[:count]:
            table.add_column(heading, overflow="fold", justify="right" if "/" in heading else "left")
        for row in range(1, len(jobs) + 1):
            table.add_row(*(each[row] for each in fixed + columns[:count]))
        yield table
        columns = columns[count:]
        if not columns:
            return


def _width(column: Sequence[str]) -> int:
    return max(len(line) for cell in column for line in cell.split("\n")) + 3


def jobs_of(overrides: Sequence[str]) -> list[dict[str, str]]:
    """Return the overrides (key → value) of each job of Hydra's basic sweeper, by job number."""
    told: dict[str, list[str]] = {}
    for each in OverridesParser.create().parse_overrides(list(overrides)):
        values = (
            each.sweep_string_iterator() if each.is_sweep_override() else [each.get_value_element_as_str()]
        )
        told[each.get_key_element()] = list(values)
    return [dict(zip(told, values, strict=True)) for values in product(*told.values())]


def metrics_of(folder: Path) -> dict[str, float]:
    """Return the metrics of a job's run; an empty dictionary if the run is unfinished."""
    file = folder / METRICS
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
