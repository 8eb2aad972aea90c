"""The training problem of structural SVMs: rows of features, linear scores, and a decoder (oracle)."""

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


class StructuralWeights(NamedTuple):
    """Weights of a linear structured model.

    Args:
        features: (outputs, features + 1); the last column belongs to the constant feature 1.
        couplings: (couplings,), weights of several outputs together, independent of features.
    """

    features: np.ndarray
    couplings: np.ndarray


@dataclass(frozen=True)
class CertifiedWeights(Certified):
    """Weights with the primal objective (with a relaxing oracle, an upper bound) and a dual value."""

    weights: StructuralWeights
    primal: float
    dual: float


@dataclass(frozen=True)
class CuttingPlanes:
    """Lower bounds loss − ⟨w, ψ⟩ on the examples' hinges, one for each labelling found, stored as in CSR.

    ψ = φ(x, truth) − φ(x, labelling): a labelling close to the truth has few entries.

    Args:
        example: (planes,), the example of each plane, ascending.
        loss: (planes,), Δ(truth, labelling).
        start: (planes + 1,), the index of each plane's first entry.
        index: (entries,), row · outputs + output, rows counted from the example's first row; or −1 − c for
            coupling c.
        value: (entries,), the entries of ψ; a unary entry is multiplied by the row's features.
    """

    example: np.ndarray
    loss: np.ndarray
    start: np.ndarray
    index: np.ndarray
    value: np.ndarray

    @classmethod
    def of_truths(cls, examples: np.ndarray) -> CuttingPlanes:
        """Return the cutting planes of the true labellings, whose lower bound on each hinge is zero."""
        start = np.zeros(len(examples) + 1, np.int64)
        return cls(examples, np.zeros(len(examples)), start, np.zeros(0, np.int32), np.zeros(0))

    @classmethod
    def from_dense(
        cls, example: np.ndarray, loss: np.ndarray, unary: np.ndarray, couplings: np.ndarray
    ) -> CuttingPlanes:
        """Build cutting planes of single-row examples from dense ψ: unary entries and couplings."""
        index = np.concatenate([np.arange(unary.shape[1]), -1 - np.arange(couplings.shape[1])])
        dense = np.hstack([unary, couplings])
        plane, column = dense.nonzero()
        start = np.concatenate([[0], np.bincount(plane, minlength=len(dense)).cumsum()])
        return cls(example, loss, start, index[column].astype(np.int32), dense[plane, column].astype(float))

    def __len__(self) -> int:
        return len(self.example)

    @property
    def plane(self) -> np.ndarray:
        """Return for each entry the number of the cutting plane, (entries,)."""
        return np.repeat(np.arange(len(self)), np.diff(self.start))

    def select(self, planes: np.ndarray) -> CuttingPlanes:
        """Select cutting planes by number or by mask."""
        return gathered([(self, np.arange(len(self))[planes])])

    def join(
        self, other: CuttingPlanes, own: np.ndarray, new: np.ndarray
    ) -> tuple[CuttingPlanes, np.ndarray]:
        """Join the planes ``own`` of ``self`` and ``new`` of ``other``; each example's own planes come first.

        Returns:
            The joined planes, and for each plane the position in the list ``own`` followed by ``new``.
        """
        order = np.argsort(np.concatenate([self.example[own], other.example[new]]), kind="stable")
        return gathered([(self, own), (other, new)], order), order


def gathered(
    parts: Sequence[tuple[CuttingPlanes, np.ndarray]], order: np.ndarray | slice = slice(None)
) -> CuttingPlanes:
    """Join the chosen cutting planes of all parts, in the given order; each entry is copied once.

    Args:
        parts: pairs of planes and the numbers of the planes to choose.
        order: (planes,), a permutation of the chosen planes of all parts; by default in order.
    """
    example = np.concatenate([planes.example[chosen] for planes, chosen in parts])
    loss = np.concatenate([planes.loss[chosen] for planes, chosen in parts])
    size = np.concatenate([np.diff(planes.start)[chosen] for planes, chosen in parts])
    start = np.concatenate([[0], size[order].cumsum()])
    begin = np.empty(len(size), np.int64)
    begin[order] = start[:-1]
    index, value = np.empty(start[-1], np.int32), np.empty(start[-1])
    for planes, chosen in parts:
        mine, begin = begin[: len(chosen)], begin[len(chosen) :]
        kernels("dual.structural").copy_entries(planes, chosen, mine, index, value)
    return CuttingPlanes(example[order], loss[order], start, index, value)


class LossSettings(TypedDict, total=False):
    """Loss settings common to all structural problems; the defaults are in :meth:`from_rows`.

    Args:
        C: the weight of the losses in ½‖w‖² + C Σ hinge; biases are regularised like all weights.
        sample_weight: (examples,), multiplies C.
        coupling_penalty: η > 0, multiplies the squares of the couplings.
    """

    C: float
    sample_weight: np.ndarray | None
    coupling_penalty: float


class Maximisers(NamedTuple):
    """The labellings with the largest margin violation, one for each example.

    Args:
        planes: the cutting planes of the labellings, in the order of the examples.
        bound: (examples,), an upper bound of loss − ⟨w, ψ⟩; the hinge if the oracle is exact.
    """

    planes: CuttingPlanes
    bound: np.ndarray


class Oracle(Protocol):
    """Loss-augmented decoding of a batch of examples."""

    def __call__(self, scores: np.ndarray, couplings: np.ndarray, examples: np.ndarray) -> Maximisers:
        """Return for each example the labelling of largest loss Δ plus score.

        Args:
            scores: (rows, outputs), ⟨x, weights⟩ for all rows of the examples, example after example.
            couplings: (couplings,), the weights of the couplings.
            examples: (examples,), the numbers of the examples, ascending.
        """
        ...


@dataclass(frozen=True)
class StructuralProblem:
    """min_w ½‖w‖² + Σ_l C_l max_y [Δ(y_l, y) − ⟨w, ψ_l(y)⟩],  ψ_l(y) = φ(x_l, y_l) − φ(x_l, y).

    The n-slack structural SVM with margin rescaling (Tsochantaridis et al. 2004). An example has one or more
    rows of features (a vector of labels one row, a word one row per letter) and w has a weight vector for
    each output (a label, a letter), so an example's ψ is Σ_t x_t ⊗ a_t and a vector of coupling statistics.
    In ‖w‖², squares of couplings are multiplied by ``coupling_penalty``. Use :meth:`from_rows`.

    Args:
        features: (rows, features), dense or CSR; a constant 1 is added to each row.
        start: (examples + 1,), first row of each example.
        gram: the inner products of each example's rows: one flattened (rows, rows) matrix for each example.
        gram_start: (examples + 1,), the first entry of each example in ``gram``.
        num_outputs: the number of weight vectors.
        num_couplings: the number of couplings.
        upper: (examples,), C_l = C · sample weight.
        coupling_penalty: η > 0.
        oracle: function that returns the maximising labellings.
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
        """Check the settings, and build the training problem from features and an oracle.

        Args:
            features: (rows, features), float32 or float64, dense or CSR.
            start: the first row of each example, then the number of rows; by default one row each.
            C: the weight of the losses, see :class:`LossSettings`.
            sample_weight: (examples,), multiplies C.
            coupling_penalty: η > 0, multiplies the squares of the couplings.

        Raises:
            ValueError: a shape is wrong; a value is not finite; a sample weight is negative; an example has
                no row; C or the penalty is not above zero.
            TypeError: features are neither float32 nor float64.
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
            raise ValueError(f"start: expected at least one row each, got {np.diff(starts).min()}")
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
        """Return the scores ⟨x, weights⟩ of all rows and outputs, (rows, outputs)."""
        return _scores(self.features, weights)

    def maximisers(self, weights: StructuralWeights, examples: np.ndarray | None = None) -> Maximisers:
        """Return the labellings of largest loss − ⟨w, ψ⟩ for ``examples`` (ascending), by default for all."""
        if examples is None:
            return self.oracle(self.scores(weights), weights.couplings, np.arange(self.num_examples))
        spans = [np.arange(*self.start[each : each + 2].tolist()) for each in examples.tolist()]
        rows = self.features[np.concatenate(spans)]
        return self.oracle(_scores(rows, weights), weights.couplings, examples)

    def values(self, planes: CuttingPlanes, weights: StructuralWeights) -> np.ndarray:
        """Return the values loss − ⟨w, ψ⟩ of the cutting planes, (planes,)."""
        scores = self.scores(weights).ravel()
        return planes.loss - kernels("dual.structural").products(
            planes, self._first(planes), scores, weights.couplings
        )

    def weights(self, planes: CuttingPlanes, dual_coef: np.ndarray) -> StructuralWeights:
        """Return the weights of the duals, w = Σ_p α_p ψ_p, with the couplings divided by the penalty."""
        size = self.num_rows * self.num_outputs
        total = kernels("dual.structural").sums(
            planes, self._first(planes), dual_coef, size, self.num_couplings
        )
        rows = total[:size].reshape(self.num_rows, self.num_outputs)
        features = np.column_stack([(self.features.T @ rows).T, rows.sum(0)])
        return StructuralWeights(features, total[size:] / self.coupling_penalty)

    def square_norm(self, weights: StructuralWeights) -> float:
        """Return ‖w‖², in which squares of couplings are multiplied by η."""
        couplings = self.coupling_penalty * np.square(weights.couplings).sum()
        return float(np.square(weights.features).sum() + couplings)

    def violated(self, planes: CuttingPlanes, found: CuttingPlanes, weights: StructuralWeights) -> np.ndarray:
        """Return for each example whether the found cutting plane's value is above all known planes'."""
        first = np.searchsorted(planes.example, np.arange(self.num_examples))
        known = np.maximum.reduceat(self.values(planes, weights), first)
        # Allow a tolerance: the oracle may find a known cutting plane again, with another round-off.
        return self.values(found, weights) > known + 1e-12 * (1 + np.abs(known))

    def primal(self, weights: StructuralWeights, hinge: np.ndarray) -> float:
        """Return ½‖w‖² + Σ_l C_l max(hinge_l, 0)."""
        return float(0.5 * self.square_norm(weights) + self.upper @ np.maximum(hinge, 0.0))

    def dual(self, planes: CuttingPlanes, dual_coef: np.ndarray, weights: StructuralWeights) -> float:
        """Return the dual value Σ_p α_p loss_p − ½‖w‖² for the weights of the duals."""
        return float(dual_coef @ planes.loss - 0.5 * self.square_norm(weights))

    def _first(self, planes: CuttingPlanes) -> np.ndarray:
        """Return for each cutting plane the index of the example's first entry in flat scores, (planes,)."""
        return self.start[planes.example] * self.num_outputs


def _scores(rows: Features, weights: StructuralWeights) -> np.ndarray:
    return rows @ weights.features[:, :-1].T + weights.features[:, -1]


def _gram(features: Features, start: np.ndarray) -> np.ndarray:
    """Return the inner products ⟨x_t, x_t'⟩ + 1 of the rows of each example, flat."""
    if len(start) == start[-1] + 1:
        return 1.0 + row_square_norms(features)
    blocks = []
    for first, last in pairwise(start.tolist()):
        rows = features[first:last].astype(np.float64)
        products = rows @ rows.T
        blocks.append(np.ravel(products.toarray() if isinstance(products, sparse.csr_array) else products))
    return 1.0 + np.concatenate(blocks)
