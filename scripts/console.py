"""What the scripts have in common: how they are called, and what they print."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from sklearn.base import BaseEstimator
from torch import nn

from lmbm_torch.data import MultilabelData
from lmbm_torch.data.schema import Column, Schema
from lmbm_torch.estimators import LMBMClassifier, StructuralSVMClassifier, load
from lmbm_torch.estimators.decoded import DecodedClassifier, LabelVectorClassifier
from lmbm_torch.estimators.saving import HOLDS
from lmbm_torch.inference import decode, decode_hinge
from lmbm_torch.inference.branch_and_bound import NODE_LIMIT
from lmbm_torch.inference.results import Decoding
from lmbm_torch.models import archives
from lmbm_torch.prediction.answers import PARTS, Prediction, Predictor, read
from lmbm_torch.prediction.fitted import FittedEstimator
from lmbm_torch.prediction.saved import MODEL, load_model

# As the runs name it, without what importing them takes.
CONFIG = "config.yaml"
SHOWN_COLUMNS = ("row", "rank", "labels", "probability", "objective", "exact")


def file_parser(description: str | None, nargs: str | None = None) -> argparse.ArgumentParser:
    """Arguments of the scripts that apply a trained model to a file; what they write is theirs to add.

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
    parser.add_argument(
        "--most-probable",
        action="store_true",
        help="decode the most probable labels, as suits a model that learned by likelihood; by default those "
        "of least hinge loss",
    )
    parser.add_argument(
        "--node-limit",
        dest="limit",
        type=_limit,
        default={},
        help="end the search for a row's labels after so many nodes, or never: none; by default "
        f"{NODE_LIMIT}, at most a second or so, or what an estimator was made with",
    )
    parser.add_argument("--force", action="store_true", help="overwrite the output")
    return parser


def parse(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options; refuses an output that exists, unless forced."""
    options = parser.parse_args(arguments)
    if options.output is not None and options.output.exists() and not options.force:
        parser.error(f"--output: {options.output} exists; --force overwrites it")
    return options


def chosen(options: argparse.Namespace) -> tuple[Predictor, Callable[[Any], Decoding] | None]:
    """The model, and what the options ask to decode by; None for what the model predicts by.

    Raises:
        FileNotFoundError: there is no model.
        ValueError: as :func:`trained_model`, or a limit of nodes for a model that does not search.
    """
    if options.most_probable:
        return trained_model(options.model), partial(decode, **options.limit)
    saved = trained_model(options.model, **options.limit)
    if not options.limit or isinstance(saved, FittedEstimator):
        return saved, None
    if saved.inference is not None:
        raise ValueError(f"--node-limit: expected none for a {saved.kind}, which infers without a search")
    return saved, partial(decode_hinge, margin=saved.margin, **options.limit)


def trained_model(path: Path, **limit: int | None) -> Predictor:
    """The model of a run directory, a checkpoint, or a file of a saved model or estimator.

    An encoder is made as the configuration of the run directory describes it.

    Args:
        limit: ``node_limit``, for an estimator in the place of its own; models have none.

    Raises:
        FileNotFoundError: there is none.
        ValueError: a file that cannot be read, one that is not in a run directory and needs an encoder, or an
            estimator of classes or of sequences, or of no such limit.
    """
    if path.is_dir():
        return load_model(path / MODEL, _encoder(path / CONFIG))
    if archives.peek(path) != HOLDS:
        return load_model(path)
    estimator = load(path)
    if limit:
        if "node_limit" not in _network(estimator).get_params(deep=False):
            raise ValueError(
                f"--node-limit: expected none for {type(estimator).__name__}, which has no such limit"
            )
        _network(estimator).set_params(**limit)
    return of_estimator(estimator)


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
    # What is not about a run needs neither Hydra nor Lightning.
    from hydra.utils import instantiate
    from omegaconf import OmegaConf

    data = OmegaConf.load(configuration).data
    if options.file is None:
        return instantiate(data).data
    trained = data.get("train")
    if options.part is None and trained is not None and Path(trained).resolve() == options.file.resolve():
        raise ValueError(
            f"file: {options.file} is what the run was trained on: leave it out for the rows that training "
            "held out, or say --part all"
        )
    return read(options.file, saved, options.delimiter)


def _limit(text: str) -> dict[str, int | None]:
    """A number of nodes or none, as an argument of whatever searches."""
    if text == "none":
        return {"node_limit": None}
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, or none, got {text!r}")
    return {"node_limit": int(text)}


def _network(estimator: BaseEstimator) -> BaseEstimator:
    """What searches, in an estimator that holds it or is it."""
    return getattr(estimator, "network_", estimator)


def _encoder(configuration: Path) -> nn.Module | None:
    """What stands before the model of a run, its weights still to be loaded."""
    # A model's file needs neither of these two.
    from hydra.utils import instantiate
    from omegaconf import OmegaConf

    if not configuration.is_file():
        return None
    return instantiate(OmegaConf.load(configuration).model.get("encoder"))


def of_estimator(estimator: BaseEstimator) -> FittedEstimator:
    """A fitted estimator as the scripts take models, with the columns of the data frame it was fitted to.

    Raises:
        ValueError: an estimator of classes or of sequences.
    """
    fitted: Any = estimator
    names, labels = getattr(fitted, "feature_names_in_", None), getattr(fitted, "label_names_", None)
    if not isinstance(estimator, LabelVectorClassifier) or labels is None:
        raise ValueError(
            f"model: expected one of label matrices, got {type(estimator).__name__} of classes or sequences; "
            "lmbm_torch.estimators.load(path).predict(X) takes any"
        )
    if names is not None:
        # A table's columns are matched by name when it is read, and come without.
        fitted = copy(fitted)
        del fitted.feature_names_in_
    return FittedEstimator(
        type(estimator).__name__,
        labels,
        fitted.n_features_in_,
        fitted.predict_decoding,
        getattr(fitted, "energies", None) or (lambda rows: [fitted.energy(rows)]),
        isinstance(estimator, DecodedClassifier),
        _several(fitted),
        inference=getattr(fitted, "inference_", None),
        schema=None if names is None else Schema(tuple(map(Column, names.tolist())), labels),
    )


def _several(estimator: Any) -> Callable[..., Decoding] | None:
    """As for :class:`FittedEstimator`."""
    settings = _network(estimator).get_params(deep=False)
    limit = {name: value for name, value in settings.items() if name == "node_limit"}
    if isinstance(estimator, StructuralSVMClassifier) or getattr(estimator, "decoder", "") == "exact_match":
        return partial(decode, **limit)
    if isinstance(estimator, LMBMClassifier) or getattr(estimator, "decoder", "hinge") == "hinge":
        return partial(decode_hinge, margin=settings.get("margin", 1.0), **limit)
    return None


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
    """Rows of predictions without what only a file has room for."""
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
