"""Decision thresholds of a network's labels, chosen for a measure by cross-validation.

The labellings of least hinge loss at many thresholds of one label, by few decodings.

A threshold θ on the field g_k(y) of label k changes the hinge of that label alone: it is [γ − g_k(y) + θ]_+
where y_k = 1, which rises with θ, by θ at most, and [γ + g_k(y) − θ]_+ where y_k = 0, which falls likewise.
So of a labelling that is best at θ much is known of other thresholds. Where y_k = 1 (else all is mirrored):

- at lower ones none with y_k = 0 is better;
- if its own hinge is positive, it is best at all lower ones down to where that ends, for it gains as much
  on the way as any labelling can;
- if it is zero, none with y_k = 1 is better at higher ones up to where that begins, for it loses nothing.

Most examples of most labels are settled by the lowest and the highest threshold.
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

from lmbm_torch import constraints as rules_of
from lmbm_torch.energies import DirectedEnergy
from lmbm_torch.estimators.common.base import Rows
from lmbm_torch.estimators.common.calls import all_or_nothing, watched
from lmbm_torch.estimators.common.measures import measure
from lmbm_torch.estimators.common.seeding import seeds_for
from lmbm_torch.estimators.common.settings import SHARED, Constraints, StrOptions
from lmbm_torch.estimators.common.under_rules import Rules
from lmbm_torch.estimators.decoders.calibration import held_out_energies
from lmbm_torch.estimators.decoders.decoding import DecodingClassifier
from lmbm_torch.estimators.decoders.distributions import NetworkMixture, hinge_losses
from lmbm_torch.estimators.networks.sigmoid_belief import (
    LMSBNClassifier,
    network_capabilities,
    unfitted_network,
)
from lmbm_torch.inference.results import Decoding
from lmbm_torch.protocol import Capabilities
from lmbm_torch.shapes import Bool, Float, Int

MEASURES = ("exact_match", "sample_f1", "macro_f1", "micro_f1")


class ThresholdTunedClassifier(DecodingClassifier[DirectedEnergy]):
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

    @watched
    @all_or_nothing
    def fit(self, X: Rows, y: Rows, sample_weight: ArrayLike | None = None) -> Self:
        """See :meth:`LMSBNClassifier.fit`; the measure is that of labels that are known.

        Raises:
            TypeError: a base that is not an :class:`LMSBNClassifier`.
            ValueError: a setting or an input that is not as described; the message names it.
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
        """See :class:`~lmbm_torch.protocol.Capabilities`."""
        network = self._network
        return network_capabilities("hinge", network._hinge_margin, {"node_limit": network.node_limit})

    @property
    def trained(self) -> DecodingClassifier:
        """The network, to which thresholds are added."""
        return self.network_

    def energy(self, X: Rows) -> DirectedEnergy:
        """The network's energy with shifted fields for instances (instances, features)."""
        energy = self.network_.energy(self._validate_predict(X))
        return _shifted(energy, torch.from_numpy(self.thresholds_))

    def calibrated(self, energies: Sequence[DirectedEnergy]) -> list[DirectedEnergy]:
        """The energies whose equal mixture gives the probabilities, from those of shifted fields."""
        return self.network_.calibrated(energies)

    def with_rules(self, rules: rules_of.Constraints | None) -> Self:
        """The same classifier, whose answers obey these rules alone; None for no rules."""
        other = super().with_rules(rules)
        if self.base is not None:
            other.base = unfitted_network(self.base)
        return other

    def with_node_limit(self, node_limit: int | None) -> Self:
        """The same classifier, whose network's searches end after so many nodes; None for never."""
        other = copy(self)
        other.network_ = self.network_.with_node_limit(node_limit)
        return other

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.pairwise = unfitted_network(self.base).kernel == "precomputed"
        return tags

    @property
    def device(self) -> Any:
        """Where predictions are computed, as the base says."""
        return self.network_.device

    @property
    def _network(self) -> LMSBNClassifier:
        """The network, fitted or to be fitted."""
        return self.network_ if hasattr(self, "network_") else unfitted_network(self.base)

    @property
    def _given_rules(self) -> tuple[Rules | None, ...]:
        return (self.constraints, None if self.base is None else self.base.constraints)

    def _decode_energy(self, energy: DirectedEnergy, *arguments: Any, **named: Any) -> Decoding:
        return self.network_._decode_energy(energy, *arguments, **named)

    def _distribution(self, energies: Sequence[DirectedEnergy]) -> NetworkMixture:
        return NetworkMixture(energies, self._seed)

    def _code_losses(self, X: Rows, codes: Tensor) -> Tensor:
        return hinge_losses(self.energies(X), codes, self.network_._hinge_margin)

    def _seed(self) -> int:
        return super()._seed() if self.random_state is not None else self.network_._seed()

    def _tune(self, base: LMSBNClassifier, energies: Sequence[DirectedEnergy], truth: Tensor) -> None:
        num_labels, rules = truth.shape[1], self._rules()

        def value(found: Tensor) -> float:
            return measure(self.measure, found, truth)

        def decode(energy: DirectedEnergy) -> Decoding:
            return base._decode_energy(energy, rules=rules)

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


Decode = Callable[[DirectedEnergy], Decoding]


class _Best(NamedTuple):
    """Labellings that are best, one of each example at a threshold of its own.

    Args:
        rows: the examples.
        place: of the thresholds.
        labels: (rows, labels).
        spin: of the label with the threshold, −1 or 1.
        kink: where its hinge begins, as ``spin`` times a threshold.
        proven: whether they are known to be best.
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
    """What ``decode`` finds of each example at each threshold, subtracted from one label's field.

    Where several labellings are best it may be another of them.

    Args:
        decode: energy → labellings of least hinge loss, each proven or not.
        label: its index.
        thresholds: ascending, at least one.
        margin: γ.
    """
    thresholds = thresholds.to(energy.unary)
    size, count = energy.unary.shape[0], len(thresholds)
    found = torch.zeros(count, *energy.unary.shape, dtype=torch.int64, device=energy.device)
    settled = torch.zeros(count, size, dtype=torch.bool, device=energy.device)
    # The highest place where having the label is best, and the lowest where lacking it is.
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
    """Write down where else labellings are best."""
    against = best.spin * thresholds[:, None]
    own = best.spin * thresholds[best.place]
    places = torch.arange(len(thresholds), device=thresholds.device)[:, None]
    on_its_side = torch.where(best.spin > 0, places <= highest[best.rows], places >= lowest[best.rows])
    where_it_gains = (own > best.kink) & (against >= best.kink) & (against <= own)
    where_it_loses_nothing = (against >= own) & (against <= best.kink) & on_its_side
    holds = best.proven & (where_it_gains | where_it_loses_nothing) & ~settled[:, best.rows]
    place, which = holds.nonzero(as_tuple=True)
    found[place, best.rows[which]] = best.labels[which]
    settled[place, best.rows[which]] = True


def _left(settled: Tensor) -> tuple[Tensor, Tensor]:
    """What to decode next, as examples and places: one halfway through what is left of each, or soon all."""
    is_left = ~settled
    if int(is_left.sum()) > settled.shape[1]:
        is_left &= is_left.cumsum(0) == (is_left.sum(0) + 1) // 2
    place, rows = is_left.nonzero(as_tuple=True)
    return rows, place
