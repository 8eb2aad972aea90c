"""The numbers of a report on a trained model and labelled rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lmbm_torch.data import MultilabelData
from lmbm_torch.data.features import Features
from lmbm_torch.extras import naming_extras
from lmbm_torch.metrics import multilabel_metrics
from lmbm_torch.prediction import answers
from lmbm_torch.prediction.dependencies import Dependencies, dependencies
from lmbm_torch.prediction.predictor import Predictor
from lmbm_torch.prediction.pulling import FeaturePulls, feature_pulls
from lmbm_torch.prediction.reading import known_labels
from lmbm_torch.shapes import Bool, Float, Int

with naming_extras():
    from scipy.stats import binomtest

NUM_BINS = 10


@dataclass(frozen=True)
class Calibration:
    """Probabilities in bins of equal width, beside the frequency with which they come true.

    Args:
        said: mean probability of each bin that has an entry.
        true: share of its entries that are true.
        count: of its entries.
    """

    said: Float[np.ndarray, " bins"]
    true: Float[np.ndarray, " bins"]
    count: Int[np.ndarray, " bins"]

    @classmethod
    def of(cls, probability: Tensor, outcome: Tensor) -> Calibration:
        """Bin probabilities by what came true, of any shape, both the same."""
        said, true = (values.double().flatten().numpy() for values in (probability, outcome))
        bins = np.minimum((said * NUM_BINS).astype(int), NUM_BINS - 1)
        count = np.bincount(bins, minlength=NUM_BINS)
        full = count > 0
        mean_said, mean_true = (
            np.bincount(bins, values, NUM_BINS)[full] / count[full] for values in (said, true)
        )
        return cls(mean_said, mean_true, count[full])

    @property
    def error(self) -> float:
        """The mean distance between probability and frequency (expected calibration error)."""
        return float(np.abs(self.said - self.true) @ self.count / self.count.sum())


@dataclass(frozen=True)
class Findings:
    """Rows decoded and compared with their labels, twice: jointly, and each label by its own probability.

    Args:
        label_names: one per label.
        rows: their numbers in the data set, from 0.
        truth: the labels of the rows.
        joint: decoded together.
        alone: each label 1 whose own probability is at least one half, whatever the others are.
        probability: of each label.
        joint_probability: of the labels decoded together; NaN where there is only an approximation.
        exact: the joint labels are proven to be the best.
        nodes: of the search, where there was one.
        dependencies: between the labels; None for too many labels, and for an ensemble.
        method: how probabilities were computed.
        explained: a row where the two answers differ, or the first one, and why it has its joint labels; None
            of a model that cannot be taken apart.
        pulls: of features; None of a model of which this cannot be told.
        share_in_training: of the training rows where each label is known, those where it is true; NaN of a
            label that is known in none. None where the training rows are not known.
    """

    label_names: tuple[str, ...]
    rows: Int[np.ndarray, " rows"]
    truth: Int[Tensor, "rows labels"]
    joint: Int[Tensor, "rows labels"]
    alone: Int[Tensor, "rows labels"]
    probability: Float[Tensor, "rows labels"]
    joint_probability: Float[Tensor, " rows"]
    exact: Bool[Tensor, " rows"]
    nodes: Int[Tensor, " rows"] | None
    dependencies: Dependencies | None
    method: str
    explained: tuple[int, Any] | None = None
    pulls: FeaturePulls | None = None
    share_in_training: Float[np.ndarray, " labels"] | None = None

    def metrics(self) -> dict[str, tuple[float, float]]:
        """Every metric of the library: decided jointly, and alone."""
        metrics = multilabel_metrics(len(self.label_names))
        # Each call gives the values of these labels alone.
        joint, alone = (metrics(labels, self.truth) for labels in (self.joint, self.alone))
        return {name: (float(joint[name]), float(alone[name])) for name in joint}

    def baseline(self) -> dict[str, float]:
        """Every metric of the answer that needs no features: of each label what it is in most rows.

        These are the training rows where they are known, else the rows themselves.
        """
        share = (
            self.truth.double().mean(0).numpy() if self.share_in_training is None else self.share_in_training
        )
        usual = torch.from_numpy(np.nan_to_num(share) > 0.5).long()
        found = multilabel_metrics(len(self.label_names))(usual.expand_as(self.truth), self.truth)
        return {name: float(value) for name, value in found.items()}

    @property
    def right(self) -> tuple[Bool[Tensor, " rows"], Bool[Tensor, " rows"]]:
        """Rows that are entirely right jointly, and those that are by each label alone."""
        return (self.joint == self.truth).all(1), (self.alone == self.truth).all(1)

    @property
    def mended(self) -> Bool[Tensor, "rows labels"]:
        """Decisions that are right jointly and would be wrong alone."""
        return (self.joint == self.truth) & (self.alone != self.truth)

    @property
    def broken(self) -> Bool[Tensor, "rows labels"]:
        """Decisions that are wrong jointly and would be right alone."""
        return (self.joint != self.truth) & (self.alone == self.truth)

    @property
    def changed_rows(self) -> Int[Tensor, " changed"]:
        """Rows where the two answers differ."""
        return (self.joint != self.alone).any(1).nonzero()[:, 0]

    def rows_gained_and_lost(self) -> tuple[int, int]:
        """Rows that are entirely right only jointly, and only by each label alone."""
        joint, alone = self.right
        return int((joint & ~alone).sum()), int((alone & ~joint).sum())

    def sign_test(self) -> float:
        """The p-value of the difference between gained and lost rows, were it chance.

        Exact and two-sided (McNemar's test); 1 where no row changed between right and wrong.
        """
        gained, lost = self.rows_gained_and_lost()
        return float(binomtest(gained, gained + lost).pvalue) if gained + lost else 1.0

    def by_label(self) -> dict[str, np.ndarray]:
        """For each label: how often it is true and predicted, precision, recall, F1 and error, jointly.

        Ratios of nothing are 0. ``calibration`` is the expected calibration error of its probability.
        """
        truth, found = self.truth.bool().numpy(), self.joint.bool().numpy()
        both, given, wanted = (truth & found).sum(0), found.sum(0), truth.sum(0)
        names = range(len(self.label_names))
        return {
            "true": wanted,
            "predicted": given,
            "precision": both / np.maximum(given, 1),
            "recall": both / np.maximum(wanted, 1),
            "f1": 2 * both / np.maximum(given + wanted, 1),
            "error": (truth != found).mean(0),
            "calibration": np.array(
                [Calibration.of(self.probability[:, k], self.truth[:, k]).error for k in names]
            ),
            "mended": self.mended.sum(0).numpy(),
            "broken": self.broken.sum(0).numpy(),
        }

    def calibration(self) -> Calibration:
        """Of all labels' probabilities together."""
        return Calibration.of(self.probability, self.truth)

    def joint_calibration(self) -> Calibration | None:
        """Of whole labellings' probabilities; None where they are not known."""
        if bool(self.joint_probability.isnan().any()):
            return None
        return Calibration.of(self.joint_probability, self.right[0])

    def brier_score(self) -> float:
        """The mean squared distance between a label's probability and whether it is true."""
        return float((self.probability.double() - self.truth).square().mean())


def findings(
    saved: Predictor,
    data: MultilabelData,
    rows: Int[np.ndarray, " rows"],
    decoder: answers.Decoder | None = None,
    trained_on: Float[np.ndarray, "instances labels"] | None = None,
) -> Findings:
    """Decode rows of a data set and set them beside their labels, on the host whatever the model's device.

    Args:
        decoder: see :func:`~lmbm_torch.prediction.answers.answers`.
        trained_on: the labels that the model was trained on, NaN where unknown, for the answer that needs no
            features; None where they are not known.

    Raises:
        ValueError: other labels than the model's, or missing ones; another number of features; a model that
            is no distribution.
    """
    if not saved.has_probabilities:
        raise ValueError(
            "model: expected a distribution of labels, since reports set decisions beside probabilities, got "
            f"{saved.kind}"
        )
    truth = known_labels(saved, data, rows)
    features = data.features_at(rows)
    found = list(answers.predict(saved, features, decoder))
    decodings = [each.decoding for each in found]
    likely = [each.probabilities for each in found if each.probabilities is not None]
    probability = _on_host(each.labels for each in likely)
    joint = _on_host(each.labels for each in decodings)
    nodes = [each.nodes for each in decodings if each.nodes is not None]
    first = decodings[0].labels
    alone = (probability >= 0.5).long()
    energies = saved.energies(features[: len(first)])
    return Findings(
        saved.label_names,
        rows,
        truth.long(),
        joint,
        alone,
        probability,
        _on_host(each.log_prob for each in found).exp(),
        _on_host(each.status.exact for each in decodings),
        _on_host(nodes) if nodes else None,
        _dependencies(energies[0], first) if len(energies) == 1 else None,
        likely[0].method,
        _explained(saved, features, rows, int((joint != alone).any(1).long().argmax())),
        feature_pulls(saved, features, data.feature_names, truth.sum(0).long().numpy()),
        None if trained_on is None else _shares(trained_on),
    )


def _shares(labels: Float[np.ndarray, "instances labels"]) -> Float[np.ndarray, " labels"]:
    """Of each label where it is known; NaN where it never is."""
    known = ~np.isnan(labels)
    return np.where(known.any(0), np.where(known, labels, 0).sum(0) / np.maximum(known.sum(0), 1), np.nan)


def _explained(
    saved: Predictor, features: Features, rows: Int[np.ndarray, " rows"], place: int
) -> tuple[int, Any] | None:
    """Why the row at a place has its labels, where that can be told."""
    row = features[[place]]
    reason = saved.explanation(row)
    return None if reason is None else (int(rows[place]), reason)


def _on_host(parts: Iterable[Tensor]) -> Tensor:
    """Joined, for reports and figures."""
    return torch.cat([part.cpu() for part in parts])


def _dependencies(energy: Any, labels: Tensor) -> Dependencies | None:
    """On the host."""
    found = dependencies(energy, labels)
    if found is None:
        return None
    ordering = None if found.ordering is None else found.ordering.cpu()
    return replace(found, weights=found.weights.cpu(), ordering=ordering)
