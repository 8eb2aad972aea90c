"""Tables of predictions with probabilities and certificates, one row for each labelling or each token."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import compress
from os import PathLike

import numpy as np
from torch import Tensor

from lmbm_torch.data.sequences.conll import ColumnSchema, Tokens
from lmbm_torch.energies.chain import PADDING
from lmbm_torch.files import Mode, replacing_text
from lmbm_torch.inference.common.results import Decoding
from lmbm_torch.prediction.answers import Prediction
from lmbm_torch.prediction.predictor import Predictor
from lmbm_torch.shapes import Bool

FIRST_COLUMNS = ("row", "rank", "labels")
FIRST_OF_TOKENS = ("sequence", "token", "rank")
PROBABILITY = "probability"
BOUND, BOUND_OF_UNLISTED = "bound", "bound_of_unlisted"


def columns(saved: Predictor, top_k: int = 1, ids: Sequence[str] = ()) -> list[str]:
    """Return the names of the columns of :func:`table_rows`.

    Args:
        saved: the predictor.
        top_k: the number of labellings of each instance; with several, the bound is for all others.
        ids: names of the columns that identify rows.

    Raises:
        ValueError: a label or an id has the name of another column.
    """
    labels, own = saved.label_names, label_columns(saved)
    names = ["row", *ids, *FIRST_COLUMNS[1:], *own]
    if saved.has_probabilities:
        names += [*(f"P({name})" for name in labels), PROBABILITY]
    names += ["objective", BOUND if top_k == 1 else BOUND_OF_UNLISTED, "exact"]
    if taken := sorted({name for name in (*ids, *own) if names.count(name) > 1}):
        raise ValueError(f"label_names: expected names unlike those of other columns, got {taken}")
    return names


def table_rows(
    saved: Predictor, predictions: Iterable[Prediction], ids: Mapping[str, Sequence[str]] | None = None
) -> Iterator[list[object]]:
    """Yield one row for each labelling; None for an unknown probability.

    ``row`` counts instances from 0, ``rank`` the labellings of an instance from 1; ``labels`` holds the names
    of the labels with value 1. Classes of a column of the training table are written as such a column.
    ``probability`` is the probability of the whole labelling, ``P(name)`` of one label; a predictor without
    probabilities has neither. ``objective`` is the objective of the decoder: the hinge loss, which is at
    least ``bound`` for every labelling, or the score, which is at most ``bound``. ``exact`` is 1 if a
    labelling is proven optimal. If there are several labellings, ``bound_of_unlisted`` is the bound for all
    unlisted labellings, and ``exact`` is 1 if only labellings of smaller rank can be better.
    """
    first = 0
    for prediction in predictions:
        found = prediction.decoding
        bound, exact = found.bound.tolist(), _proven_ranks(found).int().tolist()
        ranks = [[each.tolist() for each in parts] for parts in prediction.labellings()]
        alone = None if prediction.probabilities is None else prediction.probabilities.labels.tolist()
        written = [_cells(saved, labels) for labels, _, _ in ranks]
        for instance in range(len(bound)):
            for rank, (labels, objective, log_probability) in enumerate(ranks, start=1):
                names = ";".join(compress(saved.label_names, labels[instance]))
                named = [each[first + instance] for each in (ids or {}).values()]
                row = [first + instance, *named, rank, names, *written[rank - 1][instance]]
                if alone is not None:
                    probabilities = [*alone[instance], math.exp(log_probability[instance])]
                    row += [None if math.isnan(each) else each for each in probabilities]
                yield [*row, objective[instance], bound[instance], exact[instance][rank - 1]]
        first += len(bound)


def label_columns(saved: Predictor) -> dict[str, bool]:
    """Return the names of the columns of labels, and whether each holds classes instead of 0 and 1."""
    form = saved.label_form
    if form is None or not form.classes:
        return dict.fromkeys(saved.label_names, False)
    return {
        name: name not in saved.label_names for name in form.written(np.zeros((0, len(saved.label_names))))
    }


def _cells(saved: Predictor, labels: list[list[int]]) -> Sequence[Sequence[object]]:
    form = saved.label_form
    if form is None or not form.classes:
        return labels
    return [*zip(*form.written(np.array(labels)).values(), strict=True)]


def _proven_ranks(found: Decoding) -> Bool[Tensor, "batch top_k"]:
    """Return for which labellings it is proven that only labellings of smaller rank are better.

    This holds if the whole list is proven, or if the bound of unlisted labellings is no better.
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


def token_columns(saved: Predictor, tokens: Tokens, top_k: int = 1) -> list[str]:
    """Return the names of the columns of :func:`token_rows`."""
    schema = saved.schema
    assert isinstance(schema, ColumnSchema)
    given = list(schema.windows.columns)
    if schema.has_tags(tokens):
        given.insert(schema.tag, "given_tag")
    likely = ["P(predicted_tag)", PROBABILITY] if saved.has_probabilities else []
    bound = BOUND if top_k == 1 else BOUND_OF_UNLISTED
    return [*FIRST_OF_TOKENS, *given, "predicted_tag", *likely, "objective", bound, "exact"]


def token_rows(saved: Predictor, tokens: Tokens, predictions: Iterable[Prediction]) -> Iterator[list[object]]:
    """Yield one row for each token of each labelling; ``sequence`` and ``token`` count from 0.

    ``P(predicted_tag)`` is the probability of the tag given the whole sequence, ``probability`` the
    probability of all tags of the sequence together; a predictor without probabilities has neither.
    ``objective``, ``bound`` and ``exact`` are for the whole sequence; see :func:`table_rows`. Short sequences
    may have fewer labellings.
    """
    names, sequence = saved.label_names, 0
    for batch in predictions:
        assert batch.lengths is not None
        ranks = [*batch.labellings()]
        bounds, proven = batch.decoding.bound.tolist(), batch.decoding.status.exact.int().tolist()
        for place, length in enumerate(batch.lengths.tolist()):
            first = tokens.start[sequence]
            for rank, (labels, objective, log_prob) in enumerate(ranks, 1):
                if labels[place, 0] == PADDING:
                    break
                for token, tag in enumerate(labels[place, :length].tolist()):
                    row = [sequence, token, rank, *tokens.rows[first + token], names[tag]]
                    if batch.probabilities is not None:
                        likely = float(batch.probabilities.labels[place, token, tag])
                        row += [likely, math.exp(log_prob[place])]
                    yield [*row, float(objective[place]), bounds[place], proven[place]]
            sequence += 1


def tags(saved: Predictor, predictions: Iterable[Prediction]) -> Iterator[str]:
    """Yield the best tag of each token."""
    for batch in predictions:
        assert batch.lengths is not None
        for labels, length in zip(batch.decoding.labels, batch.lengths.tolist(), strict=True):
            yield from (saved.label_names[tag] for tag in labels[:length].tolist())


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
        top_k: number of labellings of each instance.
        ids: columns that identify the rows, by name.

    Raises:
        FileExistsError: the file exists, in mode ``"x"``.
        ValueError: a label has the name of another column.
    """
    names = columns(saved, top_k, [*(ids or {})])
    write_table(path, names, table_rows(saved, predictions, ids), mode)


def write_table(
    path: str | PathLike, names: Sequence[str], rows: Iterable[Sequence[object]], mode: Mode = "x"
) -> None:
    """Write rows under column names as CSV; the file appears complete or not at all.

    Args:
        mode: as in ``open``: by default an existing file is never overwritten.

    Raises:
        FileExistsError: the file exists, in mode ``"x"``.
    """
    with replacing_text(path, mode) as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(names)
        writer.writerows(rows)
