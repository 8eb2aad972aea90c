"""Predictions as tables: one row for each labelling, with probabilities and certificates."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from os import PathLike

from torch import Tensor

from lmbm_torch.files import Mode, replacing_text
from lmbm_torch.inference.results import Decoding
from lmbm_torch.prediction.answers import Prediction
from lmbm_torch.prediction.loading import Predictor
from lmbm_torch.shapes import Bool

FIRST_COLUMNS = ("row", "rank", "labels")
PROBABILITY = "probability"
BOUND, BOUND_OF_UNLISTED = "bound", "bound_of_unlisted"


def columns(saved: Predictor, top_k: int = 1, ids: Sequence[str] = ()) -> list[str]:
    """The names of the columns of :func:`table_rows`.

    Args:
        top_k: labellings of each instance; of several, the bound is that of the others.
        ids: columns that name the rows.

    Raises:
        ValueError: a label or an id named like another column.
    """
    labels, names = saved.label_names, ["row", *ids, *FIRST_COLUMNS[1:], *saved.label_names]
    if saved.has_probabilities:
        names += [*(f"P({name})" for name in labels), PROBABILITY]
    names += ["objective", BOUND if top_k == 1 else BOUND_OF_UNLISTED, "exact"]
    if taken := sorted({name for name in (*ids, *saved.label_names) if names.count(name) > 1}):
        raise ValueError(f"label_names: expected none that names another column of predictions, got {taken}")
    return names


def table_rows(
    saved: Predictor, predictions: Iterable[Prediction], ids: Mapping[str, Sequence[str]] | None = None
) -> Iterator[list[object]]:
    """One row for each labelling; ``None`` for a probability that is not known.

    ``row`` counts instances from 0, ``rank`` the labellings of an instance from 1; ``labels`` are the names
    of the labels that are 1. ``probability`` is that of the whole labelling, ``P(name)`` that of one label; a
    model that is no distribution has neither. ``objective`` is the decoder's: for hinge decoding the hinge
    loss, at least ``bound`` for every labelling; for the most probable labelling the score, at most ``bound``
    for every labelling. ``exact`` is 1 for labellings proven to be the best. Of several labellings
    ``bound_of_unlisted`` is the bound of those that are not listed, and ``exact`` is 1 for a labelling that
    is proven to be the best but for those above it.
    """
    first = 0
    for prediction in predictions:
        found = prediction.decoding
        bound, exact = found.bound.tolist(), _proven_ranks(found).int().tolist()
        ranks = [[each.tolist() for each in parts] for parts in prediction.labellings()]
        alone = None if prediction.probabilities is None else prediction.probabilities.labels.tolist()
        for instance in range(len(bound)):
            for rank, (labels, objective, log_probability) in enumerate(ranks, start=1):
                names = [name for name, on in zip(saved.label_names, labels[instance], strict=True) if on]
                named = [each[first + instance] for each in (ids or {}).values()]
                row = [first + instance, *named, rank, ";".join(names), *labels[instance]]
                if alone is not None:
                    probabilities = [*alone[instance], math.exp(log_probability[instance])]
                    row += [None if math.isnan(each) else each for each in probabilities]
                yield [*row, objective[instance], bound[instance], exact[instance][rank - 1]]
        first += len(bound)


def _proven_ranks(found: Decoding) -> Bool[Tensor, "batch top_k"]:
    """Which labellings are proven to be the best but for those above them.

    They are where the whole list is, and where the bound of those that are not listed is no better.
    """
    exact = found.status.exact[:, None]
    if found.objective.ndim == 1:
        return exact
    first, last = found.objective[:, :1], found.objective[:, -1:]
    bound = found.bound[:, None]
    is_loss, is_score = (first < last).any(), (first > last).any()
    if is_loss and not is_score:
        return exact | (found.objective <= bound)
    if is_score and not is_loss:
        return exact | (found.objective >= bound)
    return exact.expand_as(found.objective)


def write_predictions(
    path: str | PathLike,
    saved: Predictor,
    predictions: Iterable[Prediction],
    mode: Mode = "x",
    top_k: int = 1,
    ids: Mapping[str, Sequence[str]] | None = None,
) -> None:
    """Write :func:`columns` and :func:`table_rows` as CSV; the file appears complete or not at all.

    Args:
        mode: as in ``open``: by default an existing file is never overwritten.
        top_k: labellings of each instance.
        ids: columns that name the rows, by name.

    Raises:
        FileExistsError: the file exists, in mode ``"x"``.
        ValueError: a label named like another column.
    """
    names = columns(saved, top_k, [*(ids or {})])
    with replacing_text(path, mode) as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(names)
        writer.writerows(table_rows(saved, predictions, ids))
