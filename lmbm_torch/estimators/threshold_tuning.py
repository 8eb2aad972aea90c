"""Decision thresholds of a network's labels, chosen for a measure by cross-validation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, ClassVar, Self, cast

import torch
from numpy.typing import ArrayLike
from sklearn.model_selection import BaseCrossValidator, check_cv
from sklearn.utils._param_validation import StrOptions
from torch import Tensor

from lmbm_torch.energies import DirectedEnergy
from lmbm_torch.estimators.base import Rows
from lmbm_torch.estimators.calibration import held_out_energies
from lmbm_torch.estimators.measures import measure
from lmbm_torch.estimators.seeding import seeds_for
from lmbm_torch.estimators.settings import Constraints
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
        random_state: of the network, where that is not seeded itself, and of the samples behind
            probabilities; None for the network's.
        constraints: rules that all answers obey, as text or objects (:mod:`lmbm_torch.constraints`), over the
            columns of ``y``, beside those of
            the base; the trials', too.

    Attributes:
        thresholds_: (labels,), subtracted from the fields; 0 wherever no other is better.
        cross_validated_: the measure at these thresholds, over the instances held out.
        network_: the network, fitted to all instances.
    """

    _parameter_constraints: ClassVar[Constraints] = {
        **WrappingClassifier._parameter_constraints,
        "measure": [StrOptions({*MEASURES})],
        "cv": ["cv_object"],
    }

    def __init__(
        self,
        base=None,
        *,
        measure="exact_match",
        cv=5,
        num_steps=20,
        max_cycles=5,
        random_state=None,
        constraints=None,
    ):
        self.base = base
        self.measure = measure
        self.cv = cv
        self.num_steps = num_steps
        self.max_cycles = max_cycles
        self.random_state = random_state
        self.constraints = constraints

    def fit(self, X: Rows, y: Rows, sample_weight: ArrayLike | None = None) -> Self:
        """See :meth:`LMSBNClassifier.fit`; the measure is that of labels that are known.

        Raises:
            TypeError: a base that is not an :class:`LMSBNClassifier`.
            ValueError: a setting or an input that is not as described; the message names it.
        """
        X, labels, sample_weight = self._validate_fit(X, y, sample_weight, allow_missing=True)
        seeds = seeds_for(self._unfitted(), self.random_state)
        base = self._unfitted(**seeds)
        splits = list(cast(BaseCrossValidator, check_cv(self.cv)).split(X, labels))
        network = self._unfitted(calibrate=False, **seeds)
        energies, truths = zip(*held_out_energies(network, X, labels, sample_weight, splits), strict=True)
        self._tune(base, energies, torch.cat(truths).cpu())
        self.network_ = base.fit(X, labels, sample_weight)
        return self

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
        return self.network_.decode_energy(energy, given, top_k, self._rules(constraints))

    searches_under_rules: Any = property(attrgetter("network_.searches_under_rules"), doc="The network's.")

    def energy(self, X) -> DirectedEnergy:
        """The network's energy with shifted fields for instances (instances, features)."""
        energy = self.network_.energy(self._validate_predict(X))
        return _shifted(energy, torch.from_numpy(self.thresholds_))

    def calibrated(self, energy: DirectedEnergy) -> DirectedEnergy:
        """The energy whose probabilities are reported, from one of shifted fields."""
        return self.network_.calibrated(energy)

    def calibrated_all(self, energies: Sequence[DirectedEnergy]) -> list[DirectedEnergy]:
        """The energies whose probabilities are reported, from those of shifted fields."""
        return self.network_.calibrated_all(energies)

    node_limit: Any = property(attrgetter("network_.node_limit"), doc="The network's.")
    _network: Any = property(attrgetter("network_"))

    def _seed(self) -> int:
        return super()._seed() if self.random_state is not None else self.network_._seed()

    def _tune(self, base: LMSBNClassifier, energies: Sequence[DirectedEnergy], truth: Tensor) -> None:
        num_labels, rules = truth.shape[1], self._rules()

        def value(found: Tensor) -> float:
            return measure(self.measure, found, truth)

        def decode(energy: DirectedEnergy) -> Decoding:
            return base.decode_energy(energy, constraints=rules)

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
