"""Tags of sequences as tables: one row for each token, with probabilities and certificates."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator
from os import PathLike

from lmbm_torch.data.sequences.conll import Tokens
from lmbm_torch.energies.chain import PADDING
from lmbm_torch.files import Mode, replacing_text
from lmbm_torch.prediction.chains import FittedChain, Tagging
from lmbm_torch.prediction.tables import BOUND, BOUND_OF_UNLISTED, PROBABILITY

FIRST_COLUMNS = ("sequence", "token", "rank")


def columns(saved: FittedChain, tokens: Tokens, top_k: int = 1) -> list[str]:
    """The names of the columns of :func:`table_rows`."""
    given = list(saved.schema.windows.columns)
    if saved.schema.has_tags(tokens):
        given.insert(saved.schema.tag, "given_tag")
    likely = ["P(predicted_tag)", PROBABILITY] if saved.has_probabilities else []
    bound = BOUND if top_k == 1 else BOUND_OF_UNLISTED
    return [*FIRST_COLUMNS, *given, "predicted_tag", *likely, "objective", bound, "exact"]


def table_rows(saved: FittedChain, tokens: Tokens, found: Iterable[Tagging]) -> Iterator[list[object]]:
    """One row for each token of each labelling; ``sequence`` and ``token`` count from 0.

    A sequence has no more labellings than there are of its length.

    ``P(predicted_tag)`` is that of the tag at its place given the whole sequence, ``probability`` that of all
    the sequence's tags together, a distribution's alone. ``objective``, ``bound`` and ``exact`` are those of
    the sequence; see :func:`lmbm_torch.prediction.tables.table_rows`.
    """
    names, sequence = saved.schema.label_names, 0
    for batch in found:
        several = batch.decoding.labels.ndim == 3
        for place, length in enumerate(batch.lengths.tolist()):
            first = tokens.start[sequence]
            labellings = batch.decoding.labels[place]
            objectives, log_probs = batch.decoding.objective[place], batch.log_prob[place]
            bound, exact = float(batch.decoding.bound[place]), int(batch.decoding.status.exact[place])
            ranked = zip(
                labellings if several else [labellings],
                objectives if several else [objectives],
                log_probs if several else [log_probs],
                strict=True,
            )
            for rank, (labels, objective, log_prob) in enumerate(ranked, 1):
                if labels[0] == PADDING:
                    break
                tags = labels[:length].tolist()
                for token, tag in enumerate(tags):
                    row = [sequence, token, rank, *tokens.rows[first + token], names[tag]]
                    if batch.probabilities is not None:
                        row += [float(batch.probabilities[place, token, tag]), math.exp(log_prob)]
                    yield [*row, float(objective), bound, exact]
            sequence += 1


def tags_of(saved: FittedChain, found: Iterable[Tagging]) -> Iterator[str]:
    """The best tags of all tokens, one after another."""
    for batch in found:
        for labels, length in zip(batch.decoding.labels, batch.lengths.tolist(), strict=True):
            yield from (saved.schema.label_names[tag] for tag in labels[:length].tolist())


def write_table(
    path: str | PathLike,
    saved: FittedChain,
    tokens: Tokens,
    found: Iterable[Tagging],
    mode: Mode = "x",
    top_k: int = 1,
) -> None:
    """Write :func:`columns` and :func:`table_rows` as CSV; the file appears complete or not at all.

    Args:
        mode: as in ``open``: by default an existing file is never overwritten.
        top_k: labellings of each sequence.

    Raises:
        FileExistsError: the file exists, in mode ``"x"``.
    """
    with replacing_text(path, mode) as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(columns(saved, tokens, top_k))
        writer.writerows(table_rows(saved, tokens, found))
