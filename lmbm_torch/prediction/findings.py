"""Numbers of a report on a predictor and labelled rows, and recommendations by these numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lmbm_torch.data import MultilabelData
from lmbm_torch.data.features import Features
from lmbm_torch.energies import DirectedEnergy, PairwiseEnergy
from lmbm_torch.extras import naming_extras
from lmbm_torch.metrics import multilabel_metrics
from lmbm_torch.prediction import answers
from lmbm_torch.prediction.predictor import Predictor
from lmbm_torch.prediction.reading import known_labels
from lmbm_torch.prediction.trained import TrainedModel
from lmbm_torch.shapes import Bool, Float, Int

with naming_extras():
    from scipy.sparse import issparse

# Largest number of features shown for each label and sign.
NUM_SHOWN = 4
# Largest number of labels whose strongest features are shown.
MAX_DESCRIBED = 60
# Features are left out if their influence is below this share of the label's largest influence.
LEAST_INFLUENCE = 0.01
# Largest number of rows, evenly spaced, from which standard deviations of features are computed.
MAX_ROWS = 20_000
# Largest number of labels for which the dependencies of all pairs are measured; for more it takes too long.
MAX_PAIRED = 128
# Largest number of rows over which the dependencies are averaged.
MAX_AVERAGED = 64
# Number of bins of predicted probabilities in a calibration curve.
NUM_BINS = 10
# Calibration errors below this value lead to no recommendation.
LEAST_ERROR = 0.05
# Largest number of names in a sentence.
NUM_NAMES = 8
# Metrics for which smaller values are better.
LOSSES = ("hamming_loss",)


@dataclass(frozen=True)
class FeaturePulls:
    """The features with the largest weights of each label, largest first.

    A pull is a weight times the standard deviation of the feature. If the feature rises by one standard
    deviation, the label's field (half the log-odds given the other labels) rises by the pull.

    Args:
        labels: the described labels, most frequent first.
        towards, against: for each label, names of features and positive (or negative) pulls.
    """

    labels: tuple[int, ...]
    towards: tuple[tuple[tuple[str, float], ...], ...]
    against: tuple[tuple[tuple[str, float], ...], ...]


@torch.no_grad()
def feature_pulls(
    saved: Predictor, features: Features, names: Sequence[str], true: Int[np.ndarray, " labels"]
) -> FeaturePulls | None:
    """Return the features with the strongest influence on the most frequent labels.

    Args:
        saved: the predictor.
        features: raw rows.
        names: the names of the features.
        true: the number of rows in which each label is 1.

    Returns:
        The features; None if fields are not linear (encoders, kernels, hidden units, trees, ensembles).
    """
    coef = saved.estimator.field_weights()
    if coef is None:
        return None
    deviation = _deviations(saved.inputs(_some(features)))
    if coef.shape[1] != len(deviation) or len(names) != len(deviation):
        return None
    labels = np.argsort(-true, kind="stable")[:MAX_DESCRIBED]
    pulls = [coef[label] * deviation for label in labels]
    return FeaturePulls(
        tuple(labels.tolist()),
        tuple(_largest(names, pull, 1) for pull in pulls),
        tuple(_largest(names, pull, -1) for pull in pulls),
    )


def _some(features: Features) -> Features:
    """Return at most :data:`MAX_ROWS` evenly spaced rows."""
    count = features.shape[0]
    return features[np.linspace(0, count - 1, min(count, MAX_ROWS)).astype(np.int64)]


def _deviations(features: Any) -> Float[np.ndarray, " features"]:
    """Return the standard deviation of each column, dense or CSR."""
    if not issparse(features):
        # By rounding, the computed deviation of a constant column may be above 0: set 0.
        varies = features.max(0) > features.min(0)
        return np.where(varies, features.std(0, dtype=np.float64), 0)
    columns = features.astype(np.float64)
    means, squares = (np.asarray(each.mean(0)).ravel() for each in (columns, columns.multiply(columns)))
    variance = squares - means**2
    return np.sqrt(np.where(variance > 1e-12 * squares, variance, 0))


def _largest(
    names: Sequence[str], pulls: Float[np.ndarray, " features"], sign: int
) -> tuple[tuple[str, float], ...]:
    """Return the largest pulls of one sign with names of features, largest first."""
    count = min(NUM_SHOWN, len(pulls))
    places = np.argpartition(-sign * pulls, count - 1)[:count]
    least = LEAST_INFLUENCE * np.abs(pulls).max(initial=0)
    first = sorted(places.tolist(), key=lambda place: -sign * pulls[place])
    return tuple((str(names[place]), float(pulls[place])) for place in first if sign * pulls[place] > least)


@dataclass(frozen=True)
class Dependencies:
    """Influences of all labels on all other labels.

    Args:
        weights: (labels, labels); row i holds the influences on label i, in units of local fields (half
            log-odds). Positive influences make equal values more probable. Symmetric without ``ordering``.
        ordering: the order of the labels in a directed model; each label depends only on earlier labels.
        kind: the meaning of the weights as a text for readers.
    """

    weights: Float[Tensor, "labels labels"]
    ordering: Int[Tensor, " labels"] | None
    kind: str

    def strongest(self, count: int) -> list[tuple[int, int, float]]:
        """Return the largest influences as (influencing label, influenced label, weight).

        If the weights are symmetric, each pair occurs once. Weights below 1 % of the largest are left out.
        """
        shown = self.weights if self.ordering is not None else self.weights.triu(1)
        sizes, places = shown.abs().flatten().topk(min(count, shown.numel()))
        found = places[(sizes > 0) & (sizes >= 0.01 * sizes[0])].tolist()
        width = len(shown)
        return [(place % width, place // width, float(shown.flatten()[place])) for place in found]


@torch.no_grad()
def dependencies(energy: Any, labels: Int[Tensor, "batch labels"]) -> Dependencies | None:
    """Return the weights of parents in a directed model, or couplings; None for too many labels.

    In a model with hidden units or larger cliques, the influence of two labels on each other depends on all
    other labels. The influence is measured at the decoded labels; it is a quarter of score(1, 1) − score(1,
    0) − score(0, 1) + score(0, 0) of the pair, with all other labels as in ``labels``, averaged over up to 64
    instances. In a pairwise model the influence equals the coupling.

    Args:
        energy: the energy of a batch.
        labels: the decoded labels of the batch.
    """
    if isinstance(energy, DirectedEnergy):
        parents = energy.parents if energy.parents.ndim == 2 else energy.parents.mean(0)
        return Dependencies(parents, energy.ordering, "weights of parents")
    if isinstance(energy, PairwiseEnergy):
        couplings = energy.pairwise if energy.pairwise.ndim == 2 else energy.pairwise.mean(0)
        return Dependencies(couplings, None, "couplings")
    size = labels.shape[1]
    if size > MAX_PAIRED:
        return None
    few = slice(0, MAX_AVERAGED)
    energy, labels = energy.select(few), labels[few]
    weights = torch.zeros(size, size, dtype=energy.dtype, device=labels.device)
    for first, second in combinations(range(size), 2):
        states = labels.repeat(4, 1, 1)
        states[:2, :, first], states[2:, :, first] = 1, 0
        states[::2, :, second], states[1::2, :, second] = 1, 0
        both, first_alone, second_alone, neither = energy.score(states).mean(1)
        weights[first, second] = (both - first_alone - second_alone + neither) / 4
    return Dependencies(weights + weights.mT, None, "effective couplings")


with naming_extras():
    from scipy.stats import binomtest


@dataclass(frozen=True)
class Calibration:
    """Probabilities in bins of equal width, compared with observed frequencies.

    Args:
        said: the mean predicted probability in each bin that is not empty.
        true: the share of true entries in each bin.
        count: the number of entries in each bin.
    """

    said: Float[np.ndarray, " bins"]
    true: Float[np.ndarray, " bins"]
    count: Int[np.ndarray, " bins"]

    @classmethod
    def of(cls, probability: Tensor, outcome: Tensor) -> Calibration:
        """Sort probabilities with their outcomes in {0, 1} into bins; both tensors have the same shape."""
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
        """Return the expected calibration error: the mean distance between probability and frequency."""
        return float(np.abs(self.said - self.true) @ self.count / self.count.sum())


@dataclass(frozen=True)
class Findings:
    """Rows decoded jointly and label by label, compared with the true labels.

    Args:
        label_names: one name for each label.
        rows: the numbers of the rows in the data set, from 0.
        truth: the true labels.
        joint: the labels decoded jointly.
        alone: labels decoded separately: 1 if the marginal probability is at least one half.
        probability: the marginal probability of each label.
        joint_probability: the probability of the joint labels; NaN if only an approximation is known.
        exact: whether the joint labels are proven optimal.
        nodes: the number of search nodes of each row; None without a search.
        dependencies: the dependencies between labels; None for too many labels and for an ensemble.
        method: the name of the routine that computed the probabilities.
        explained: the first row with different joint and marginal labels, or else the first row, and the
            ``Explanation`` of its joint labels; None if the predictor explains nothing.
        pulls: the features with the strongest influence; None unless fields are linear.
        share_in_training: the share of training rows with each label true, among rows with the label known;
            NaN for a label that is never known. None if the training rows are not known.
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
        """Return for each metric the values of joint decoding and of separate decoding."""
        metrics = multilabel_metrics(len(self.label_names))
        # Calling a metric returns the value of this batch.
        joint, alone = (metrics(labels, self.truth) for labels in (self.joint, self.alone))
        return {name: (float(joint[name]), float(alone[name])) for name in joint}

    def baseline(self) -> dict[str, float]:
        """Return all metrics of the answer that ignores features: the majority value of each label.

        The majority is that of the training rows or, if these are not known, of the rows of the report.
        """
        share = (
            self.truth.double().mean(0).numpy() if self.share_in_training is None else self.share_in_training
        )
        usual = torch.from_numpy(np.nan_to_num(share) > 0.5).long()
        found = multilabel_metrics(len(self.label_names))(usual.expand_as(self.truth), self.truth)
        return {name: float(value) for name, value in found.items()}

    @property
    def right(self) -> tuple[Bool[Tensor, " rows"], Bool[Tensor, " rows"]]:
        """Return masks of the rows with an exact match, for joint and for separate decoding."""
        return (self.joint == self.truth).all(1), (self.alone == self.truth).all(1)

    @property
    def mended(self) -> Bool[Tensor, "rows labels"]:
        """Return a mask of labels that joint decoding has right and separate decoding wrong."""
        return (self.joint == self.truth) & (self.alone != self.truth)

    @property
    def broken(self) -> Bool[Tensor, "rows labels"]:
        """Return a mask of labels that joint decoding has wrong and separate decoding right."""
        return (self.joint != self.truth) & (self.alone == self.truth)

    @property
    def changed_rows(self) -> Int[Tensor, " changed"]:
        """Return the rows for which joint and separate decoding differ."""
        return (self.joint != self.alone).any(1).nonzero()[:, 0]

    def rows_gained_and_lost(self) -> tuple[int, int]:
        """Return the numbers of rows that only joint decoding, and that only separate decoding has right."""
        joint, alone = self.right
        return int((joint & ~alone).sum()), int((alone & ~joint).sum())

    def sign_test(self) -> float:
        """Return the p-value of the exact two-sided McNemar test of :meth:`rows_gained_and_lost`.

        If no row is gained or lost, the value is 1.
        """
        gained, lost = self.rows_gained_and_lost()
        return float(binomtest(gained, gained + lost).pvalue) if gained + lost else 1.0

    def by_label(self) -> dict[str, np.ndarray]:
        """Return counts, precision, recall, F1 and error of the joint labels for each label.

        Ratios with a denominator of 0 are 0. ``calibration`` is the expected calibration error of the
        marginals.
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
        """Return the calibration of the marginal probabilities of all labels together."""
        return Calibration.of(self.probability, self.truth)

    def joint_calibration(self) -> Calibration | None:
        """Return the calibration of the joint labels' probabilities; None if unknown."""
        if bool(self.joint_probability.isnan().any()):
            return None
        return Calibration.of(self.joint_probability, self.right[0])

    def brier_score(self) -> float:
        """Return the mean squared distance between marginal probabilities and true labels."""
        return float((self.probability.double() - self.truth).square().mean())


def findings(
    saved: Predictor,
    data: MultilabelData,
    rows: Int[np.ndarray, " rows"],
    decoder: answers.Decoder | None = None,
    trained_on: Float[np.ndarray, "instances labels"] | None = None,
) -> Findings:
    """Decode rows jointly and label by label, and compare both answers with the truth, on the CPU.

    Args:
        saved: the predictor.
        data: the data set.
        rows: the rows to decode, by number.
        decoder: see :func:`~lmbm_torch.prediction.answers.answers`.
        trained_on: the labels of the training, NaN if unknown, for :meth:`Findings.baseline`; None if the
            training rows are not known.

    Raises:
        ValueError: labels differ from the predictor's or are missing, the number of features differs, or the
            predictor has no probabilities.
    """
    if not saved.has_probabilities:
        raise ValueError(
            f"model: expected a model with probabilities of labels, which reports need, got {saved.kind}"
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
    """Return the share of ones among the known values of each label; NaN if no value is known."""
    known = ~np.isnan(labels)
    return np.where(known.any(0), np.where(known, labels, 0).sum(0) / np.maximum(known.sum(0), 1), np.nan)


def _explained(
    saved: Predictor, features: Features, rows: Int[np.ndarray, " rows"], place: int
) -> tuple[int, Any] | None:
    """Return the number of a row and its explanation; None if the predictor explains nothing."""
    row = features[[place]]
    reason = saved.explanation(row)
    return None if reason is None else (int(rows[place]), reason)


def _on_host(parts: Iterable[Tensor]) -> Tensor:
    """Concatenate tensors on the CPU."""
    return torch.cat([part.cpu() for part in parts])


def _dependencies(energy: Any, labels: Tensor) -> Dependencies | None:
    """Return the dependencies on the CPU."""
    found = dependencies(energy, labels)
    if found is None:
        return None
    ordering = None if found.ordering is None else found.ordering.cpu()
    return replace(found, weights=found.weights.cpu(), ordering=ordering)


def advice(saved: Predictor, found: Findings, intervals: Mapping[str, tuple[float, float]]) -> list[str]:
    """Return recommendations as sentences, the most important one first.

    Args:
        saved: the predictor.
        found: the findings of a report.
        intervals: the 95 % intervals of the headline metrics.

    Returns:
        The sentences; an empty list if there is no recommendation.
    """
    return [
        *_no_better_than_nothing(found, intervals),
        *_labels_without_variety(found),
        *_never_given(saved, found),
        *_edge_of_search(saved),
        *_uncalibrated(saved, found),
        *_unproven(saved, found),
    ]


def _no_better_than_nothing(found: Findings, intervals: Mapping[str, tuple[float, float]]) -> Iterable[str]:
    without = found.baseline()
    better = (
        high < without[name] if name in LOSSES else low > without[name]
        for name, (low, high) in intervals.items()
    )
    if not any(better):
        yield (
            "No measure is clearly better than that of the answer that needs no features: look for other "
            "features, for more rows, or at whether the rows and their labels belong together."
        )


def _labels_without_variety(found: Findings) -> Iterable[str]:
    true, rows = found.by_label()["true"], len(found.truth)
    for words, dead in (("never", true == 0), ("always", true == rows)):
        if dead.any():
            yield (
                f"Labels that are {words} true in these rows tell nothing of the model here, and count in "
                f"means over labels: {_names(found, dead)}. Measure where they vary, or leave them out."
            )


def _never_given(saved: Predictor, found: Findings) -> Iterable[str]:
    by_label = found.by_label()
    missed = (by_label["predicted"] == 0) & (by_label["true"] > 0)
    if not missed.any():
        return
    remedies = ["more rows where they are true"]
    if not isinstance(saved.estimator, TrainedModel):
        settings = saved.estimator.trained.get_params(deep=False)
        if settings.get("class_weight", "") is None:
            remedies.append('class_weight="balanced"')
        if settings.get("decoder") == "hinge":
            remedies.append('decoder="f1"')
    *others, last = remedies
    ways = f"{', '.join(others)} or {last}" if others else last
    yield f"Labels true in some rows and given to none: {_names(found, missed)}. Try {ways}."


def _edge_of_search(saved: Predictor) -> Iterable[str]:
    trained = saved.estimator.trained
    if isinstance(trained, TrainedModel):
        return
    if trained.C_edge_ is not None:
        # C is a text if it is a multiple of "scale".
        C = trained.C if isinstance(trained.C, str) else f"{trained.C:g}"
        further = "smaller" if trained.C_edge_ == "smallest" else "larger"
        yield (
            f"C = {C} is the {trained.C_edge_} value that was searched: search {further} ones, too "
            f"(Cs, from the shell estimator.Cs=[…])."
        )


def _uncalibrated(saved: Predictor, found: Findings) -> Iterable[str]:
    calibration = found.calibration()
    if calibration.error < max(LEAST_ERROR, 2 * _by_chance(calibration, len(found.label_names))):
        return
    trained = saved.estimator.trained
    if not isinstance(trained, TrainedModel):
        # An estimator without the parameter "calibrate" counts as calibrated.
        if trained.get_params(deep=False).get("calibrate", True) is not False:
            return
        how = "calibrate=True (from the shell estimator.calibrate=true, or estimator.base.calibrate=true)"
    elif trained.calibration is None:
        how = "training=dual, whose training.calibrate=true is the default"
    else:
        return
    yield f"Probabilities are off by {calibration.error:.2f} on average and not calibrated: train with {how}."


def _by_chance(calibration: Calibration, num_labels: int) -> float:
    """Return the calibration error that perfect probabilities would have by chance in so many rows."""
    variance = np.maximum(calibration.said * (1 - calibration.said), 1e-3)
    noise = np.sqrt(2 / np.pi * variance * num_labels / calibration.count)
    return float(noise @ calibration.count / calibration.count.sum())


def _unproven(saved: Predictor, found: Findings) -> Iterable[str]:
    unproven = int((~found.exact).sum())
    if not unproven:
        return
    try:
        saved.limited(None)
        how = "search longer, by a larger --node-limit or by none (node_limit=None)"
    except ValueError:
        how = "where a proof counts, decode by search, as --most-probable and --least-hinge do"
    yield f"{unproven} of {len(found.exact)} answers are not proven optimal: {how}."


def _names(found: Findings, which: Any) -> str:
    names = [found.label_names[place] for place in np.flatnonzero(which)]
    more = f" and {len(names) - NUM_NAMES} more" if len(names) > NUM_NAMES else ""
    return ", ".join(names[:NUM_NAMES]) + more
