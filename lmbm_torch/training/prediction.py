"""Predictions and metrics of a saved model for the rows of a file."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from lmbm_torch.checks import check_shape
from lmbm_torch.data import MultilabelData, by_name, read_arff, read_npz, read_svmlight
from lmbm_torch.data.dataset import Features
from lmbm_torch.data.tensors import to_tensor
from lmbm_torch.inference.matching import MatchedInference
from lmbm_torch.inference.results import Decoding
from lmbm_torch.metrics import multilabel_metrics
from lmbm_torch.shapes import Int
from lmbm_torch.training.checkpoints import SavedModel
from lmbm_torch.training.decoding import decode_hinge

BATCH_SIZE = 1024
CERTIFICATE = ("objective", "bound", "exact")
COMPRESSED = (".gz", ".bz2")
SVMLIGHT = (".svm", ".svmlight", ".libsvm", ".txt")
PARTS = ("train", "test", "all")


def read(path: str | PathLike, saved: SavedModel) -> MultilabelData:
    """Read an .npz or .arff file, or an svmlight one: .svm, .svmlight, .libsvm, .txt, also with .gz or .bz2.

    Labels that are not known may be missing: NaN in an npz file, ``?`` in an ARFF file. In an ARFF file the
    labels are the attributes named like the model's labels; for an svmlight file those names must be numbers.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: another ending; a file that cannot be read, or that lacks the model's labels.
    """
    ending = _ending(Path(path))
    if ending == ".npz":
        return read_npz(path)
    if ending == ".arff":
        return read_arff(path, by_name(saved.label_names))
    if ending in SVMLIGHT:
        return read_svmlight(path, labels=_label_numbers(saved), num_features=saved.num_inputs)
    raise ValueError(
        f"path: expected a file ending in .npz, .arff or one of {', '.join(SVMLIGHT)}, got {path}"
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
def decode(
    saved: SavedModel,
    features: Features,
    decoder: Callable[[Any], Decoding] | MatchedInference | None = None,
) -> Iterator[Decoding]:
    """Decodings of raw rows, a batch at a time.

    Args:
        decoder: energy → decoding; by default the inference that the model was trained with, or else exact
            hinge decoding with its margin. A :class:`~lmbm_torch.inference.matching.MatchedInference` that
            differs from the training's warns.

    Raises:
        ValueError: another number of features than the model was trained with.
    """
    check_shape("features", features, None, saved.num_inputs)
    if isinstance(decoder, MatchedInference):
        if saved.inference is not None:
            decoder.check_match(saved.inference.record())
        decoder = decoder.decode
    if decoder is None:
        matched = saved.inference
        decoder = partial(decode_hinge, margin=saved.margin) if matched is None else matched.decode
    for start in range(0, features.shape[0], BATCH_SIZE):
        energy = saved.energy(to_tensor(features[start : start + BATCH_SIZE]))
        yield decoder(energy)


def evaluate(
    saved: SavedModel,
    data: MultilabelData,
    rows: Int[np.ndarray, " rows"],
    decoder: Callable[[Any], Decoding] | MatchedInference | None = None,
) -> dict[str, float]:
    """Every metric, the share of answers proven optimal and, of a search, its mean number of nodes.

    Args:
        decoder: as for :func:`decode`.

    Raises:
        ValueError: other labels than the model's, or missing ones.
    """
    if data.label_names != saved.label_names:
        raise ValueError(
            f"label_names: expected the model's, {list(saved.label_names)}, got {list(data.label_names)}"
        )
    labels = torch.from_numpy(data.labels[rows])
    metrics = multilabel_metrics(len(saved.label_names))
    exact, nodes = [], []
    decodings = decode(saved, data.features[rows], decoder)
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


def write_predictions(
    path: str | PathLike, saved: SavedModel, decodings: Iterable[Decoding], mode: Literal["x", "w"] = "x"
) -> None:
    """CSV with a column for each label, then ``objective``, ``bound`` and ``exact`` (1: proven optimal).

    The objective is the decoder's own: of a hinge decoding the loss of the labels, smaller is better and no
    labelling has less than the bound; of the most probable labelling its score, where both are the other way.

    Args:
        mode: as for ``open``: by default an existing file is never overwritten.

    Raises:
        FileExistsError: the file exists, in mode ``"x"``.
        ValueError: a label named like one of the last three columns.
    """
    if taken := sorted({*saved.label_names} & {*CERTIFICATE}):
        raise ValueError(f"label_names: expected none of {', '.join(CERTIFICATE)}, got {taken}")
    table: list[list[object]] = [[*saved.label_names, *CERTIFICATE]]
    for decoding in decodings:
        columns = (decoding.objective, decoding.bound, decoding.status.exact.int())
        certificates = zip(*(column.tolist() for column in columns), strict=True)
        for labels, certificate in zip(decoding.labels.tolist(), certificates, strict=True):
            table.append([*labels, *certificate])
    with Path(path).open(mode, newline="", encoding="utf-8") as stream:
        csv.writer(stream, lineterminator="\n").writerows(table)


def _ending(path: Path) -> str:
    """The file's ending, in front of that of a compression."""
    return Path(path.stem).suffix if path.suffix in COMPRESSED else path.suffix


def _label_numbers(saved: SavedModel) -> list[int]:
    try:
        return [int(name) for name in saved.label_names]
    except ValueError as error:
        raise ValueError(
            "path: expected an .npz or .arff file, since svmlight files number their labels and this model's "
            f"have names such as {saved.label_names[0]!r}"
        ) from error
