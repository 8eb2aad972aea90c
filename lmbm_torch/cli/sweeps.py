"""The end of a sweep: what its jobs were told, beside what came of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.experimental.callback import Callback
from omegaconf import DictConfig

MEASURES = (
    *("val/exact_match", "val/hamming_loss", "val/sample_f1"),
    *("test/exact_match", "test/hamming_loss", "test/sample_f1", "fit/objective", "fit/gap"),
)


class Summary(Callback):
    """Prints a row for each job of a sweep: its number, what differs from the others, and its metrics."""

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        """Called by Hydra when all jobs have ended."""
        from rich.console import Console
        from rich.table import Table

        folder, jobs = Path(config.hydra.sweep.dir), jobs_of(config.hydra.overrides.task)
        found = [metrics_of(folder / str(number)) for number in range(len(jobs))]
        varied = [key for key in dict.fromkeys(key for job in jobs for key in job) if differs(jobs, key)]
        measured = [name for name in MEASURES if any(name in each for each in found)]
        table = Table("job", *varied, *measured)
        for number, (job, metrics) in enumerate(zip(jobs, found, strict=True)):
            values = [f"{metrics[name]:.6g}" if name in metrics else "–" for name in measured]
            table.add_row(str(number), *(job.get(key, "") for key in varied), *values)
        console = Console()
        console.print(str(folder), soft_wrap=True, highlight=False, markup=False)
        console.print(table)


def jobs_of(overrides: Sequence[str]) -> list[dict[str, str]]:
    """The overrides of each job of Hydra's own sweeper, key → value, in the order of their numbers."""
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    batches = BasicSweeper.split_arguments(parsed, max_batch_size=None)
    return [dict(each.split("=", 1) for each in job if "=" in each) for batch in batches for job in batch]


def differs(jobs: Sequence[dict[str, str]], key: str) -> bool:
    """Whether the jobs were told different values of a key."""
    return len({job.get(key) for job in jobs}) > 1


def metrics_of(folder: Path) -> dict[str, float]:
    """The metrics of a job's run; none if it has not come to its end."""
    file = folder / "metrics.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
