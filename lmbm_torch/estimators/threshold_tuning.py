"""Decision thresholds of a network's labels, chosen for a measure by cross-validation."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from operator import attrgetter
from typing import Any, ClassVar, Self, cast

import torch
from numpy.typing import ArrayLike
from sklearn.model_selection import BaseCrossValidator, check_cv
from torch import Tensor

from lmbm_torch.energies import DirectedEnergy
from lmbm_torch.estimators.base import Rows
from lmbm_torch.estimators.calibration import held_out_energies
from lmbm_torch.estimators.calls import all_or_nothing, of_label_columns, watched
from lmbm_torch.estimators.measures import measure
from lmbm_torch.estimators.settings import Constraints, StrOptions
from lmbm_torch.estimators.sigmoid_belief import LMSBNClassifier
from lmbm_torch.estimators.targets import known_tensor
from lmbm_torch.estimators.threshold_trials import decode_thresholds
from lmbm_torch.estimators.under_rules import Rules
from lmbm_torch.estimators.wrapping import WrappingClassifier
from lmbm_torch.inference.results import Decoding

MEASURES = ("exact_match", "sample_f1", "macro_f1", "micro_f1")


class ThresholdTunedClassifier(WrappingClassifier):
    """A network whose labels' fields are shifted by thresholds that raise a measure (Fan and Lin 2007).

    The thresholds are optimised one label at a time, in cycles, on the fields that networks trained without
    an instance give it. With independent labels (``LMSBNClassifier(degree=1)``, linear or with a kernel) this
    is the threshold-selected classifier of lmbm_and_lmsbn_2010, section 4. That section also proposes it for
    labels with parents, where every trial is decoded in the same way as a prediction.

    Args:
        base: the network, whose ``decoder`` is not used; ``LMSBNClassifier()`` by default.
        measure: ``"exact_match"``, ``"sample_f1"``, ``"macro_f1"`` or ``"micro_f1"``.
        cv: folds, in any of the forms that scikit-learn takes.
        num_steps: thresholds to try for a label are γ j / num_steps for |j| < num_steps. ±γ are not among
            them: where a label is hardly learned, they would leave fields of zero, which speak for neither.
        max_cycles: of trials of all labels; fewer if a cycle changes nothing.
        constraints: rules that all answers obey, as text or objects (:mod:`lmbm_torch.constraints`), over the
            columns of ``y``, beside those of
            the base; the trials', too.

    Attributes:
        thresholds_: (labels,), subtracted from the fields; 0 wherever no other is better.
        cross_validated_: the measure at these thresholds, over the instances held out.
        network_: the network, fitted to all instances.
    """

    _accepted: ClassVar[Constraints] = {
        **WrappingClassifier._accepted,
        "measure": [StrOptions({*MEASURES})],
        "cv": ["cv_object"],
    }

    def __init__(
        self, base=None, *, measure="exact_match", cv=5, num_steps=20, max_cycles=5, constraints=None
    ):
        self.base = base
        self.measure = measure
        self.cv = cv
        self.num_steps = num_steps
        self.max_cycles = max_cycles
        self.constraints = constraints

    @watched
    @all_or_nothing
    def fit(self, X: Rows, y: Rows, sample_weight: ArrayLike | None = None) -> Self:
        """See :meth:`LMSBNClassifier.fit`; the measure is that of labels that are known.

        Raises:
            TypeError: a base that is not an :class:`LMSBNClassifier`.
            ValueError: a setting or an input that is not as described; the message names it.
        """
        X, labels, sample_weight = self._validate_fit(X, y, sample_weight, allow_missing=True)
        base = self._unfitted()
        splits = list(cast(BaseCrossValidator, check_cv(self.cv)).split(X, labels))
        network = self._unfitted(calibrate=False)
        energies, truths = zip(*held_out_energies(network, X, labels, sample_weight, splits), strict=True)
        self._tune(base, energies, torch.cat(truths).cpu())
        self.network_ = base.fit(X, labels, sample_weight)
        return self

    @watched
    @of_label_columns
    def decode(
        self, X: Rows, known: ArrayLike | None = None, top_k: int = 1, constraints: Rules | None = None
    ) -> Decoding:
        """The labelling of least hinge loss under the shifted fields, with its certificate.

        Args:
            X: (instances, features), dense or CSR.
            known: (instances, labels) of {0, 1, NaN}: outputs that are given already.
            top_k: how many labellings, best first.
            constraints: further rules, for this call, as text or objects.
        """
        energy = self.energy(X)
        given = known_tensor(known, energy)
        return self.network_._decode_energy(energy, given, top_k, self._rules(constraints))

    def energies(self, X) -> list[DirectedEnergy]:
        """The network's energy with shifted fields, alone in a list."""
        return [self.energy(X)]

    def energy(self, X) -> DirectedEnergy:
        """The network's energy with shifted fields for instances (instances, features)."""
        energy = self.network_.energy(self._validate_predict(X))
        return _shifted(energy, torch.from_numpy(self.thresholds_))

    def calibrated(self, energies: Sequence[DirectedEnergy]) -> list[DirectedEnergy]:
        """The energies whose probabilities are reported, from those of shifted fields."""
        return self.network_.calibrated(energies)

    def with_node_limit(self, node_limit: int | None) -> Self:
        """The same classifier, whose network's searches end after so many nodes; None for never."""
        other = copy(self)
        other.network_ = self.network_.with_node_limit(node_limit)
        return other

    # The random state is for the samples behind probabilities.
    random_state: Any = property(attrgetter("network_.random_state"), doc="The network's.")

    @property
    def node_limit(self) -> int | None:
        """The network's."""
        return self.network_.node_limit if hasattr(self, "network_") else self._unfitted().node_limit

    _network: Any = property(attrgetter("network_"))

    def _tune(self, base: LMSBNClassifier, energies: Sequence[DirectedEnergy], truth: Tensor) -> None:
        num_labels, rules = truth.shape[1], self._rules()

        def value(found: Tensor) -> float:
            return measure(self.measure, found, truth)

        def decode(energy: DirectedEnergy) -> Decoding:
            return base._decode_energy(energy, constraints=rules)

        grid = torch.arange(1 - self.num_steps, self.num_steps, dtype=torch.float64)
        grid = base.margin * grid / self.num_steps
        # The smallest in size first: of equally good ones the nearest to no threshold is taken.
        order = grid.abs().argsort(stable=True).tolist()
        thresholds = torch.zeros(num_labels, dtype=torch.float64)
        best = value(torch.cat([decode(energy).labels.cpu() for energy in energies]))
        unchanged = 0
        for label in list(range(num_labels)) * self.max_cycles:
            others = thresholds.clone()
            others[label] = 0
            parts = [
                decode_thresholds(decode, _shifted(energy, others), label, grid, base.margin).cpu()
                for energy in energies
            ]
            values = [value(found) for found in torch.cat(parts, 1)[order]]
            unchanged += 1
            if max(values) > best:
                best, unchanged = max(values), 0
                thresholds[label] = grid[order[values.index(best)]]
            if unchanged == num_labels:
                break
        self.thresholds_, self.cross_validated_ = thresholds.numpy(), best


def _shifted(energy: DirectedEnergy, thresholds: Tensor) -> DirectedEnergy:
    """The energy with thresholds (labels,) subtracted from its fields."""
    return replace(energy, unary=energy.unary - thresholds.to(energy.unary))
