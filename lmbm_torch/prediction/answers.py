"""Predictions and metrics of a trained model for the rows of a file."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from lmbm_torch.checks import check_shape
from lmbm_torch.data import MultilabelData, by_name, new_rows, read_arff, read_npz, read_svmlight
from lmbm_torch.data.dataset import Features
from lmbm_torch.data.mapped.arrays import features_at, open_mapped
from lmbm_torch.data.tables import ENDINGS, is_table
from lmbm_torch.inference import decode_hinge
from lmbm_torch.inference.matching import MatchedInference
from lmbm_torch.inference.results import Decoding
from lmbm_torch.metrics import multilabel_metrics
from lmbm_torch.prediction.fitted import FittedEstimator
from lmbm_torch.prediction.probabilities import Probabilities, mixture_log_prob, mixture_probabilities
from lmbm_torch.prediction.saved import SavedModel
from lmbm_torch.shapes import Float, Int

BATCH_SIZE = 1024
FIRST_COLUMNS = ("row", "rank", "labels")
PROBABILITY = "probability"
LAST_COLUMNS = ("objective", "bound", "exact")
COMPRESSED = (".gz", ".bz2")
SVMLIGHT = (".svm", ".svmlight", ".libsvm", ".txt")
PARTS = ("train", "test", "all")

Predictor = SavedModel | FittedEstimator
Decoder = Callable[[Any], Decoding] | MatchedInference


@dataclass(frozen=True)
class Prediction:
    """A batch decoded, and how probable what was decoded is.

    Args:
        decoding: of one labelling an instance, or several.
        probabilities: of each label, whatever was decoded; None of a model that is no distribution.
        log_prob: log P of each labelling; NaN where that is not known.
    """

    decoding: Decoding
    probabilities: Probabilities | None
    log_prob: Float[Tensor, " batch"] | Float[Tensor, "batch top_k"]

    def labellings(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Labels ``(batch, labels)``, objectives and log-probabilities ``(batch,)``, best first."""
        found = self.decoding
        if found.labels.ndim == 2:
            yield found.labels, found.objective, self.log_prob
        else:
            yield from zip(
                found.labels.unbind(1), found.objective.unbind(1), self.log_prob.unbind(1), strict=True
            )


def read(path: str | PathLike, saved: Predictor, delimiter: str | None = None) -> MultilabelData:
    """Read rows as the model takes them, by the file's ending, or a folder of data on the disk.

    .csv, .tsv (also .gz) and dense .arff files have the columns of the table that the model was trained on,
    by name and in any order; columns of labels may be left out, as may ``y`` in .npz files. svmlight files
    end in .svm, .svmlight, .libsvm or .txt, also with .gz or .bz2. Labels that are not known may be missing:
    NaN in an npz file, ``?`` in an ARFF file. Without a table's schema, an ARFF file's labels are the
    attributes named like the model's labels; for an svmlight file those names must be numbers.

    Args:
        delimiter: between the values of CSV files.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: another ending; a file that cannot be read, or that lacks the model's features.
    """
    if Path(path).is_dir():
        return open_mapped(path)
    ending = _ending(Path(path))
    if saved.schema is not None and is_table(path):
        return new_rows(path, saved.schema, delimiter)
    if ending == ".npz":
        return read_npz(path, num_labels=len(saved.label_names))
    if ending == ".arff":
        return read_arff(path, by_name(saved.label_names))
    if ending in SVMLIGHT:
        return read_svmlight(path, labels=_label_numbers(saved), num_features=saved.num_inputs)
    if is_table(path):
        raise ValueError(
            "path: expected a file without column names, such as .npz, since the model was trained on "
            f"features that had none, got {path}"
        )
    raise ValueError(
        f"path: expected a file ending in .npz, one of {', '.join(SVMLIGHT)} or, for a model trained on a "
        f"table, one of {', '.join(ENDINGS)}, got {path}"
    )


def rows_of(data: MultilabelData, part: str | None = None) -> Int[np.ndarray, " rows"]:
    """The rows of one of ``PARTS``; by default the test part, or all where there is none.

    Raises:
        ValueError: another part, or an empty one.
    """
    if part is None:
        part = "test" if len(data.test) else "all"
    if part not in PARTS:
        raise ValueError(f"part: expected one of {', '.join(PARTS)}, got {part}")
    rows = np.arange(data.num_instances) if part == "all" else getattr(data, part)
    if len(rows) == 0:
        raise ValueError(f"part: expected one with rows, but {data.name} has no {part} part")
    return rows


@torch.no_grad()
def answers(
    saved: Predictor, features: Features, decoder: Decoder | None = None
) -> Iterator[tuple[list[Any], Decoding]]:
    """Energies of raw rows (several of an ensemble) and their decodings, a batch at a time.

    Args:
        decoder: energy → decoding; by default what an estimator predicts, or the inference that the model was
            trained with, or else exact hinge decoding with its margin. A
            :class:`~lmbm_torch.inference.matching.MatchedInference` that differs from the training's warns.

    Raises:
        ValueError: another number of features than the model was trained with; a decoder for an ensemble.
    """
    check_shape("features", features, None, saved.num_inputs)
    batches = (features[start : start + BATCH_SIZE] for start in range(0, features.shape[0], BATCH_SIZE))
    if isinstance(saved, FittedEstimator) and decoder is None:
        for rows in batches:
            yield saved.energies(rows), saved.decode(rows)
        return
    decode_one = _decoder(saved, decoder)
    for rows in batches:
        energies = saved.energies(rows)
        if len(energies) > 1:
            raise ValueError("decoder: expected none for an ensemble, which has one labelling for each row")
        yield energies, decode_one(energies[0])


def decode(saved: Predictor, features: Features, decoder: Decoder | None = None) -> Iterator[Decoding]:
    """Decodings of raw rows, a batch at a time; arguments and errors as for :func:`answers`."""
    return (found for _, found in answers(saved, features, decoder))


@torch.no_grad()
def predict(saved: Predictor, features: Features, decoder: Decoder | None = None) -> Iterator[Prediction]:
    """Decodings of raw rows and their probabilities, a batch at a time.

    Args:
        decoder: see :func:`answers`; :func:`lmbm_torch.inference.decode` with ``top_k`` gives several.

    Raises:
        ValueError: as for :func:`answers`.
    """
    for energies, found in answers(saved, features, decoder):
        if not saved.has_probabilities:
            yield Prediction(found, None, torch.full_like(found.objective, torch.nan))
            continue
        members = mixture_probabilities(energies, saved.inference)
        # Several labellings of an instance are samples to an energy, whose axis comes first.
        samples = found.labels if found.labels.ndim == 2 else found.labels.transpose(0, 1)
        log_probability = mixture_log_prob(energies, samples, members.log_partition)
        yield Prediction(found, members, log_probability.movedim(-1, 0))


def evaluate(
    saved: Predictor,
    data: MultilabelData,
    rows: Int[np.ndarray, " rows"],
    decoder: Decoder | None = None,
) -> dict[str, float]:
    """Every metric, the share of answers proven optimal and, of a search, its mean number of nodes.

    Args:
        decoder: as for :func:`answers`.

    Raises:
        ValueError: other labels than the model's, or missing ones.
    """
    labels = known_labels(saved, data, rows)
    metrics = multilabel_metrics(len(saved.label_names))
    exact, nodes = [], []
    decodings = decode(saved, features_at(data, rows), decoder)
    for decoding, known in zip(decodings, labels.split(BATCH_SIZE), strict=True):
        metrics.update(decoding.labels, known)
        exact.append(decoding.status.exact)
        if decoding.nodes is not None:
            nodes.append(decoding.nodes)
    scores = {name: float(value) for name, value in metrics.compute().items()}
    scores["proven_optimal"] = float(torch.cat(exact).double().mean())
    if nodes:
        scores["mean_nodes"] = float(torch.cat(nodes).double().mean())
    return scores


def known_labels(
    saved: Predictor, data: MultilabelData, rows: Int[np.ndarray, " rows"]
) -> Float[Tensor, "rows labels"]:
    """The labels of rows, as measuring a model needs them.

    Raises:
        ValueError: other labels than the model's, or missing ones.
    """
    if data.label_names != saved.label_names:
        raise ValueError(
            f"label_names: expected the model's, {list(saved.label_names)}, got {list(data.label_names)}"
        )
    labels = torch.from_numpy(data.labels[rows])
    if missing := int(labels.isnan().sum()):
        raise ValueError(f"labels: expected all known, since measures need them, got {missing} missing")
    return labels


def columns(saved: Predictor) -> list[str]:
    """The names of what :func:`table_rows` gives.

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

    ``row`` counts instances from 0, ``rank`` an instance's labellings from 1; ``labels`` are the names of
    those that are 1. ``probability`` is the whole labelling's, ``P(name)`` each label's own; a model that is
    no distribution has neither. The objective is the decoder's: of a hinge decoding the loss of the labels,
    smaller is better and no labelling has less than the bound; of the most probable labelling its score,
    where both are the other way. ``exact`` is 1 for labellings proven to be the best.
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
    mode: Literal["x", "w"] = "x",
) -> None:
    """Write :func:`columns` and :func:`table_rows` as CSV; the file appears complete or not at all.

    Args:
        mode: as for ``open``: by default an existing file is never overwritten.

    Raises:
        FileExistsError: the file exists, in mode ``"x"``.
        ValueError: a label named like another column.
    """
    target, names = Path(path), columns(saved)
    if mode == "x" and target.exists():
        raise FileExistsError(f"path: expected no file yet, but {target} exists")
    partial_file = target.with_name(target.name + ".partial")
    try:
        with partial_file.open("w", newline="", encoding="utf-8") as stream:
            writer = csv.writer(stream, lineterminator="\n")
            writer.writerow(names)
            writer.writerows(table_rows(saved, predictions))
        partial_file.replace(target)
    finally:
        partial_file.unlink(missing_ok=True)


def _decoder(saved: Predictor, decoder: Decoder | None) -> Callable[[Any], Decoding]:
    if isinstance(decoder, MatchedInference):
        if saved.inference is not None:
            decoder.check_match(saved.inference.record())
        return decoder.decode
    if decoder is not None:
        return decoder
    assert isinstance(saved, SavedModel), "an estimator decodes by itself"
    matched = saved.inference
    return partial(decode_hinge, margin=saved.margin) if matched is None else matched.decode


def _ending(path: Path) -> str:
    """The file's ending, in front of that of a compression."""
    return Path(path.stem).suffix if path.suffix in COMPRESSED else path.suffix


def _label_numbers(saved: Predictor) -> list[int]:
    try:
        return [int(name) for name in saved.label_names]
    except ValueError as error:
        raise ValueError(
            "path: expected an .npz or .arff file, since svmlight files number their labels and this model's "
            f"have names such as {saved.label_names[0]!r}"
        ) from error
