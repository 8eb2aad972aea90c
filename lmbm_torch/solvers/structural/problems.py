"""Structural SVMs as their solvers see them: rows of features, scores linear in them, and an oracle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, Protocol, TypedDict

import numpy as np
from scipy import sparse

from lmbm_torch.checks import check_count, check_finite, check_positive
from lmbm_torch.kernels.installed import kernels
from lmbm_torch.solvers.base import Certified
from lmbm_torch.solvers.networks.problems import Features, feature_rows, row_square_norms, sample_weights

BACKEND = ("dual.planes", "training of structural SVMs")


class StructuralWeights(NamedTuple):
    """Weights of a linear structured model.

    Args:
        features: (outputs, features + 1), the last column belonging to the constant feature 1.
        couplings: (couplings,), the weights of several outputs together, whatever the features.
    """

    features: np.ndarray
    couplings: np.ndarray


@dataclass(frozen=True)
class CertifiedWeights(Certified):
    """Weights, their objective (an upper bound on it, by an oracle that relaxes), and a dual value."""

    weights: StructuralWeights
    primal: float
    dual: float


@dataclass(frozen=True)
class CuttingPlanes:
    """Lower bounds loss − ⟨w, ψ⟩ on examples' hinges, each from one labelling; entries of ψ as in CSR.

    ψ = φ(x, truth) − φ(x, labelling): a labelling that differs little from the truth has few entries.

    Args:
        example: (planes,), whose hinge it bounds; ascending.
        loss: (planes,), Δ(truth, labelling).
        start: (planes + 1,), where each plane's entries begin.
        index: (entries,), row · outputs + output, rows counted from the example's first one; or
            −1 − c for coupling c.
        value: (entries,), of ψ, for a unary entry to be multiplied with the row's features.
    """

    example: np.ndarray
    loss: np.ndarray
    start: np.ndarray
    index: np.ndarray
    value: np.ndarray

    @classmethod
    def of_truths(cls, examples: np.ndarray) -> CuttingPlanes:
        """The planes of the true labellings, which say that no hinge is negative."""
        start = np.zeros(len(examples) + 1, np.int64)
        return cls(examples, np.zeros(len(examples)), start, np.zeros(0, np.int32), np.zeros(0))

    @classmethod
    def from_dense(
        cls, example: np.ndarray, loss: np.ndarray, unary: np.ndarray, couplings: np.ndarray
    ) -> CuttingPlanes:
        """Planes of single-row examples from dense ψ: (planes, outputs) and (planes, couplings)."""
        index = np.concatenate([np.arange(unary.shape[1]), -1 - np.arange(couplings.shape[1])])
        dense = np.hstack([unary, couplings])
        plane, column = dense.nonzero()
        start = np.concatenate([[0], np.bincount(plane, minlength=len(dense)).cumsum()])
        return cls(example, loss, start, index[column].astype(np.int32), dense[plane, column].astype(float))

    def __len__(self) -> int:
        return len(self.example)

    @property
    def plane(self) -> np.ndarray:
        """(entries,), the plane that each entry belongs to."""
        return np.repeat(np.arange(len(self)), np.diff(self.start))

    def select(self, planes: np.ndarray) -> CuttingPlanes:
        """Some of the planes, by number or by mask."""
        planes = np.arange(len(self))[planes]
        start = np.concatenate([[0], np.diff(self.start)[planes].cumsum()])
        entries = kernels(*BACKEND).entries(self, planes, start)
        return CuttingPlanes(self.example[planes], self.loss[planes], start, *entries)

    def join(self, other: CuttingPlanes) -> tuple[CuttingPlanes, np.ndarray]:
        """Both, each example's planes of this one first; and where each plane stood before, (planes,)."""
        parts = {name: np.concatenate([own, getattr(other, name)]) for name, own in vars(self).items()}
        parts["start"] = np.concatenate([self.start, self.start[-1] + other.start[1:]])
        together = CuttingPlanes(**parts)
        order = np.argsort(together.example, kind="stable")
        return together.select(order), order


class LossSettings(TypedDict, total=False):
    """Settings of every problem; :meth:`StructuralProblem.from_rows` holds their defaults.

    Args:
        C: the losses' weight in ½‖w‖² + C Σ hinge; biases are regularised like other weights.
        sample_weight: (examples,), multiplies C.
        coupling_penalty: η > 0, multiplies the couplings' squares.
    """

    C: float
    sample_weight: np.ndarray | None
    coupling_penalty: float


class Maximisers(NamedTuple):
    """The labellings that violate the margin most, one for each example asked for.

    Args:
        planes: in the order of the examples.
        bound: (examples,), on every labelling's loss − ⟨w, ψ⟩; the hinge itself if the oracle is exact.
    """

    planes: CuttingPlanes
    bound: np.ndarray


class Oracle(Protocol):
    """Loss-augmented decoding of a batch of examples."""

    def __call__(self, scores: np.ndarray, couplings: np.ndarray, examples: np.ndarray) -> Maximisers:
        """The maximisers of Δ + score.

        Args:
            scores: (rows, outputs), ⟨x, weights⟩ for all rows of these examples, one example after another.
            couplings: (couplings,), the weights.
            examples: (examples,), ascending.
        """
        ...


@dataclass(frozen=True)
class StructuralProblem:
    """min_w ½‖w‖² + Σ_l C_l max_y [Δ(y_l, y) − ⟨w, ψ_l(y)⟩],  ψ_l(y) = φ(x_l, y_l) − φ(x_l, y).

    This is the n-slack structural SVM with margin rescaling (Tsochantaridis et al. 2004). An example has one
    or more rows of features (a vector of labels one, a word one per letter) and w has a vector of weights for
    each output (a label, a letter), so that an example's ψ is Σ_t x_t ⊗ a_t and a vector of coupling
    statistics. ‖w‖² counts the couplings ``coupling_penalty`` times. Make one with :meth:`from_rows`.

    Args:
        features: (rows, features), dense or CSR; a constant 1 is added to each row.
        start: (examples + 1,), where each example's rows begin.
        gram: inner products of each example's rows, one (rows, rows) matrix after another, flat.
        gram_start: (examples + 1,).
        num_outputs: vectors of weights.
        num_couplings: further weights.
        upper: (examples,), C_l = C · sample weight.
        coupling_penalty: η > 0.
        oracle: finds the maximising labellings.
    """

    features: Features
    start: np.ndarray
    gram: np.ndarray
    gram_start: np.ndarray
    num_outputs: int
    num_couplings: int
    upper: np.ndarray
    coupling_penalty: float
    oracle: Oracle

    @classmethod
    def from_rows(
        cls,
        features: Features,
        oracle: Oracle,
        *,
        num_outputs: int,
        num_couplings: int,
        start: Sequence[int] | np.ndarray | None = None,
        C: float = 1.0,
        sample_weight: np.ndarray | None = None,
        coupling_penalty: float = 1.0,
    ) -> StructuralProblem:
        """The problem of an oracle.

        Args:
            features: (rows, features), float32 or float64, dense or CSR.
            start: where each example's rows begin, and the number of rows; by default one row each.
            C, sample_weight, coupling_penalty: see :class:`LossSettings`.

        Raises:
            ValueError: shapes that do not fit, values that are not finite, negative sample weights, examples
                without a row, C or the penalty not above zero.
            TypeError: features that are neither float32 nor float64.
        """
        features = feature_rows(features)
        check_count("num_outputs", num_outputs)
        check_positive("C", C)
        check_positive("coupling_penalty", coupling_penalty)
        rows = features.shape[0]  # pyright: ignore[reportOptionalSubscript]
        starts = np.arange(rows + 1) if start is None else np.array(start, np.int64)
        if starts.ndim != 1 or len(starts) < 2 or starts[0] != 0 or starts[-1] != rows:
            raise ValueError(f"start: expected numbers from 0 up to the {rows} rows, got {starts.tolist()}")
        if (np.diff(starts) < 1).any():
            raise ValueError(f"start: expected at least one row an example, got {np.diff(starts).min()}")
        weight = sample_weights(sample_weight, len(starts) - 1)
        gram = _gram(features, starts)
        check_finite("features: inner products", gram)
        gram_start = np.concatenate([[0], np.square(np.diff(starts)).cumsum()])
        return cls(
            features=features,
            start=starts,
            gram=gram,
            gram_start=gram_start,
            num_outputs=num_outputs,
            num_couplings=num_couplings,
            upper=C * weight,
            coupling_penalty=float(coupling_penalty),
            oracle=oracle,
        )

    @property
    def num_examples(self) -> int:
        return len(self.upper)

    @property
    def num_features(self) -> int:
        return self.features.shape[1]  # pyright: ignore[reportOptionalSubscript]

    @property
    def num_rows(self) -> int:
        return int(self.start[-1])

    def scores(self, weights: StructuralWeights) -> np.ndarray:
        """(rows, outputs)."""
        return _scores(self.features, weights)

    def maximisers(self, weights: StructuralWeights, examples: np.ndarray | None = None) -> Maximisers:
        """The labelling of largest loss − ⟨w, ψ⟩ for every example, or for some in ascending order."""
        if examples is None:
            return self.oracle(self.scores(weights), weights.couplings, np.arange(self.num_examples))
        spans = [np.arange(*self.start[each : each + 2].tolist()) for each in examples.tolist()]
        rows = self.features[np.concatenate(spans)]
        return self.oracle(_scores(rows, weights), weights.couplings, examples)

    def values(self, planes: CuttingPlanes, weights: StructuralWeights) -> np.ndarray:
        """loss − ⟨w, ψ⟩, (planes,)."""
        scores = self.scores(weights).ravel()
        return planes.loss - kernels(*BACKEND).products(
            planes, self._first(planes), scores, weights.couplings
        )

    def weights(self, planes: CuttingPlanes, dual_coef: np.ndarray) -> StructuralWeights:
        """w = Σ_p α_p ψ_p, couplings divided by their penalty."""
        size = self.num_rows * self.num_outputs
        total = kernels(*BACKEND).sums(planes, self._first(planes), dual_coef, size, self.num_couplings)
        rows = total[:size].reshape(self.num_rows, self.num_outputs)
        features = np.column_stack([(self.features.T @ rows).T, rows.sum(0)])
        return StructuralWeights(features, total[size:] / self.coupling_penalty)

    def square_norm(self, weights: StructuralWeights) -> float:
        """‖w‖², the couplings counted η times."""
        couplings = self.coupling_penalty * np.square(weights.couplings).sum()
        return float(np.square(weights.features).sum() + couplings)

    def violated(self, planes: CuttingPlanes, found: CuttingPlanes, weights: StructuralWeights) -> np.ndarray:
        """Which of the planes ``found``, one for each example, bound its hinge better than the known."""
        first = np.searchsorted(planes.example, np.arange(self.num_examples))
        known = np.maximum.reduceat(self.values(planes, weights), first)
        # A plane that is known already comes back with the same value up to round-off.
        return self.values(found, weights) > known + 1e-12 * (1 + np.abs(known))

    def primal(self, weights: StructuralWeights, hinge: np.ndarray) -> float:
        """½‖w‖² + Σ_l C_l hinge_l; the truth's own labelling keeps every hinge from being negative."""
        return float(0.5 * self.square_norm(weights) + self.upper @ np.maximum(hinge, 0.0))

    def dual(self, planes: CuttingPlanes, dual_coef: np.ndarray, weights: StructuralWeights) -> float:
        """Σ_p α_p loss_p − ½‖w‖², for the weights that the duals make."""
        return float(dual_coef @ planes.loss - 0.5 * self.square_norm(weights))

    def _first(self, planes: CuttingPlanes) -> np.ndarray:
        """Where the outputs of each plane's example begin among those of all rows, (planes,)."""
        return self.start[planes.example] * self.num_outputs


def _scores(rows: Features, weights: StructuralWeights) -> np.ndarray:
    return rows @ weights.features[:, :-1].T + weights.features[:, -1]


def _gram(features: Features, start: np.ndarray) -> np.ndarray:
    """⟨x_t, x_t'⟩ + 1 for the rows of each example."""
    if len(start) == start[-1] + 1:
        return 1.0 + row_square_norms(features)
    blocks = []
    for first, last in pairwise(start.tolist()):
        rows = features[first:last].astype(np.float64)
        products = rows @ rows.T
        blocks.append(np.ravel(products.toarray() if isinstance(products, sparse.csr_array) else products))
    return 1.0 + np.concatenate(blocks)
