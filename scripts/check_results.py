"""Recompute a row of every table in results/ and compare it with the row that is kept: make results-check

python scripts/check_results.py lmsbn_2010 linear_networks, or without a name for all

The script first names the tables in results/recipes.json that another training recipe made. Then a cheap
row of each table is computed by the table's own code and settings. The script fails if a value is farther
from the kept value than the sample's tolerance, which allows for other processors and libraries.
"""

from __future__ import annotations

import argparse
import csv
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from importlib import import_module
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from keep import RESULTS, recipes_of
from omegaconf import OmegaConf
from rich.console import Console
from rich.table import Table

import reproduce
from lmbm_torch.cli.configuration import CONFIGURATION
from lmbm_torch.compare import trials
from lmbm_torch.compare.tables import Result, recipe_used
from reproduce.cells import Cell, compute

SHARE = {"exact_match": 0.004, "hamming_loss": 0.002}
"""Tolerances of shares of some thousand test instances: a handful of them may change."""


@dataclass(frozen=True)
class Sample(ABC):
    """A row of a table in ``results/``.

    Args:
        table: the file's name without its suffix.
        data, method: the row.
        tolerances: column → how far a recomputed value may be from the kept one.
    """

    table: str
    data: str
    method: str
    tolerances: Mapping[str, float] = field(default_factory=lambda: SHARE, kw_only=True)

    def kept(self, results: Path) -> dict[str, str]:
        """Return the row as it is kept."""
        with (results / f"{self.table}.csv").open(encoding="utf-8", newline="") as stream:
            return self._own(list(csv.DictReader(stream)))

    def recompute(self, kept: Mapping[str, str], folder: Path, console: Console) -> Result:
        """Compute the row by the protocol of the kept row, and store the cells in ``folder``."""
        return self._own(self._rows(kept, folder, console))

    def _own(self, rows: Sequence[Any]) -> Any:
        return next(row for row in rows if (row["data"], row["method"]) == (self.data, self.method))

    @abstractmethod
    def _rows(self, kept: Mapping[str, str], folder: Path, console: Console) -> list[Result]:
        """Return rows of the table, among them that of the sample."""


@dataclass(frozen=True)
class Compared(Sample):
    """A row of lmbm compare, whose table says how many splits and settings it is made from.

    Args:
        protocol: the same, of a table that was kept before tables said so.
    """

    protocol: tuple[str, ...] = ()

    def _rows(self, kept: Mapping[str, str], folder: Path, console: Console) -> list[Result]:
        said = [f"{each.name}={kept[each.name]}" for each in fields(trials.Settings) if each.name in kept]
        with initialize_config_dir(CONFIGURATION, version_base="1.3"):
            config = compose("compare", [f"data={self.data}", *(said or self.protocol)])
        settings = trials.Settings(**{each.name: config[each.name] for each in fields(trials.Settings)})
        data = instantiate(config.data.data)
        found = trials.tried(data, [self.method], settings, folder, console)
        return trials.summary(found, self.method, settings)


@dataclass(frozen=True)
class Reproduced(Sample):
    """A row of lmbm reproduce.

    Args:
        overrides: of its configuration.
    """

    overrides: tuple[str, ...]

    def _rows(self, kept: Mapping[str, str], folder: Path, console: Console) -> list[Result]:
        with initialize_config_dir(reproduce.CONFIGURATION, version_base="1.3"):
            config = compose("reproduce", [*self.overrides, "name=checked", f"output={folder}"])
        settings: dict[str, Any] = OmegaConf.to_container(config.table, resolve=True)  # pyright: ignore[reportAssignmentType]
        module = import_module(settings.pop("module"))
        found = compute(self._needed(module.cells(folder=config.paths.data, **settings)), folder, console)
        return module.summary(found) if hasattr(module, "summary") else found

    def _needed(self, cells: Iterator[Cell]) -> list[Cell]:
        """Return the cells of the method, and cells needed by these; all cells if rows share them."""
        of_set = [cell for cell in cells if cell.data == self.data]
        names = {
            name for name in (cell.method for cell in of_set) if f"{name}:".startswith(f"{self.method}:")
        }
        while wider := {cell.after for cell in of_set if cell.method in names and cell.after} - names:
            names |= wider
        return [cell for cell in of_set if cell.method in names] if names else of_set


SAMPLES = (
    Reproduced(
        "any_table",
        "chd_49",
        "ML-kNN",
        ("table=any_table", "table.sets=[chd_49]", "table.methods=[ML-kNN]", "table.splits=2"),
        tolerances={"exact_match": 0.02, "sample_f1": 0.02},
    ),
    Reproduced(
        "todays_peers",
        "chd_49",
        "label powerset, RBF kernel",
        (
            *("table=todays_peers", "table.sets=[chd_49]", "table.splits=1"),
            "table.methods=['label powerset, RBF kernel']",
        ),
        tolerances={"exact_match": 0.02, "sample_f1": 0.02},
    ),
    Reproduced(
        "classifier_chains",
        "chd_49",
        "extra trees, joint chain",
        ("table=classifier_chains", "table.sets=[chd_49]", "table.seeds=1"),
        tolerances={"exact_match": 0.01, "hamming_loss": 0.01},
    ),
    Compared("compare_scene", "scene", "LMSBN", ("splits=5", "budget=5")),
    Compared("compare_seven_segment", "seven_segment", "LMSBN"),
    Reproduced(
        "crbm_2017_ablations",
        "noisy MNIST 10 %",
        "MLE-MF",
        ("table=crbm_2017_ablations",),
        tolerances={"all": 0.02, "changed": 0.1},
    ),
    Reproduced(
        "crbm_2017_occlusions",
        "occluded MNIST 4x4",
        "CD-10",
        ("table=crbm_2017_occlusions", "table.sizes=[4]"),
        tolerances={"all": 0.05, "changed": 3.0},
    ),
    Reproduced(
        "crbm_2017_paper",
        "noisy Caltech 20 %",
        "LR",
        ("table=crbm_2017_paper",),
        tolerances={"all": 0.01, "changed": 0.05},
    ),
    Reproduced(
        "crbm_classifier",
        "scene",
        "CRBM, MLE-BP",
        # The penalty that was chosen, likewise.
        ("table=crbm_classifier", "table.sets=[scene]", "table.penalties=[3.0]"),
        tolerances={"exact_match": 0.01, "hamming_loss": 0.003},
    ),
    Reproduced(
        "dual_2006",
        "glass",
        "λ/N = 0.1",
        ("table=dual_2006", "table.sets=[glass]"),
        tolerances={"smo_objective": 0.3, "cg_objective": 0.3},
    ),
    Reproduced(
        "encoders",
        "seven segments",
        "LMSBN, pixels",
        ("table=encoders",),
        tolerances={"exact_match": 0.005, "hamming_loss": 0.002},
    ),
    Reproduced(
        "hierarchies",
        "eisen",
        "extra trees",
        ("table=hierarchies", "table.sets=[eisen]", "table.methods=[extra trees]"),
        tolerances={"auprc": 0.003, "violations": 0},
    ),
    Reproduced(
        "linear_networks",
        "scene",
        "LMSBN, index order",
        ("table=linear_networks", "table.sets=[scene]"),
    ),
    Reproduced(
        "lmbm_2009",
        "scene",
        "LMBMr",
        ("table=lmbm_2009", "table.sets=[scene]"),
        tolerances={"E": 0.004, "H": 0.002},
    ),
    Reproduced(
        "lmsbn_2010",
        "scene",
        "LMSBN kf: RBF, F-score order",
        ("table=lmsbn_2010", "table.sets=[scene]"),
    ),
    Reproduced(
        "m3n_2003",
        "ocr_letters",
        "independent SVMs, linear",
        ("table=m3n_2003",),
        tolerances={"error": 0.003},
    ),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Check samples and return the number of values beyond their tolerance."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tables", nargs="*", help="of results/; all by default")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where tables are kept")
    parser.add_argument("--recipes", action="store_true", help="only name the tables of another recipe")
    options = parser.parse_args(arguments)
    unknown = set(options.tables) - {sample.table for sample in SAMPLES}
    if unknown:
        parser.error(
            f"tables: expected some of {[sample.table for sample in SAMPLES]}, got {sorted(unknown)}"
        )
    console, moved = Console(width=160), 0
    for table, difference in stale(options.results).items():
        console.print(f"{table} was made by another training recipe: {difference}", highlight=False)
    if options.recipes:
        return len(stale(options.results))
    shown = Table("table", "row", "value", "kept", "recomputed", "tolerance", "seconds")
    for sample in SAMPLES:
        if options.tables and sample.table not in options.tables:
            continue
        started = time.perf_counter()
        kept = sample.kept(options.results)
        with tempfile.TemporaryDirectory() as folder:
            found = sample.recompute(kept, Path(folder), console)
        seconds = time.perf_counter() - started
        for name, tolerance in sample.tolerances.items():
            before, now = number(kept[name]), number(found[name])
            # A missing number is no match.
            is_same = abs(now - before) <= tolerance
            moved += not is_same
            values = f"{before:.5g}", f"{now:.5g}", f"{tolerance:g}" if is_same else f"{tolerance:g}: MOVED"
            shown.add_row(sample.table, f"{sample.data}: {sample.method}", name, *values, f"{seconds:.0f}")
    console.print(shown)
    return moved


def stale(results: Path = RESULTS) -> dict[str, str]:
    """Return the kept tables that another training recipe made, with what differs from today's recipe."""
    found, today = {}, recipe_used() or {}
    for table, made in recipes_of(results).items():
        if made is None:
            found[table] = "an unrecorded recipe"
        elif changed := {name for name in made.keys() & today.keys() if made[name] != today[name]}:
            found[table] = ", ".join(f"{name} was {made[name]}, is {today[name]}" for name in sorted(changed))
    return found


def number(value: Any) -> float:
    """Return a computed value as a float, or the mean of a shown "mean ± deviation"."""
    return float(value.split(" ± ")[0]) if isinstance(value, str) else float(value)


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
