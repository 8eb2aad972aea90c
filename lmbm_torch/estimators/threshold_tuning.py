"""Decision thresholds of a network's labels, chosen for a measure by cross-validation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from sklearn.base import clone
from sklearn.model_selection import BaseCrossValidator, check_cv
from torch import Tensor

from lmbm_torch.checks import check_count, check_labels
from lmbm_torch.energies import DirectedEnergy
from lmbm_torch.estimators.network import NetworkClassifier, label_tensor
from lmbm_torch.estimators.sigmoid_belief import LMSBNClassifier
from lmbm_torch.inference.results import Decoding
from lmbm_torch.metrics import functional

Measure = Callable[[Tensor, Tensor], Tensor]
MEASURES: dict[str, Measure] = {
    "exact_match": functional.exact_match,
    "sample_f1": functional.sample_f1,
    "macro_f1": functional.macro_f1,
    "micro_f1": functional.micro_f1,
}


class ThresholdTunedClassifier(NetworkClassifier):
    """A network whose labels' fields are shifted by thresholds that raise a measure (Fan and Lin 2007).

    The thresholds are optimised one label at a time, in cycles, on the fields that networks trained without
    an instance give it. With independent labels (``LMSBNClassifier(degree=1)``, linear or with a kernel) this
    is the threshold-selected classifier of lmbm_and_lmsbn_2010, section 4; with parents it is what its
    section 4 proposes, and every trial is decoded as predictions are.

    Args:
        base: the network, whose ``decoder`` has no part; ``LMSBNClassifier()`` by default.
        measure: ``"exact_match"``, ``"sample_f1"``, ``"macro_f1"`` or ``"micro_f1"``.
        cv: folds, as scikit-learn takes them.
        num_steps: thresholds to try for a label are γ j / num_steps for |j| < num_steps. ±γ are not among
            them: where a label is hardly learned, they would leave fields of zero, which speak for neither.
        max_cycles: of trials of all labels; fewer if a cycle changes nothing.

    Attributes:
        thresholds_: (labels,), what is subtracted from the fields; 0 wherever no other is better.
        cross_validated_: the measure at these thresholds, over the instances held out.
        network_: the network, fitted to all instances.
    """

    def __init__(self, base=None, *, measure="exact_match", cv=5, num_steps=20, max_cycles=5):
        self.base = base
        self.measure = measure
        self.cv = cv
        self.num_steps = num_steps
        self.max_cycles = max_cycles

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.pairwise = (
            isinstance(self.base, LMSBNClassifier) and self.base.kernel == "precomputed"
        )
        return tags

    def fit(self, X, y, sample_weight=None):
        """As for :class:`LMSBNClassifier`, but labels must be complete.

        Raises:
            TypeError: a base that is no :class:`LMSBNClassifier`.
            ValueError: a setting or an input that is not as described; the message names it.
        """
        if not isinstance(self.base, LMSBNClassifier | None):
            raise TypeError(f"base: expected an LMSBNClassifier or None, got {self.base!r}")
        if self.measure not in MEASURES:
            raise ValueError(f"measure: expected one of {list(MEASURES)}, got {self.measure!r}")
        check_count("num_steps", self.num_steps)
        check_count("max_cycles", self.max_cycles)
        X, labels, sample_weight = self._validate_fit(X, y, sample_weight)
        check_labels("y", labels)
        base = LMSBNClassifier() if self.base is None else self.base
        splits = list(cast(BaseCrossValidator, check_cv(self.cv)).split(X, labels))
        energies = [self._held_out(base, X, labels, sample_weight, *split) for split in splits]
        truth = torch.from_numpy(labels[np.concatenate([held_out for _, held_out in splits])]).long()
        self._tune(base, energies, truth)
        network = cast(LMSBNClassifier, clone(base))
        self.network_ = network.fit(X, labels, sample_weight)
        return self

    def decode(self, X, known=None) -> Decoding:
        """The labelling of least hinge loss under the shifted fields, with its certificate.

        Args:
            X: (instances, features), dense or CSR.
            known: (instances, labels) of {0, 1, NaN}: outputs that are given already.
        """
        energy = self.energies(X)[0]
        if known is not None:
            known = label_tensor("known", known, energy, allow_missing=True)
        return self.network_.decode_energy(energy, known)

    def energies(self, X) -> list[DirectedEnergy]:
        """The network's energy with shifted fields for instances (instances, features), alone in a list."""
        energy = self.network_.energies(self._validate_predict(X))[0]
        return [_shifted(energy, torch.from_numpy(self.thresholds_).to(energy.unary))]

    @property
    def random_state(self):
        """Of the samples behind probabilities: the network's."""
        return self.network_.random_state

    @property
    def _settings(self) -> tuple[float, torch.device]:
        return self.network_._settings

    @property
    def _limits(self) -> dict[str, Any]:
        return self.network_._limits

    @staticmethod
    def _held_out(base, X, labels, sample_weight, train, held_out) -> DirectedEnergy:
        """The energy of instances held out, by a network of the others."""
        weight = None if sample_weight is None else sample_weight[train]
        rows = X[np.ix_(train, train)] if base.kernel == "precomputed" else X[train]
        others = X[np.ix_(held_out, train)] if base.kernel == "precomputed" else X[held_out]
        network = cast(LMSBNClassifier, clone(base)).fit(rows, labels[train], weight)
        return network.energies(others)[0]

    def _tune(self, base: LMSBNClassifier, energies: Sequence[DirectedEnergy], truth: Tensor) -> None:
        measure, num_labels = MEASURES[self.measure], truth.shape[1]
        steps = torch.arange(1 - self.num_steps, self.num_steps, dtype=torch.float64)
        grid = base.margin * steps / self.num_steps
        # The smallest in size first: what ties is left as near to no threshold as can be.
        grid = grid[grid.abs().argsort(stable=True)]
        thresholds = torch.zeros(num_labels, dtype=torch.float64)
        best = float(measure(_decoded(base, energies, thresholds[None])[0], truth))
        for _ in range(self.max_cycles):
            before = best
            for label in range(num_labels):
                trials = thresholds.repeat(len(grid), 1)
                trials[:, label] = grid
                values = [float(measure(found, truth)) for found in _decoded(base, energies, trials)]
                if max(values) > best:
                    best = max(values)
                    thresholds = trials[values.index(best)]
            if best == before:
                break
        self.thresholds_, self.cross_validated_ = thresholds.numpy(), best


def _decoded(base: LMSBNClassifier, energies: Sequence[DirectedEnergy], trials: Tensor) -> Tensor:
    """What each of ``trials`` (trials, labels) predicts for all instances, (trials, instances, labels)."""
    parts = []
    for energy in energies:
        shifted = energy.unary - trials[:, None].to(energy.unary)
        labels = base.decode_energy(replace(energy, unary=shifted.flatten(0, 1))).labels
        parts.append(labels.reshape(shifted.shape).cpu())
    return torch.cat(parts, 1)


def _shifted(energy: DirectedEnergy, thresholds: Tensor) -> DirectedEnergy:
    return replace(energy, unary=energy.unary - thresholds)
