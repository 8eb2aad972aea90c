"""What the scripts have in common: how they are called, and what they print."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from lmbm_torch.training.decoding import decode
from lmbm_torch.training.prediction import PARTS


def file_parser(description: str | None) -> argparse.ArgumentParser:
    """Arguments of the scripts that apply a checkpoint to a file; what they write is theirs to add."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", type=Path, help="of a run of scripts/train.py, such as its last.ckpt")
    parser.add_argument("file", type=Path, help=".npz, .arff or svmlight")
    parser.add_argument(
        "--part", choices=PARTS, help="rows to take; by default the test part, or all without one"
    )
    parser.add_argument(
        "--most-probable",
        dest="decoder",
        action="store_const",
        const=decode,
        help="decode the most probable labels, as suits a model that learned by likelihood; by default those "
        "of least hinge loss",
    )
    parser.add_argument("--force", action="store_true", help="overwrite the output")
    return parser


def parse(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options; refuses an output that exists, unless forced."""
    options = parser.parse_args(arguments)
    if options.output is not None and options.output.exists() and not options.force:
        parser.error(f"--output: {options.output} exists; --force overwrites it")
    return options


def print_metrics(title: str, metrics: Mapping[str, float]) -> None:
    """A table, with a rule between the groups that names like ``test/exact_match`` make."""
    table = Table(title=title, title_justify="left")
    table.add_column("metric")
    table.add_column("value", justify="right")
    last = None
    for name, value in metrics.items():
        group = name.rpartition("/")[0]
        if last not in (None, group):
            table.add_section()
        table.add_row(name, "undefined" if math.isnan(value) else f"{value:.6g}")
        last = group
    Console().print(table)
