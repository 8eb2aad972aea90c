"""Predictions as tables: one row for each labelling, with probabilities and certificates."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator
from os import PathLike

from lmbm_torch.files import Mode, replacing_text
from lmbm_torch.prediction.answers import Prediction
from lmbm_torch.prediction.loading import Predictor

FIRST_COLUMNS = ("row", "rank", "labels")
PROBABILITY = "probability"
LAST_COLUMNS = ("objective", "bound", "exact")


def columns(saved: Predictor) -> list[str]:
    """The names of the columns of :func:`table_rows`.

    Raises:
        ValueError: a label named like another column.
    """
    labels, names = saved.label_names, [*FIRST_COLUMNS, *saved.label_names]
    if saved.has_probabilities:
        names += [*(f"P({name})" for name in labels), PROBABILITY]
    names += LAST_COLUMNS
    if taken := sorted({name for name in saved.label_names if names.count(name) > 1}):
        raise ValueError(f"label_names: expected none that names another column of predictions, got {taken}")
    return names


def table_rows(saved: Predictor, predictions: Iterable[Prediction]) -> Iterator[list[object]]:
    """One row for each labelling; ``None`` for a probability that is not known.

    ``row`` counts instances from 0, ``rank`` the labellings of an instance from 1; ``labels`` are the names
    of the labels that are 1. ``probability`` is that of the whole labelling, ``P(name)`` that of one label; a
    model that is no distribution has neither. ``objective`` is the decoder's: for hinge decoding the hinge
    loss, at least ``bound`` for every labelling; for the most probable labelling the score, at most ``bound``
    for every labelling. ``exact`` is 1 for labellings proven to be the best.
    """
    first = 0
    for prediction in predictions:
        found = prediction.decoding
        proof = list(zip(found.bound.tolist(), found.status.exact.int().tolist(), strict=True))
        ranks = [[each.tolist() for each in parts] for parts in prediction.labellings()]
        alone = None if prediction.probabilities is None else prediction.probabilities.labels.tolist()
        for instance in range(len(proof)):
            for rank, (labels, objective, log_probability) in enumerate(ranks, start=1):
                names = [name for name, on in zip(saved.label_names, labels[instance], strict=True) if on]
                row = [first + instance, rank, ";".join(names), *labels[instance]]
                if alone is not None:
                    logarithm = log_probability[instance]
                    row += [*alone[instance], None if math.isnan(logarithm) else math.exp(logarithm)]
                yield [*row, objective[instance], *proof[instance]]
        first += len(proof)


def write_predictions(
    path: str | PathLike,
    saved: Predictor,
    predictions: Iterable[Prediction],
    mode: Mode = "x",
) -> None:
    """Write :func:`columns` and :func:`table_rows` as CSV; the file appears complete or not at all.

    Args:
        mode: as in ``open``: by default an existing file is never overwritten.

    Raises:
        FileExistsError: the file exists, in mode ``"x"``.
        ValueError: a label named like another column.
    """
    names = columns(saved)
    with replacing_text(path, mode) as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(names)
        writer.writerows(table_rows(saved, predictions))
