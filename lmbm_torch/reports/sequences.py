"""Reports on predictors of sequences: training, quality, confusions and transitions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from lmbm_torch.data.sequences.records import SequenceData
from lmbm_torch.prediction import answers
from lmbm_torch.prediction.findings import Calibration
from lmbm_torch.prediction.predictor import Predictor
from lmbm_torch.reports.pages import Report
from lmbm_torch.shapes import Int
from lmbm_torch.viz.dependencies import transition_heatmap
from lmbm_torch.viz.quality import label_chart, reliability_diagram

NUM_ROWS = 15
# The metrics at the top of a report, in words.
METRICS = {
    "token_accuracy": "share of tokens with the right tag",
    "sequence_accuracy": "share of sequences entirely right",
    "chunk_f1": "F1 of chunks, right from first to last token",
}
# The attributes of a fitted estimator that describe its training, in words.
LEARNED = {
    "objective_": "value of the training objective",
    "duality_gap_": "largest possible relative distance of the objective from its optimum",
    "relative_gradient_": "norm of the objective's gradient, relative to the norm at zero weights",
    "n_iter_": "iterations",
}


@dataclass(frozen=True)
class ChainFindings:
    """Decoded sequences compared with the true tags.

    Args:
        label_names: the predictor's tags, then tags that occur only in these sequences.
        metrics: see :func:`~lmbm_torch.prediction.answers.evaluate`.
        confusion: the number of tokens with a true tag (row) and a given tag (column).
        calibration: the calibration of the given tags' probabilities; None without probabilities.
        num_sequences: the number of measured sequences.
    """

    label_names: tuple[str, ...]
    metrics: dict[str, float]
    confusion: Int[np.ndarray, "tags tags"]
    calibration: Calibration | None
    num_sequences: int


def findings(saved: Predictor, data: SequenceData, chosen: np.ndarray) -> ChainFindings:
    """Decode sequences and return the findings; for the arguments see ``evaluate``."""
    sequences, count = data.select(chosen), len(data.label_names)
    truth = np.concatenate(sequences.labels)
    given, likely = [], []
    for found in answers.predict(saved, sequences.features):
        labels = found.decoding.labels.cpu()
        inside = labels >= 0
        given.append(labels[inside])
        if found.probabilities is not None:
            own = found.probabilities.labels.cpu().gather(-1, labels.clamp(min=0)[..., None])[..., 0]
            likely.append(own[inside])
    tags = np.concatenate([each.numpy() for each in given])
    confusion = np.bincount(truth * count + tags, minlength=count**2).reshape(count, count)
    calibration = None
    if likely:
        right = np.split(tags == truth, np.cumsum([len(each) for each in likely])[:-1])
        calibration = Calibration.of(_joined(likely), _joined(right))
    metrics = answers.evaluate(saved, data, chosen)
    return ChainFindings(data.label_names, metrics, confusion, calibration, len(sequences.labels))


def report(title: str, saved: Predictor, found: ChainFindings, said: list[str]) -> Report:
    """Return the page of findings, for ``write_html`` and ``write_markdown``.

    Args:
        title: the title of the page.
        saved: the predictor.
        found: the findings.
        said: sentences about the data.
    """
    names, true, given = found.label_names, found.confusion.sum(1), found.confusion.sum(0)
    both = np.diag(found.confusion)
    fitted = saved.estimator.stored_parts()["fitted"]
    learned = {words: fitted.get(name) for name, words in LEARNED.items()}
    transition = fitted.get("transition_")
    content = {
        "title": title,
        "kind": saved.kind,
        "num_tags": len(saved.label_names),
        "num_sequences": found.num_sequences,
        "num_tokens": int(found.confusion.sum()),
        "said": said,
        "learned": [(words, float(value)) for words, value in learned.items() if value is not None],
        "metrics": [(words, found.metrics[name]) for name, words in METRICS.items() if name in found.metrics],
        "tags": [
            {
                "name": names[tag],
                "true": int(true[tag]),
                "given": int(given[tag]),
                "precision": both[tag] / max(given[tag], 1),
                "recall": both[tag] / max(true[tag], 1),
                "f1": 2 * both[tag] / max(true[tag] + given[tag], 1),
            }
            for tag in range(len(names))
        ],
        "confusions": _confusions(found),
        "transitions": [] if transition is None else _strongest(transition, names),
        "calibration_error": None if found.calibration is None else found.calibration.error,
    }
    return Report(content, _figures(saved, found, content["tags"], transition), "sequences")


def _confusions(found: ChainFindings) -> list[tuple[str, str, int]]:
    """Return the most frequent mistakes as (true tag, given tag, count)."""
    wrong = found.confusion * (1 - np.eye(len(found.label_names), dtype=np.int64))
    rows, columns = np.unravel_index(np.argsort(-wrong, axis=None, kind="stable")[:NUM_ROWS], wrong.shape)
    names = found.label_names
    pairs = zip(rows.tolist(), columns.tolist(), strict=True)
    return [
        (names[row], names[column], int(wrong[row, column])) for row, column in pairs if wrong[row, column]
    ]


def _strongest(transition: np.ndarray, names: tuple[str, ...]) -> list[tuple[str, str, float]]:
    """Return the transitions of largest weight as (from, to, weight)."""
    places = np.argsort(-transition, axis=None, kind="stable")[:NUM_ROWS]
    rows, columns = np.unravel_index(places, transition.shape)
    pairs = zip(rows.tolist(), columns.tolist(), strict=True)
    return [(names[row], names[column], float(transition[row, column])) for row, column in pairs]


def _figures(
    saved: Predictor, found: ChainFindings, tags: list[dict[str, Any]], transition: np.ndarray | None
) -> dict[str, Any]:
    true, *shares = (np.array([tag[key] for tag in tags]) for key in ("true", "f1", "precision", "recall"))
    panels: dict[str, np.ndarray] = dict(zip(("F1", "precision", "recall"), shares, strict=True))
    figures = {"tags": label_chart(found.label_names, true, panels, what="tags")}
    if transition is not None:
        figures["transitions"] = transition_heatmap(transition, saved.label_names)
    if found.calibration is not None:
        each = found.calibration
        figures["calibration"] = reliability_diagram({"tags of tokens": (each.said, each.true, each.count)})
    return figures


def _joined(parts: list[Any]) -> Any:
    return torch.cat([torch.as_tensor(part, device="cpu") for part in parts])
