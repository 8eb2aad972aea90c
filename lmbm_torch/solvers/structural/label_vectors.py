"""Structural SVMs for label vectors: pairwise Boltzmann machines with margins for the Hamming loss.

With few labels, sums over all labellings are possible, and training by :mod:`~.smoothing`.

Losses other than Hamming, and slack rescaling, are possible, too. Margin rescaling maximises Δ(y) + score(y)
− score(truth), slack rescaling Δ(y) (1 + score(y) − score(truth)) (Tsochantaridis et al. 2004). With the 0/1
loss both are the same problem, which needs only the best labelling other than the truth; every decoder that
takes known labels finds and certifies this labelling. For other losses, which are not sums over labels, all
labellings are enumerated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import product
from typing import Any, Protocol, Unpack

import numpy as np
import torch

from lmbm_torch.checks import check_finite, check_known, check_labels, check_shape
from lmbm_torch.energies import ChainEnergy, PairwiseEnergy
from lmbm_torch.energies.base import to_spins
from lmbm_torch.inference.common.results import Decoding
from lmbm_torch.inference.enumeration import half_products
from lmbm_torch.inference.trees import chain_dp
from lmbm_torch.losses.structured import loss_augment
from lmbm_torch.solvers.base import TINY
from lmbm_torch.solvers.networks.problems import Features, label_matrix
from lmbm_torch.solvers.structural.linear import Curvature
from lmbm_torch.solvers.structural.problems import (
    CuttingPlanes,
    LossSettings,
    Maximisers,
    StructuralProblem,
    gathered,
)
from lmbm_torch.solvers.structural.smoothing import MarginProblem

# A score may exceed the decoder's bound by this share of 1 + |score|; more is an error, not round-off.
BOUND_TOLERANCE = 1e-6
# Largest number of entries of dense statistics in memory at a time; the statistics of 10,000 examples with
# 100 labels would take 1.6 GiB (scripts/bench/memory.py).
BLOCK_STATISTICS = 2**22


LOSSES = ("hamming", "zero_one", "f1")
RESCALINGS = ("margin", "slack")
# Largest number of labels for enumerating all labellings: 14 labels have 16,384 labellings.
MOST_LABELS = 14
# Largest number of scores in memory at once: 64 MiB.
SCORES_AT_ONCE = 2**23


class Decoder(Protocol):
    """A search for labellings of large score: ``decode`` of exact, integer_program or lp_relaxation.

    The decoder's ``bound`` certifies training, so every decoder with a valid bound is allowed, even a
    heuristic: the duality gap shows how good the labellings are. :func:`decode_with` checks the results.
    """

    def __call__(self, energy: PairwiseEnergy) -> Decoding:
        """Return labellings of large score.

        A decoder that can fix given labels also takes ``known=``: (batch, labels) of {0, 1, NaN}, NaN for a
        free label, or None.

        Args:
            energy: in training float64, on the CPU; must not be changed.

        Returns:
            ``labels`` (batch, labels) in {0, 1}, and ``bound`` (batch,), an upper bound on every score. If
            ``relaxed`` (batch, labels) in [0, 1] is given, training uses ``relaxed`` in place of the labels,
            and the bound is the relaxation's value.
        """
        ...


def decode_with(decoder: Decoder, energy: PairwiseEnergy, **known: Any) -> Decoding:
    """Run the decoder, check the result, and return it.

    Raises:
        TypeError: the result is no :class:`~lmbm_torch.inference.common.results.Decoding`.
        ValueError: labels or bound have a wrong shape; labels are not 0 or 1; relaxed labels are outside [0,
            1]; the bound is not finite, or below the score of the labels.
    """
    found = decoder(energy, **known)
    if not isinstance(found, Decoding):
        raise TypeError(f"decoder: expected it to return a Decoding, got {type(found).__name__}")
    batch, count = energy.batch_size, energy.num_labels
    check_shape("decoder: labels", found.labels, batch, count)
    check_labels("decoder: labels", found.labels)
    check_shape("decoder: bound", found.bound, batch)
    check_finite("decoder: bound", found.bound)
    score = energy.score(found.labels)
    short = found.bound < score - BOUND_TOLERANCE * (1 + score.abs())
    if short.any():
        raise ValueError(
            f"decoder: expected bounds on every labelling's score, got {int(short.sum())} below the score of "
            f"the decoder's labelling, such as bound {found.bound[short][0]:.6g}, score {score[short][0]:.6g}"
        )
    if found.relaxed is not None:
        check_shape("decoder: relaxed", found.relaxed, batch, count)
        if not bool(((found.relaxed >= 0) & (found.relaxed <= 1)).all()):
            raise ValueError("decoder: expected relaxed labels between 0 and 1, got other values")
    return found


def label_vector_problem(
    features: Features,
    labels: np.ndarray,
    decoder: Decoder,
    *,
    pairs: Sequence[tuple[int, int]],
    costs: np.ndarray | None = None,
    **settings: Unpack[LossSettings],
) -> StructuralProblem:
    """Return the structural problem of label vectors with pairwise couplings and Hamming loss Δ.

    score(x, y) = Σ_i s_i (⟨w_i, x⟩ + b_i) + Σ_{(i, j)} v_ij s_i s_j with spins s = 2y − 1. With a relaxing
    decoder (:mod:`~lmbm_torch.inference.relaxations.lp_relaxation`) a labelling may be fractional. The
    solution is then the outer relaxation of the SVM, an upper bound on the objective (Finley and Joachims
    2008), and the duality gap refers to the relaxation.

    Args:
        features: (instances, features), float32 or float64, dense or CSR.
        labels: (instances, labels) in {0, 1}.
        decoder: function that returns labellings of large score and a bound.
        pairs: the coupled pairs of labels.
        costs: (instances, labels), the cost of each wrong label in Δ; 1 by default.
        settings: see :class:`~lmbm_torch.solvers.structural.problems.LossSettings`.

    Raises:
        ValueError: a shape is wrong; labels are not 0 or 1; a pair has not two labels, or is repeated; see
            also :meth:`StructuralProblem.from_rows`.
        TypeError: labels are no numbers; features are neither float32 nor float64; the decoder is not
            callable.
    """
    if not callable(decoder):
        raise TypeError(f"decoder: expected a function of an energy, got {decoder!r}")
    labels = label_matrix(labels, features.shape[0])  # pyright: ignore[reportOptionalSubscript]
    count = labels.shape[1]
    sets = {frozenset(pair) for pair in pairs}
    if len(sets) < len(pairs) or not all(len(pair) == 2 and pair <= set(range(count)) for pair in sets):
        raise ValueError(f"pairs: expected different pairs of labels below {count}, got {list(pairs)}")
    joined = np.array(pairs, np.int64).reshape(-1, 2)
    return StructuralProblem.from_rows(
        features,
        LabelVectorOracle(labels.astype(np.int64), joined[:, 0], joined[:, 1], decoder, costs),
        num_outputs=count,
        num_couplings=len(joined),
        **settings,
    )


def viterbi(energy: PairwiseEnergy, *, known: torch.Tensor | None = None) -> Decoding:
    """Decode energies that couple only neighbouring labels i and i + 1, by dynamic programming.

    Args:
        known: (batch, labels) of {0, 1, NaN}, NaN for a free label; the labelling keeps the known labels.

    Raises:
        ValueError: labels that are not neighbours are coupled; ``known`` has another shape than (batch,
            labels), or other values than 0, 1 and NaN.
    """
    check_known(known, energy.device, energy.batch_size, energy.num_labels)
    chain = ChainEnergy.from_pairwise(energy, range(energy.num_labels))
    if known is not None:
        forbidden = known[..., None] == known.new_tensor([1, 0])
        chain = chain.add_unary(torch.zeros_like(chain.unary).masked_fill(forbidden, -torch.inf))
    return chain_dp.decode(chain)


@dataclass(frozen=True)
class LabelVectorOracle:
    """Loss-augmented decoding of label vectors.

    Args:
        labels: (examples, labels), the true labels.
        first: (couplings,), the first label of each pair.
        second: (couplings,), the second label of each pair.
        decoder: function that returns labellings of large score and a bound.
        costs: (examples, labels), the cost of each wrong label in Δ; if None, each costs 1.
    """

    labels: np.ndarray
    first: np.ndarray
    second: np.ndarray
    decoder: Decoder
    costs: np.ndarray | None = None

    def __call__(self, scores: np.ndarray, couplings: np.ndarray, examples: np.ndarray) -> Maximisers:
        """Find the labellings of largest loss Δ plus score for all examples by one call of the decoder."""
        augmented, labels = self.augmented(scores, couplings, examples)
        found = decode_with(self.decoder, augmented)
        bound = found.bound - augmented.score(labels)
        if found.relaxed is None:
            planes = self.planes(examples, found.labels.numpy())
        else:
            make = partial(self._relaxed_planes, couplings=couplings)
            planes = self._in_blocks(make, examples, found.relaxed.numpy())
        return Maximisers(planes, bound.numpy())

    def augmented(
        self, scores: np.ndarray, couplings: np.ndarray, examples: np.ndarray, slope: float = 1.0
    ) -> tuple[PairwiseEnergy, torch.Tensor]:
        """Return the energy with score + ``slope`` · Δ (up to a constant), and the true labels."""
        labels = torch.from_numpy(self.labels[examples])
        energy = self.energy(scores, couplings)
        if self.costs is None:
            return loss_augment(energy, labels, slope), labels
        return energy.add_unary(slope * torch.from_numpy(self.costs[examples]) * (1 - 2 * labels)), labels

    def planes(self, examples: np.ndarray, labels: np.ndarray) -> CuttingPlanes:
        """Return the cutting planes of ``labels`` (planes, labels), one for each of ``examples``."""
        return self._in_blocks(self._labelled_planes, examples, labels)

    def _in_blocks(
        self,
        make: Callable[[np.ndarray, np.ndarray], CuttingPlanes],
        examples: np.ndarray,
        labels: np.ndarray,
    ) -> CuttingPlanes:
        """Call ``make`` for one block of examples after another, to limit memory; join the cutting planes."""
        size = max(1, BLOCK_STATISTICS // (labels.shape[1] + len(self.first)))
        blocks = [slice(begin, begin + size) for begin in range(0, max(len(labels), 1), size)]
        parts = [make(examples[block], labels[block]) for block in blocks]
        return gathered([(part, np.arange(len(part))) for part in parts])

    def _labelled_planes(self, examples: np.ndarray, labels: np.ndarray) -> CuttingPlanes:
        spins = to_spins(labels, np.int64)
        return self._planes(examples, spins, self._products(spins))

    def _relaxed_planes(
        self, examples: np.ndarray, relaxed: np.ndarray, couplings: np.ndarray
    ) -> CuttingPlanes:
        """Return cutting planes of relaxed labels, with the best consistent marginals of pairs."""
        first, second = relaxed[:, self.first], relaxed[:, self.second]
        both = np.where(couplings > 0, np.minimum(first, second), np.maximum(first + second - 1, 0))
        products = 4 * both - 2 * first - 2 * second + 1
        return self._planes(examples, 2 * relaxed - 1, products)

    def _planes(self, examples: np.ndarray, spins: np.ndarray, products: np.ndarray) -> CuttingPlanes:
        truth = to_spins(self.labels[examples], spins.dtype)
        unary = truth - spins
        wrong = np.abs(unary) / 2
        loss = (wrong if self.costs is None else wrong * self.costs[examples]).sum(1)
        return CuttingPlanes.from_dense(examples, loss, unary, self._products(truth) - products)

    def _products(self, spins: np.ndarray) -> np.ndarray:
        return spins[:, self.first] * spins[:, self.second]

    def energy(self, scores: np.ndarray, couplings: np.ndarray) -> PairwiseEnergy:
        """Return the energy with unary scores (examples, labels) and couplings, without the loss."""
        pairwise = np.zeros((scores.shape[1], scores.shape[1]))
        pairwise[self.first, self.second] = couplings
        return PairwiseEnergy(torch.from_numpy(scores), torch.from_numpy(pairwise + pairwise.T))


@dataclass(frozen=True, eq=False)
class LabelMargins(MarginProblem):
    """The problem of :func:`~.label_vectors.label_vector_problem`, with sums over all labellings.

    Args:
        features: (instances, features).
        upper: the weight C_l of each instance's loss, (instances,).
        coupling_penalty: η, the factor of the squares of the couplings.
        oracle: the labels, pairs and costs, and a decoder without relaxation.
    """

    features: Features
    upper: np.ndarray
    coupling_penalty: float
    oracle: LabelVectorOracle

    @classmethod
    def of(cls, problem: StructuralProblem) -> LabelMargins:
        """Convert a structural problem of label vectors.

        Raises:
            TypeError: the outputs of the problem are no label vectors.
        """
        if not isinstance(problem.oracle, LabelVectorOracle):
            raise TypeError(
                f"problem: expected a problem of label vectors, got {type(problem.oracle).__name__}"
            )
        return cls(problem.features, problem.upper, problem.coupling_penalty, problem.oracle)

    @property
    def num_outputs(self) -> int:
        return self.oracle.labels.shape[1]

    @property
    def num_couplings(self) -> int:
        return len(self.oracle.first)

    def losses_at(self, flat: np.ndarray, temperature: float) -> tuple[float, np.ndarray, np.ndarray]:
        """Return the smoothed losses and gradients, see :meth:`MarginProblem.losses_at`."""
        energy, labels = self._augmented(flat, 1 / temperature)
        found = half_products.moments(energy, torch.from_numpy(self.upper))
        losses = found.log_partition - energy.score(labels)
        errors = self.upper[:, None] * (found.spins.numpy() - self._truth)
        products = found.products.numpy()[self.oracle.first, self.oracle.second]
        return float(self.upper @ losses.numpy()), errors, products - self._true_products

    def hinges(self, flat: np.ndarray) -> float:
        """Return the sum of hinges from the decoder's bounds, see :meth:`MarginProblem.hinges`."""
        energy, labels = self._augmented(flat, 1.0)
        found = decode_with(self.oracle.decoder, energy)
        return float(self.upper @ (found.bound - energy.score(labels)).clamp(min=0).numpy())

    def expected_loss(self, errors: np.ndarray) -> float:
        """Return the expected loss, see :meth:`MarginProblem.expected_loss`."""
        wrong = np.abs(errors) / 2
        return float((wrong if self.oracle.costs is None else wrong * self.oracle.costs).sum())

    def curvature_at(self, flat: np.ndarray, temperature: float) -> Curvature:
        """Estimate the Hessian, see :meth:`MarginProblem.curvature_at`."""
        _, errors, _ = self.losses_at(flat, temperature)
        means = np.square(self._truth + errors / np.maximum(self.upper, TINY)[:, None])
        products = means[:, self.oracle.first] * means[:, self.oracle.second]
        couplings = self.coupling_penalty + self.upper @ (1.0 - products)
        return self.curvature(self.upper[:, None] * (1.0 - means), couplings)

    def _augmented(self, flat: np.ndarray, slope: float) -> tuple[PairwiseEnergy, torch.Tensor]:
        every = np.arange(len(self.upper))
        return self.oracle.augmented(self.scores(flat), self.couplings(flat), every, slope)

    @cached_property
    def _truth(self) -> np.ndarray:
        """Return the true labels' spins."""
        return to_spins(self.oracle.labels, np.float64)

    @cached_property
    def _true_products(self) -> np.ndarray:
        """Return the weighted sum over instances of each pair's product of true spins."""
        return self.upper @ (self._truth[:, self.oracle.first] * self._truth[:, self.oracle.second])


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
        """Return the cutting planes of ``labels`` (planes, labels), one for each of ``examples``."""
        planes = self.vectors.planes(examples, labels)
        truth = self.labels[examples]
        wrong = np.abs(truth - labels) * (1.0 if self.vectors.costs is None else self.vectors.costs[examples])
        losses = self._loss((truth * labels).sum(1), (truth + labels).sum(1), wrong.sum(1))
        # Slack rescaling demands slack ξ ≥ Δ (1 − ⟨w, ψ⟩): a cutting plane with loss Δ and statistics Δ ψ.
        value = planes.value * losses[planes.plane] if self.rescaling == "slack" else planes.value
        return replace(planes, loss=losses, value=value)

    def losses(self, examples: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Return the losses Δ of all labellings (labellings, labels), (examples, labellings)."""
        truth = self.labels[examples].astype(np.float64)
        both, sizes = truth @ labels.T, truth.sum(1)[:, None] + labels.sum(1)
        costs = np.ones(truth.shape) if self.vectors.costs is None else self.vectors.costs[examples]
        return self._loss(both, sizes, (costs * truth).sum(1)[:, None] + (costs * (1 - 2 * truth)) @ labels.T)

    def _loss(self, both: np.ndarray, sizes: np.ndarray, wrong: np.ndarray) -> np.ndarray:
        """Return Δ from |y ∩ t|, |y| + |t| and the costs of wrong labels, all of the same shape."""
        if self.loss == "f1":
            return np.where(sizes == 0, 0.0, 1 - 2 * both / np.maximum(sizes, 1))
        return np.where(sizes > 2 * both, 1.0, 0.0) if self.loss == "zero_one" else wrong

    @cached_property
    def _every(self) -> np.ndarray:
        return np.array(list(product((0, 1), repeat=self.labels.shape[1])))

    def _enumerated(
        self, scores: np.ndarray, couplings: np.ndarray, examples: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return for each example the index of the most violating labelling, and the violation."""
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
        """Return the best labellings other than the truth, found by fixing each label to be wrong in turn."""
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
