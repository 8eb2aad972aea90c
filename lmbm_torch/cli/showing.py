"""What commands print: metrics, predictions and their certificates."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from lmbm_torch.prediction.answers import Prediction

# In log-probabilities, beyond what rounding makes.
LEAST_DIFFERENCE = 1e-4
SHOWN_COLUMNS = ("row", "rank", "labels", "probability", "objective", "exact")


def print_metrics(title: str, metrics: Mapping[str, float]) -> None:
    """A table, with a rule between the groups that names like ``test/exact_match`` make."""
    # By itself, since a table breaks its title over lines.
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
        self.rows = self.proven = self.ended = self.reversed = 0
        self.methods: set[str] = set()

    def counting(self, predictions: Iterable[Prediction]) -> Iterator[Prediction]:
        """The same predictions, counted as they pass."""
        for prediction in predictions:
            self.rows += len(prediction.decoding.status.exact)
            self.proven += int(prediction.decoding.status.exact.sum())
            if prediction.decoding.nodes is not None:
                self.ended += int((~prediction.decoding.status.converged).sum())
            if prediction.log_prob.ndim == 2:
                # NaN where it is not known, which is above nothing.
                self.reversed += int((prediction.log_prob.diff(dim=1) > LEAST_DIFFERENCE).any(1).sum())
            if prediction.probabilities is not None:
                self.methods.add(prediction.probabilities.method)
            yield prediction

    def print(self) -> None:
        """A line of both."""
        likely = ", ".join(sorted(self.methods)) or "none, since the model only scores them"
        Console().print(f"{self.rows} rows, {self.proven} proven optimal; probabilities of labels: {likely}")
        if self.reversed:
            Console().print(
                f"in {self.reversed} rows a labelling is more probable than one above it: ranks follow the "
                "objective, by which the model decodes, and --most-probable ranks by probability"
            )
        if self.ended:
            Console().print(
                f"{self.ended} searches were ended before their proof: --node-limit lets them go on"
            )
