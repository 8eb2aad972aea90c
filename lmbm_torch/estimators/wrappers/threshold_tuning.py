"""Decision thresholds of a belief network's labels, chosen for a metric by cross-validation.

To find the label sets with the smallest hinge loss at many thresholds of one label k, few decodings are
enough. A threshold θ on the field g_k(y) changes only the hinge of label k. For y_k = 1 the hinge is [γ −
g_k(y) + θ]_+, which grows with θ, at most as fast as θ. For y_k = 0 the hinge is [γ + g_k(y) − θ]_+, which
shrinks, at most as fast as θ grows. Therefore the best label set at θ is often known to be best at other
thresholds, too. If the label set has y_k = 1 (for y_k = 0 exchange lower and higher):

- at lower thresholds no label set with y_k = 0 is better;
- if the hinge of label k is positive, the label set stays best at lower thresholds until the hinge is zero,
  because the loss shrinks at least as fast as the loss of any other label set;
- if the hinge of label k is zero, no label set with y_k = 1 is better at higher thresholds as long as the
  hinge stays zero, because the loss of the label set does not grow.

For most labels and instances the lowest and the highest threshold decide about all others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple, Self, cast

import torch
from numpy.typing import ArrayLike
from sklearn.model_selection import BaseCrossValidator, check_cv
from torch import Tensor

from lmbm_torch.energies import DirectedEnergy
from lmbm_torch.estimators.common.base import Rows
from lmbm_torch.estimators.common.calls import answer_call, fit_call
from lmbm_torch.estimators.common.decoders.calibration import held_out_energies
from lmbm_torch.estimators.common.decoders.decoding import DecodingClassifier
from lmbm_torch.estimators.common.measures import measure
from lmbm_torch.estimators.common.settings import SHARED, Constraints, StrOptions, seeds_for
from lmbm_torch.estimators.networks.sigmoid_belief import (
    LMSBNClassifier,
    network_capabilities,
    unfitted_network,
)
from lmbm_torch.inference.common.results import Decoding
from lmbm_torch.protocol import Capabilities
from lmbm_torch.shapes import Bool, Float, Int

MEASURES = ("exact_match", "sample_f1", "macro_f1", "micro_f1")


class ThresholdTunedClassifier(DecodingClassifier[DirectedEnergy]):
    """A belief network with a threshold for each label's field, chosen to maximise a metric (Fan, Lin 2007).

    The thresholds are optimised one label after another, in several cycles, on the fields of held-out
    instances. With independent labels (``LMSBNClassifier(degree=1)``, linear or with a kernel) this is the
    threshold-selected classifier of lmbm_and_lmsbn_2010, section 4. The same section proposes thresholds for
    labels with parents, too; then every tried threshold needs decodings.

    Args:
        base: the belief network; its ``decoder`` is ignored. By default ``LMSBNClassifier()``.
        measure: metric to maximise: ``"exact_match"``, ``"sample_f1"``, ``"macro_f1"`` or ``"micro_f1"``.
        cv: number of folds, a splitter or splits, as in scikit-learn.
        num_steps: the thresholds γ j / num_steps for |j| < num_steps are tried. ±γ are left out: for a label
            that has hardly been learned, the field would be zero after the threshold.
        max_cycles: largest number of cycles over all labels; a cycle without a change is the last.
        random_state: seed for a base without a seed, and for samples of probabilities; None for the base's
            seed.
        constraints: rules that all predictions obey, also while thresholds are tuned, as text or objects
            (:mod:`lmbm_torch.constraints`), added to the rules of ``base``.

    Attributes:
        thresholds_: (labels,), subtracted from the labels' fields; 0 if no other value is better.
        cross_validated_: the metric's value with these thresholds on the held-out instances.
        network_: the belief network, fitted to all instances.

    Examples:
        >>> from lmbm_torch.estimators import ThresholdTunedClassifier
        >>> X, y = [[0.0], [1.0], [2.0], [3.0]], [[0, 0], [0, 1], [1, 1], [1, 1]]
        >>> ThresholdTunedClassifier(cv=2, random_state=0).fit(X, y).predict([[2.5]])
        array([[1, 1]])
    """

    _accepted: ClassVar[Constraints] = {
        **SHARED,
        "base": [LMSBNClassifier, None],
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

    @fit_call
    def fit(self, X: Rows, y: Rows, sample_weight: ArrayLike | None = None) -> Self:
        """Train the network and choose the thresholds by known labels; see :meth:`LMSBNClassifier.fit`.

        Raises:
            TypeError: the base is not an :class:`LMSBNClassifier`.
            ValueError: a parameter or input is invalid.
        """
        X, labels, sample_weight = self._validate_fit(X, y, sample_weight, allow_missing=True)
        seeds = seeds_for(unfitted_network(self.base), self.random_state)
        base = unfitted_network(self.base, **seeds)
        splits = list(cast(BaseCrossValidator, check_cv(self.cv)).split(X, labels))
        network = unfitted_network(self.base, calibrate=False, **seeds)
        energies, truths = zip(*held_out_energies(network, X, labels, sample_weight, splits), strict=True)
        self._tune(base, energies, torch.cat(truths).cpu())
        self.network_ = base.fit(X, labels, sample_weight)
        return self

    @property
    def capabilities(self) -> Capabilities:
        network = self._network
        return network_capabilities("hinge", network._hinge_margin, {"node_limit": network.node_limit})

    @property
    def trained(self) -> DecodingClassifier:
        """Return the fitted belief network, without thresholds."""
        return self.network_

    @answer_call
    def energy(self, X: Rows) -> DirectedEnergy:
        """Return the belief network's energy for X (instances, features), with thresholds subtracted."""
        energy = self.network_.energy(self._validate_predict(X))
        return _shifted(energy, torch.from_numpy(self.thresholds_))

    def calibrated(self, energies: Sequence[DirectedEnergy]) -> list[DirectedEnergy]:
        """Return calibrated energies, whose equally weighted mixture defines the probabilities."""
        return self.network_.calibrated(energies)

    def with_node_limit(self, node_limit: int | None) -> Self:
        """Return a copy with this limit on the number of search nodes; None for no limit."""
        other = copy(self)
        other.network_ = self.network_.with_node_limit(node_limit)
        return other

    @property
    def device(self) -> Any:
        """Return the device on which the belief network predicts."""
        return self.network_.device

    @property
    def _network(self) -> LMSBNClassifier:
        """Return the fitted belief network; before ``fit``, an unfitted one."""
        return self.network_ if hasattr(self, "network_") else unfitted_network(self.base)

    def _decode_energy(self, energy: DirectedEnergy, *arguments: Any, **named: Any) -> Decoding:
        return self.network_._decode_energy(energy, *arguments, **named)

    def _seed(self) -> int:
        return super()._seed() if self.random_state is not None else self.network_._seed()

    def _tune(self, base: LMSBNClassifier, energies: Sequence[DirectedEnergy], truth: Tensor) -> None:
        num_labels, rules = truth.shape[1], self._rules()

        def value(found: Tensor) -> float:
            return measure(self.measure, found, truth)

        def decode(energy: DirectedEnergy) -> Decoding:
            return base._decode_energy(energy, rules=rules)

        grid = torch.arange(1 - self.num_steps, self.num_steps, dtype=torch.float64, device="cpu")
        grid = base.margin * grid / self.num_steps
        # Put thresholds near 0 first, because the first of equally good thresholds is taken.
        order = grid.abs().argsort(stable=True).tolist()
        thresholds = torch.zeros(num_labels, dtype=torch.float64, device="cpu")
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
    """Subtract thresholds (labels,) from the fields of an energy."""
    return replace(energy, unary=energy.unary - thresholds.to(energy.unary))


Decode = Callable[[DirectedEnergy], Decoding]


class _Best(NamedTuple):
    """The best label sets for some pairs of an instance and a threshold of one label.

    Args:
        rows: index of the instance of each pair.
        place: index of the threshold of each pair.
        labels: (pairs, labels), the best label sets.
        spin: the label's value in the label set, −1 or 1.
        kink: the label's hinge is positive if ``spin`` times the threshold is above ``kink``.
        proven: whether the label set is proven optimal.
    """

    rows: Int[Tensor, " rows"]
    place: Int[Tensor, " rows"]
    labels: Int[Tensor, "rows labels"]
    spin: Float[Tensor, " rows"]
    kink: Float[Tensor, " rows"]
    proven: Bool[Tensor, " rows"]


def decode_thresholds(
    decode: Decode,
    energy: DirectedEnergy,
    label: int,
    thresholds: Float[Tensor, " thresholds"],
    margin: float,
) -> Int[Tensor, "thresholds batch labels"]:
    """Find the label set with the smallest hinge loss for each instance and each threshold of one label.

    Among equally good label sets the result may differ from the decoder's choice.

    Args:
        decode: function that decodes an energy to the label sets with the smallest hinge loss.
        label: index of the label from whose field the threshold is subtracted.
        thresholds: ascending thresholds, at least one.
        margin: the margin γ of the hinge.
    """
    thresholds = thresholds.to(energy.unary)
    size, count = energy.unary.shape[0], len(thresholds)
    found = torch.zeros(count, *energy.unary.shape, dtype=torch.int64, device=energy.device)
    settled = torch.zeros(count, size, dtype=torch.bool, device=energy.device)
    # For each instance: index of the highest threshold at which the best label set is known to have the
    # label, and of the lowest threshold at which the best label set is known to lack the label.
    highest, lowest = (torch.full((size,), place, device=energy.device) for place in (-1, count))
    rows = torch.arange(size, device=energy.device).repeat(2)
    place = torch.tensor([0, count - 1], device=energy.device).repeat_interleave(size)
    known = None
    while len(rows):
        best = _decoded(decode, energy, label, thresholds, margin, rows, place)
        found[place, rows], settled[place, rows] = best.labels, True
        has, lacks = (best.proven & (best.spin == spin) for spin in (1, -1))
        highest.scatter_reduce_(0, rows[has], place[has], "amax")
        lowest.scatter_reduce_(0, rows[lacks], place[lacks], "amin")
        known = best if known is None else _Best(*map(torch.cat, zip(known, best, strict=True)))
        _settle(known, thresholds, highest, lowest, found, settled)
        is_open = ~settled.all(0)[known.rows]
        known = _Best(*(each[is_open] for each in known))
        rows, place = _left(settled)
    return found


def _decoded(
    decode: Decode,
    energy: DirectedEnergy,
    label: int,
    thresholds: Tensor,
    margin: float,
    rows: Tensor,
    place: Tensor,
) -> _Best:
    part = energy.select(rows)
    shift = torch.zeros_like(part.unary)
    shift[:, label] = thresholds[place]
    decoding = decode(replace(part, unary=part.unary - shift))
    spin = 2 * decoding.labels[:, label].to(part.unary) - 1
    kink = spin * part.local_fields(decoding.labels)[:, label] - margin
    return _Best(rows, place, decoding.labels, spin, kink, decoding.status.exact)


def _settle(
    best: _Best, thresholds: Tensor, highest: Tensor, lowest: Tensor, found: Tensor, settled: Tensor
) -> None:
    """Write each label set to ``found`` at all thresholds where the set is known to be best."""
    against = best.spin * thresholds[:, None]
    own = best.spin * thresholds[best.place]
    places = torch.arange(len(thresholds), device=thresholds.device)[:, None]
    on_its_side = torch.where(best.spin > 0, places <= highest[best.rows], places >= lowest[best.rows])
    where_it_gains = (against >= best.kink) & (against <= own)
    where_it_loses_nothing = (against >= own) & (against <= best.kink) & on_its_side
    holds = best.proven & (where_it_gains | where_it_loses_nothing) & ~settled[:, best.rows]
    place, which = holds.nonzero(as_tuple=True)
    found[place, best.rows[which]] = best.labels[which]
    settled[place, best.rows[which]] = True


def _left(settled: Tensor) -> tuple[Tensor, Tensor]:
    """Return instances and thresholds to decode next: each instance's middle undecided one, or all if few."""
    is_left = ~settled
    if int(is_left.sum()) > settled.shape[1]:
        is_left &= is_left.cumsum(0) == (is_left.sum(0) + 1) // 2
    place, rows = is_left.nonzero(as_tuple=True)
    return rows, place
