"""Structural SVMs for label vectors with losses other than Hamming, or with slacks rescaled by the loss.

Margin rescaling maximises Δ(y) + score(y) − score(truth), slack rescaling Δ(y) (1 + score(y) − score(truth))
(Tsochantaridis et al. 2004). With the 0/1 loss both are the same problem, which needs only the best labelling
other than the truth; every decoder that takes known labels finds and certifies it. Other losses are no sums
over labels, so labellings are enumerated.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

import numpy as np
import torch

from lmbm_torch.energies.base import to_spins
from lmbm_torch.inference.common.results import Decoding
from lmbm_torch.solvers.structural.label_vectors import Decoder, LabelVectorOracle, decode_with
from lmbm_torch.solvers.structural.problems import CuttingPlanes, Maximisers

LOSSES = ("hamming", "zero_one", "f1")
RESCALINGS = ("margin", "slack")
# Largest number of labels for enumeration: 16,384 scores for each example.
MOST_LABELS = 14
# Largest number of scores in memory at once: 64 MiB.
SCORES_AT_ONCE = 2**23


@dataclass(frozen=True)
class TaskLossOracle:
    """Loss-augmented decoding for a loss Δ of whole labellings.

    Args:
        vectors: the labels, the pairs, the decoder, and the costs of wrong labels in the Hamming loss.
        loss: ``"hamming"``; ``"zero_one"``, 1 for every labelling but the truth; or ``"f1"``, for the truth t
            1 − 2 |y ∩ t| / (|y| + |t|), and 0 if both sets are empty.
        rescaling: ``"margin"`` or ``"slack"``.

    Raises:
        ValueError: the loss or the rescaling is unknown; costs are given with a loss other than Hamming;
            there are more than ``MOST_LABELS`` labels with a loss other than 0/1.
    """

    vectors: LabelVectorOracle
    loss: str
    rescaling: str

    def __post_init__(self) -> None:
        for name, known in (("loss", LOSSES), ("rescaling", RESCALINGS)):
            if getattr(self, name) not in known:
                raise ValueError(f"{name}: expected one of {known}, got {getattr(self, name)!r}")
        if self.vectors.costs is not None and self.loss != "hamming":
            raise ValueError(f"costs: expected None with the loss {self.loss!r}, got costs of labels")
        count = self.labels.shape[1]
        if self.loss != "zero_one" and count > MOST_LABELS:
            raise ValueError(
                "loss: expected 'zero_one', or 'hamming' with the margin rescaled, for more than "
                f"{MOST_LABELS} labels, got {self.loss!r}, rescaling={self.rescaling!r} and {count} labels"
            )

    @property
    def labels(self) -> np.ndarray:
        """Return the true labels, (examples, labels)."""
        return self.vectors.labels

    @property
    def decoder(self) -> Decoder:
        """Return the function that finds labellings of large score."""
        return self.vectors.decoder

    def __call__(self, scores: np.ndarray, couplings: np.ndarray, examples: np.ndarray) -> Maximisers:
        """Return the labellings of largest rescaled violation, with a bound for each example."""
        if self.labels.shape[1] > MOST_LABELS:
            return self._decoded(scores, couplings, examples)
        step = max(1, SCORES_AT_ONCE // len(self._every))
        parts = [slice(first, first + step) for first in range(0, len(examples), step)]
        found = [self._enumerated(scores[part], couplings, examples[part]) for part in parts]
        best, bound = (np.concatenate(each) for each in zip(*found, strict=True))
        return Maximisers(self.planes(examples, self._every[best]), bound)

    def planes(self, examples: np.ndarray, labels: np.ndarray) -> CuttingPlanes:
        """Return a plane for each example of ``examples`` (planes,), from the labelling (planes, labels)."""
        planes = self.vectors.planes(examples, labels)
        truth = self.labels[examples]
        wrong = np.abs(truth - labels) * (1.0 if self.vectors.costs is None else self.vectors.costs[examples])
        losses = self._loss((truth * labels).sum(1), (truth + labels).sum(1), wrong.sum(1))
        # With slack rescaling, ξ ≥ Δ (1 − ⟨w, ψ⟩): a plane with loss Δ and statistics Δ ψ.
        value = planes.value * losses[planes.plane] if self.rescaling == "slack" else planes.value
        return replace(planes, loss=losses, value=value)

    def losses(self, examples: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Return the loss Δ of each of the ``labels`` (labellings, labels), (examples, labellings)."""
        truth = self.labels[examples].astype(np.float64)
        both, sizes = truth @ labels.T, truth.sum(1)[:, None] + labels.sum(1)
        costs = np.ones(truth.shape) if self.vectors.costs is None else self.vectors.costs[examples]
        return self._loss(both, sizes, (costs * truth).sum(1)[:, None] + (costs * (1 - 2 * truth)) @ labels.T)

    def _loss(self, both: np.ndarray, sizes: np.ndarray, wrong: np.ndarray) -> np.ndarray:
        """Return Δ from |y ∩ t|, |y| + |t| and the costs of wrong labels, all of one shape."""
        if self.loss == "f1":
            return np.where(sizes == 0, 0.0, 1 - 2 * both / np.maximum(sizes, 1))
        return np.where(sizes > 2 * both, 1.0, 0.0) if self.loss == "zero_one" else wrong

    @cached_property
    def _every(self) -> np.ndarray:
        return np.array(list(product((0, 1), repeat=self.labels.shape[1])))

    def _enumerated(
        self, scores: np.ndarray, couplings: np.ndarray, examples: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return for each example the number of the best labelling, and its violation."""
        spins = to_spins(self._every, np.float64)
        pairs = (spins[:, self.vectors.first] * spins[:, self.vectors.second]) @ couplings
        every = scores @ spins.T + pairs
        place = self.labels[examples] @ (1 << np.arange(self.labels.shape[1])[::-1])
        excess = every - np.take_along_axis(every, place[:, None], 1)
        losses = self.losses(examples, self._every)
        violation = losses + excess if self.rescaling == "margin" else losses * (1 + excess)
        best = violation.argmax(1)
        return best, np.take_along_axis(violation, best[:, None], 1)[:, 0]

    def _decoded(self, scores: np.ndarray, couplings: np.ndarray, examples: np.ndarray) -> Maximisers:
        """Return the best labellings other than the truth; if need be, with each label wrong in turn."""
        energy, truth = self.vectors.energy(scores, couplings), torch.from_numpy(self.labels[examples])
        found = decode_with(self.decoder, energy)
        labels, bound = _labels(found), found.bound.clone()
        (right,) = (labels == truth).all(1).nonzero(as_tuple=True)
        bound[right] = -torch.inf
        best = bound[right].clone()
        for label in range(truth.shape[1] if len(right) else 0):
            known = torch.full(truth[right].shape, torch.nan, dtype=energy.dtype, device="cpu")
            known[:, label] = 1 - truth[right, label]
            part = energy.select(right)
            wrong = decode_with(self.decoder, part, known=known)
            score = part.score(_labels(wrong))
            better = score > best
            labels[right[better]] = _labels(wrong)[better]
            best[better] = score[better]
            bound[right] = torch.maximum(bound[right], wrong.bound)
        planes = self.planes(examples, labels.numpy())
        return Maximisers(planes, (1 + bound - energy.score(truth)).numpy())


def _labels(found: Decoding) -> torch.Tensor:
    if found.relaxed is not None:
        raise ValueError("decoder: expected whole labellings for the 0/1 loss, got relaxed labels")
    return found.labels.clone()
