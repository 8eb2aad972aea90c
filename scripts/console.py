"""Command lines and console output of the scripts."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from lmbm_torch.data import MultilabelData
from lmbm_torch.inference import decode, decode_hinge
from lmbm_torch.inference.branch_and_bound import NODE_LIMIT
from lmbm_torch.prediction.answers import Prediction
from lmbm_torch.prediction.decoders import Decoder
from lmbm_torch.prediction.loading import CONFIG, Predictor, load
from lmbm_torch.prediction.reading import PARTS, read

SHOWN_COLUMNS = ("row", "rank", "labels", "probability", "objective", "exact")


def file_parser(description: str | None, nargs: str | None = None) -> argparse.ArgumentParser:
    """Arguments of the scripts that apply a trained model to a file; the scripts add their outputs.

    Args:
        nargs: as argparse has it, "?" where the file may be left out.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "model",
        type=Path,
        help="a run directory of scripts/train.py, one of its checkpoints, or a saved model or estimator",
    )
    parser.add_argument("file", type=Path, nargs=nargs, help=".csv, .tsv, .arff, .npz or svmlight")
    parser.add_argument("--delimiter", help="between the values of a CSV file; a comma by default")
    parser.add_argument(
        "--part", choices=PARTS, help="rows to take; by default the test part, or all without one"
    )
    rule = parser.add_mutually_exclusive_group()
    rule.add_argument(
        "--most-probable",
        dest="rule",
        action="store_const",
        const=decode,
        help="decode the most probable labels; by default a run decodes by its own `inference`",
    )
    rule.add_argument(
        "--least-hinge",
        dest="rule",
        action="store_const",
        const=decode_hinge,
        help="decode the labels of least hinge loss, whatever the run decoded by",
    )
    parser.add_argument(
        "--node-limit",
        dest="limit",
        type=_limit,
        default={},
        help="end the search for a row's labels after so many nodes, or never: none; by default "
        f"{NODE_LIMIT}, at most a second or so, or the limit of the run or of the estimator",
    )
    parser.add_argument("--force", action="store_true", help="overwrite the output")
    return parser


def parse(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options; refuses an output that exists, unless forced."""
    options = parser.parse_args(arguments)
    if options.output is not None and options.output.exists() and not options.force:
        parser.error(f"--output: {options.output} exists; --force overwrites it")
    return options


def chosen(options: argparse.Namespace, top_k: int = 1) -> tuple[Predictor, Decoder | None]:
    """The model, and the decoder that the options ask for; None for the model's own.

    Raises:
        FileNotFoundError: there is no model.
        ValueError: as :func:`~lmbm_torch.prediction.loading.load`; a limit of nodes or a number of labellings
            for a model that does not know such a setting.
    """
    saved = load(options.model)
    if options.rule is not None:
        several = {"top_k": top_k} if top_k > 1 else {}
        margin = {"margin": saved.margin} if options.rule is decode_hinge else {}
        return saved, partial(options.rule, **margin, **several, **options.limit)
    if options.limit:
        saved = saved.limited(**options.limit)
    return saved, saved.several(top_k) if top_k > 1 else None


def labelled_rows(options: argparse.Namespace, saved: Predictor) -> MultilabelData:
    """The rows of the file, or of the run's own data, which its configuration describes.

    Raises:
        ValueError: no file and no run; or the run's own training file, of which no part is asked for.
    """
    configuration = options.model / CONFIG
    if not configuration.is_file():
        if options.file is None:
            raise ValueError(f"file: expected one, since {options.model} is not a run directory")
        return read(options.file, saved, options.delimiter)
    # Hydra and Lightning are needed for runs alone.
    from hydra.utils import instantiate
    from omegaconf import OmegaConf

    data = OmegaConf.load(configuration).data
    if options.file is None:
        return instantiate(data).data
    trained = data.get("train")
    if options.part is None and trained is not None and Path(trained).resolve() == options.file.resolve():
        raise ValueError(
            f"file: {options.file} is the file that the run was trained on: leave it out for the rows that "
            "training held out, or say --part all"
        )
    return read(options.file, saved, options.delimiter)


def _limit(text: str) -> dict[str, int | None]:
    """A number of nodes or none, as an argument by name."""
    if text == "none":
        return {"node_limit": None}
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, or none, got {text!r}")
    return {"node_limit": int(text)}


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


def print_rows(names: Sequence[str], rows: Sequence[Sequence[object]], *, is_all: bool) -> None:
    """Rows of predictions, by the columns that a console has room for."""
    kept = [place for place, name in enumerate(names) if name in SHOWN_COLUMNS]
    table = Table()
    for place in kept:
        table.add_column(
            names[place], justify="left" if names[place] == "labels" else "right", overflow="fold"
        )
    for row in rows:
        cells = ("unknown" if row[place] is None else row[place] for place in kept)
        table.add_row(*(f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in cells))
    Console().print(table)
    if not is_all:
        Console().print("and more: --output FILE writes all of them")


class Certificates:
    """How many answers are proven, and where their probabilities come from."""

    def __init__(self) -> None:
        self.rows = self.proven = self.ended = 0
        self.methods: set[str] = set()

    def counting(self, predictions: Iterable[Prediction]) -> Iterator[Prediction]:
        """The same predictions, counted as they pass."""
        for prediction in predictions:
            self.rows += len(prediction.decoding.status.exact)
            self.proven += int(prediction.decoding.status.exact.sum())
            if prediction.decoding.nodes is not None:
                self.ended += int((~prediction.decoding.status.converged).sum())
            if prediction.probabilities is not None:
                self.methods.add(prediction.probabilities.method)
            yield prediction

    def print(self) -> None:
        """A line of both."""
        likely = ", ".join(sorted(self.methods)) or "none, since the model only scores them"
        Console().print(f"{self.rows} rows, {self.proven} proven optimal; probabilities of labels: {likely}")
        if self.ended:
            Console().print(
                f"{self.ended} searches were ended before their proof: --node-limit lets them go on"
            )
