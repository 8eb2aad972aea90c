"""The hinge problem of a Boltzmann machine: all labels' losses together, because cliques share weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from lmbm_torch.checks import check_positive
from lmbm_torch.energies import TiedCliques
from lmbm_torch.energies.base import to_spins
from lmbm_torch.memory import part_bytes
from lmbm_torch.solvers.networks.problems import (
    Features,
    HingeProblem,
    label_matrix,
    rows_with_norms,
    sample_weights,
)

# Largest number of bytes to keep of the labels' contexts (inputs besides features); above, recompute them.
KEPT_CONTEXT_BYTES = 2**28
# Largest number of entries (instances, cliques) of a block of products (scripts/bench/memory.py).
BLOCK_PRODUCTS = 2**22


class SharedWeights(NamedTuple):
    """Weights of a Boltzmann machine.

    Args:
        features: (features + 1, labels); the last row belongs to the constant.
        cliques: (weights,), one for each group of tied cliques.
    """

    features: np.ndarray
    cliques: np.ndarray


class Context(NamedTuple):
    """The inputs of a label besides the features: the constant, and products of the other spins in cliques.

    Args:
        columns: (instances, 1 + clique weights of the label): the constant, then the input of each weight.
        weights: indices of the clique weights of the label, ascending.
    """

    columns: np.ndarray
    weights: np.ndarray


@dataclass(frozen=True)
class SharedProblem(HingeProblem):
    """min_w ½ Σ_j η_j w_j² + Σ_l C_l Σ_i [γ − m_il]_+,   m_il = Σ_{j: i ∈ C_j} w_j f_jl.

    Source: large_margin_boltzmann_machines_2009, problem 3.3 in the form of section 5, with C = 1/(λN). η_j
    is 1 for weights of cliques with one label (features and constant included), else ``coupling_penalty``.
    The dual is max γ Σ α − ½ Σ_j η_j w_j² over 0 ≤ α_il ≤ C_l with w_j = (1/η_j) Σ_l Σ_{i ∈ C_j} α_il f_jl.
    The paper prints η_j² for η_j, and omits η_j in line 9 of Algorithm 1: this would be another problem. For
    tied cliques f_jl is the sum over the cliques of the group with label i. Use :meth:`from_labels`.

    Args:
        features: (instances, features), dense or CSR.
        constant: 1, or 0 for a machine without biases.
        spins: (labels, instances) in {−1, +1}.
        cliques: the cliques of labels, without the K cliques of one label and the features.
        products: (instances, cliques): each clique's coefficient · feature · Π spins.
        penalty: (weights,), η of the cliques' weights.
        upper: (instances,), C_l = C · sample weight, the upper bound of the duals; or (labels, instances).
        square_norm: (instances,), squared norm of the features and the constant.
        margin: γ.
    """

    features: Features
    constant: float
    spins: np.ndarray
    cliques: TiedCliques
    products: np.ndarray
    penalty: np.ndarray
    upper: np.ndarray
    square_norm: np.ndarray
    margin: float

    @classmethod
    def from_labels(
        cls,
        features: Features,
        labels: np.ndarray,
        *,
        cliques: TiedCliques | Sequence[Sequence[int]] | str = "pairwise",
        groups: Sequence[int] | None = None,
        clique_features: Sequence[int | None] | None = None,
        bias: bool = True,
        C: float = 1.0,
        coupling_penalty: float = 1.0,
        sample_weight: np.ndarray | None = None,
        margin: float = 1.0,
    ) -> SharedProblem:
        """Build the problem of a machine described as for :class:`~lmbm_torch.models.BoltzmannMachine`.

        Args:
            features: (instances, features), dense or CSR; for labels without inputs a column of ones, with
                ``bias=False``.
            labels: (instances, labels) in {0, 1}.
            C: the weight of the losses.
            coupling_penalty: η0 > 0, the penalty of weights of cliques with two or more labels. What the
                paper calls "η0 = 0", its plain machine, is 1 here.
            sample_weight: (instances,), or (instances, labels) for a weight of each label; multiplies C.
            margin: γ.

        Raises:
            ValueError: a shape is wrong; a value is not finite; labels are not 0 or 1 (NaN is refused,
                because other labels need the value); a sample weight is negative; a setting is not above 0;
                TiedCliques refuses the cliques, or a clique has an unknown feature.
            TypeError: features are neither float32 nor float64, or labels are no numbers.
        """
        features, square_norm = rows_with_norms(features)
        labels = label_matrix(labels, len(square_norm))
        for name, value in {"C": C, "coupling_penalty": coupling_penalty, "margin": margin}.items():
            check_positive(name, value)
        tied = TiedCliques.of(labels.shape[1], cliques, groups, clique_features)
        spins = to_spins(labels, np.float32).astype(np.int8)
        return cls(
            features=features,
            constant=float(bias),
            spins=np.ascontiguousarray(spins.T),
            cliques=tied,
            products=_products(features, spins, tied),
            penalty=np.where(tied.couples, float(coupling_penalty), 1.0),
            upper=C * sample_weights(sample_weight, *labels.shape).T,
            square_norm=square_norm + bias,
            margin=float(margin),
        )

    @property
    def num_columns(self) -> int:
        """Return the number of weights that belong to a single label: for the features and the constant."""
        return self.features.shape[1] + 1  # pyright: ignore[reportOptionalSubscript]

    @cached_property
    def membership(self) -> np.ndarray:
        """Return a matrix (labels, cliques) with 1 where the label is in the clique, else 0."""
        inside = np.zeros((self.num_labels, len(self.cliques.cliques)))
        for c, clique in enumerate(self.cliques.cliques):
            inside[list(clique), c] = 1
        return inside

    @cached_property
    def groups(self) -> np.ndarray:
        """Return the index of each clique's weight, (cliques,)."""
        return np.array(self.cliques.groups, np.int64)

    def context(self, label: int) -> Context:
        """Return the inputs of ``label`` besides the features: the constant and the clique products."""
        mine = self.membership[label].nonzero()[0]
        seen, place = np.unique(self.groups[mine], return_inverse=True)
        columns = np.empty((self.num_instances, 1 + len(seen)))
        columns[:, 0] = self.constant
        products = self.products[:, mine] * self.spins[label][:, None]
        untied = np.array_equal(place, np.arange(len(mine)))
        columns[:, 1:] = products if untied else products @ np.eye(len(seen))[place]
        return Context(columns, seen)

    def kept_context(self, label: int) -> Context:
        """Return :meth:`context` of ``label``; keep the result in memory if all labels' contexts fit."""
        if label in self._contexts:
            return self._contexts[label]
        found = self.context(label)
        if found.columns.nbytes * self.num_labels <= part_bytes(KEPT_CONTEXT_BYTES):
            self._contexts[label] = found
        return found

    @cached_property
    def _contexts(self) -> dict[int, Context]:
        return {}

    @property
    def _blocks(self) -> list[slice]:
        """Return slices of instances so small that the products of all cliques fit into memory."""
        size = max(1, BLOCK_PRODUCTS // max(self.products.shape[1], 1))
        return [slice(first, first + size) for first in range(0, self.num_instances, size)]

    def curvature(self) -> np.ndarray:
        """Return the negative second derivative of the dual in each α_il, Σ_{j: i ∈ C_j} f_jl² / η_j."""
        contexts = map(self.kept_context, range(self.num_labels))
        shared = [np.square(columns[:, 1:]) @ (1 / self.penalty[seen]) for columns, seen in contexts]
        return self.square_norm + np.array(shared)

    def margins(self, weights: SharedWeights) -> np.ndarray:
        """Return the margins m_il of all instances and labels, (instances, labels)."""
        fields = self.features @ weights.features[:-1] + self.constant * weights.features[-1]
        margins, by_label = fields * self.spins.T, (self.membership * weights.cliques[self.groups]).T
        for block in self._blocks:
            margins[block] += self.products[block] @ by_label
        return margins

    def hinge(self, weights: SharedWeights) -> np.ndarray:
        """Return the hinge losses [γ − m_il]_+, (instances, labels)."""
        return np.maximum(self.margin - self.margins(weights), 0.0)

    def square(self, weights: SharedWeights) -> float:
        """Return the penalty ½ Σ_j η_j w_j² of the weights."""
        return 0.5 * float(np.square(weights.features).sum() + self.penalty @ np.square(weights.cliques))

    def primal(self, weights: SharedWeights) -> float:
        """Return the primal objective ½ Σ_j η_j w_j² + Σ_l C_l Σ_i [γ − m_il]_+."""
        return self.square(weights) + float((self.upper * self.hinge(weights).T).sum())

    def dual(self, dual_coef: np.ndarray, weights: SharedWeights) -> float:
        """Return the dual value γ Σ α − ½ Σ_j η_j w_j² of duals (labels, instances) with their weights."""
        return self.margin * float(dual_coef.sum()) - self.square(weights)

    def weights(self, dual_coef: np.ndarray) -> SharedWeights:
        """Return the weights of duals α, w_j = (1/η_j) Σ_l Σ_{i ∈ C_j} α_il f_jl."""
        signed = (dual_coef * self.spins).T
        by_clique = np.zeros(self.products.shape[1])
        for block in self._blocks:
            by_clique += (self.products[block] * (dual_coef[:, block].T @ self.membership)).sum(0)
        by_weight = np.bincount(self.groups, by_clique, self.cliques.num_weights)
        features = np.vstack([self.features.T @ signed, self.constant * signed.sum(0)])
        return SharedWeights(features, by_weight / self.penalty)


def dense(matrix: Any) -> np.ndarray:
    """Return a matrix, dense or sparse, as a dense array."""
    return matrix.toarray() if sparse.issparse(matrix) else matrix


def _products(features: Features, spins: np.ndarray, tied: TiedCliques) -> np.ndarray:
    products = [spins[:, list(clique)].prod(1, keepdims=True, dtype=np.int8) for clique in tied.cliques]
    # Store the matrix in row-major order, because the solvers read row by row.
    parities = np.ascontiguousarray(np.hstack([spins[:, :0], *products]))
    mixed = [c for c, column in enumerate(tied.columns) if column is not None]
    if not mixed and set(tied.coefficients) <= {1.0}:
        return parities
    held = np.tile(np.array(tied.coefficients), (len(spins), 1))
    if mixed:
        columns = np.array([tied.columns[c] for c in mixed])
        width = features.shape[1]  # pyright: ignore[reportOptionalSubscript]
        if columns.max() >= width:
            raise ValueError(f"clique_features: expected features below {width}, got {columns.tolist()}")
        picked = features[:, columns]
        held[:, mixed] *= dense(picked)
    return parities * held
