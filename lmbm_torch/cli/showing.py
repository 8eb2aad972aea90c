"""The output of commands: metrics, predictions and their certificates."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.table import Table

from lmbm_torch.shapes import Float, Int

if TYPE_CHECKING:
    from lmbm_torch.data import MultilabelData
    from lmbm_torch.prediction.answers import Prediction

SHOWN_NAMES = 10
# Smallest difference of two log-probabilities that counts; smaller differences may be due to rounding.
LEAST_DIFFERENCE = 1e-4
SHOWN_COLUMNS = ("row", "rank", "labels", "probability", "objective", "exact")


def print_metrics(title: str, metrics: Mapping[str, float]) -> None:
    """Print a table of metrics, with a line between groups of names (``test/…``)."""
    # The title is printed outside of the table, because a table would wrap it.
    Console().print(title, soft_wrap=True, highlight=False, markup=False)
    table = Table()
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


def print_rows(
    names: Sequence[str], rows: Sequence[Sequence[object]], ids: Sequence[str] = (), *, is_all: bool
) -> None:
    """Print rows of predictions, with as many columns as fit on the console."""
    kept = [place for place, name in enumerate(names) if name in (*SHOWN_COLUMNS, *ids)]
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
        Console().print("there are more rows; --output FILE writes all of them")


def print_line(text: str) -> None:
    """Print a line of any length, without wrapping."""
    Console().print(text, soft_wrap=True, highlight=False, markup=False)


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """Return a count with the noun: ``1 label``, ``2 labels``."""
    return f"{count} {noun if count == 1 else plural or f'{noun}s'}"


def print_data(data: MultilabelData, module: Any, test: str | None = None) -> None:
    """Print numbers of rows, kinds of columns, missing labels, and labels that are constant in training.

    Labels of data on disk are not read.

    Args:
        module: the data module of the data.
        test: the file of the test part; None if the test part is from the same source.
    """
    parts = {"to train": len(module.train_set), "to validate": len(module.validation_set)}
    parts["to test" if test is None else f"to test ({Path(test).name})"] = len(module.test_set)
    rows = ", ".join(f"{count} {words}" for words, count in parts.items() if count)
    print_line(f"{data.name}: rows {rows}; {_sizes(data)}")
    _print_columns(data)
    if isinstance(data.labels, np.ndarray):
        drawn = [] if len(data.validation) or not len(module.validation_set) else ["validate"]
        _print_labels(data, [*drawn, *(["test"] if len(module.test_set) else [])])


def print_measured(data: MultilabelData, rows: Int[np.ndarray, " rows"], test: str | None = None) -> None:
    """Print the measured rows, kinds of columns, and constant labels, for which some metrics are meaningless.

    Args:
        rows: the measured rows.
        test: the file of the rows, if different from the training file.
    """
    of_all = f"{data.name}: {len(rows)} of {counted(data.num_instances, 'row')}"
    measured = of_all if test is None else f"{test}: {counted(len(rows), 'row')}"
    print_line(f"{measured} measured; {_sizes(data)}")
    _print_columns(data)
    sentence = "{0} {1} in all measured rows: {2}"
    _print_fixed(data.labels[rows], data.label_names, sentence)


def _sizes(data: MultilabelData) -> str:
    return f"{counted(data.num_features, 'feature')}, {counted(data.num_labels, 'label')}"


def _print_columns(data: MultilabelData) -> None:
    if data.schema is None:
        return
    kinds = Counter(column.kind for column in data.schema.columns)
    columns = ", ".join(f"{count} of {kind}" for kind, count in kinds.items())
    ids = f"; rows are named by {', '.join(data.schema.id_columns)}" if data.schema.id_columns else ""
    print_line(f"columns: {columns}{ids}")


def _print_labels(data: MultilabelData, drawn: Sequence[str]) -> None:
    """Print the number of missing labels, and labels that are constant in the training rows.

    Args:
        drawn: for which purposes rows were held out, for example validation.
    """
    absent = np.isnan(data.labels)
    if absent.any():
        rows = int(absent.any(1).sum())
        held_out = f"; rows to {' and to '.join(drawn)} are drawn from the others" if drawn else ""
        of_all = counted(data.num_instances, "row")
        print_line(f"missing labels: {int(absent.sum())}, in {rows} of {of_all}{held_out}")
    sentence = "nothing to learn about {}, {} in all training rows: {}"
    _print_fixed(data.train_labels, data.label_names, sentence)


def _print_fixed(labels: Float[np.ndarray, "rows labels"], names: Sequence[str], sentence: str) -> None:
    """Print number, value and names of the labels that are constant in all rows."""
    for words, value in (("true", 1), ("false", 0)):
        fixed = ((labels == value) | np.isnan(labels)).all(0)
        if fixed.any():
            found = [name for name, each in zip(names, fixed, strict=True) if each]
            few = ", ".join(found[:SHOWN_NAMES]) + (", …" if len(found) > SHOWN_NAMES else "")
            print_line(sentence.format(counted(len(found), "label"), words, few))


class Certificates:
    """Counts of answers with proven optimality, and the methods that computed the probabilities."""

    def __init__(self) -> None:
        self.rows = self.proven = self.ended = self.reversed = 0
        self.methods: set[str] = set()

    def counting(self, predictions: Iterable[Prediction]) -> Iterator[Prediction]:
        """Yield the predictions unchanged, and count the predictions."""
        for prediction in predictions:
            self.rows += len(prediction.decoding.status.exact)
            self.proven += int(prediction.decoding.status.exact.sum())
            if prediction.decoding.nodes is not None:
                self.ended += int((~prediction.decoding.status.converged).sum())
            if prediction.log_prob.ndim == 2:
                # A probability that is not known is NaN, and the comparison is then False.
                self.reversed += int((prediction.log_prob.diff(dim=1) > LEAST_DIFFERENCE).any(1).sum())
            if prediction.probabilities is not None:
                self.methods.add(prediction.probabilities.method)
            yield prediction

    def print(self) -> None:
        """Print the counts."""
        likely = ", ".join(sorted(self.methods)) or "none, since the model only scores them"
        rows = counted(self.rows, "row")
        Console().print(f"{rows}, {self.proven} proven optimal; probabilities of labels: {likely}")
        if self.reversed:
            Console().print(
                f"in {counted(self.reversed, 'row')} a labelling is more probable than a labelling above "
                "it, because ranks follow the decoder's objective; --most-probable ranks by probability"
            )
        if self.ended:
            Console().print(
                f"{counted(self.ended, 'search was', 'searches were')} ended before "
                f"{'its' if self.ended == 1 else 'their'} proof; a larger --node-limit allows longer searches"
            )
