"""The hinge problems of a sigmoid belief network, one for each label; also solver states and stages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, Self, TypedDict, Unpack

import numpy as np
from scipy import sparse

from lmbm_torch.checks import check_finite, check_labels, check_permutation, check_positive, check_shape
from lmbm_torch.energies.base import to_spins
from lmbm_torch.kernels.threads import single_threaded
from lmbm_torch.solvers.base import SolverState, relative_gap

Features = np.ndarray | sparse.csr_array

# Least number of columns at which mostly zero dense rows become CSR: 100 columns then take 0.7 to 0.9 of the
# time, 600 columns 0.3 to 0.5.
MANY_COLUMNS = 100
# Largest share of non-zero values at which dense rows become CSR.
MOSTLY_ZEROS = 0.1
# Largest share of non-zero values for CSR: above, CSR is as large as an array and 1.1 to 6.7 times as slow.
MOSTLY_FULL = 2 / 3

ROUNDS_PER_CALLBACK = 5


class NetworkSettings(TypedDict, total=False):
    """Settings of ``from_labels``; :func:`network_structure` holds the defaults.

    Args:
        ordering: the label at each position, parents before children; by default the order of the indices.
        parents: True if all earlier labels are parents of a label, False for independent labels; or a mask
            (labels, labels), True where the column's label is a parent of the row's label.
        cliques: sets of three or more labels; the last in the ordering is the child.
        C: the weight of the losses in ½‖w‖² + C Σ losses.
        sample_weight: (instances,), or (instances, labels) for a weight of each label; multiplies C.
        margin: γ.
    """

    ordering: Sequence[int] | np.ndarray | None
    parents: bool | np.ndarray
    cliques: Sequence[Sequence[int]]
    C: float
    sample_weight: np.ndarray | None
    margin: float


class NetworkWeights(NamedTuple):
    """Weights of a sigmoid belief network, with labels by index.

    Args:
        features: weights of the features, (labels, features).
        bias: (labels,).
        parents: (labels, labels), row i has the weights of label i's parents.
        cliques: (cliques,), in the order in which the caller gave the cliques.
    """

    features: np.ndarray
    bias: np.ndarray
    parents: np.ndarray
    cliques: np.ndarray


class HingeProblem:
    """Base class for hinge losses of labels, with spins (labels, instances), 0 for missing labels.

    Duals are in [0, ``upper``]: (instances,), or (labels, instances) if labels have their own weights.
    """

    spins: np.ndarray
    upper: np.ndarray

    @property
    def num_instances(self) -> int:
        return self.spins.shape[1]

    @property
    def num_labels(self) -> int:
        return self.spins.shape[0]

    def feasible(self, dual_coef: np.ndarray | None) -> np.ndarray:
        """Check duals (labels, instances), and return a float64 copy; None gives zeros.

        Raises:
            ValueError: the duals have a wrong shape, or are outside the box [0, C_l].
        """
        if dual_coef is None:
            return np.zeros(self.spins.shape)
        check_shape("dual_coef", dual_coef, *self.spins.shape)
        if not ((dual_coef >= 0) & (dual_coef <= self.upper * (self.spins != 0))).all():
            raise ValueError("dual_coef: expected 0 to C (0 for missing labels), got other values")
        return np.array(dual_coef, np.float64)


@dataclass(frozen=True, kw_only=True)
class NetworkProblems(HingeProblem, ABC):
    """min_w ½‖w_k‖² + Σ_l C_l [γ − s_lk z_lk]_+ for each label k.

    Source: lmbm_and_lmsbn_2010, Equation 6, with C = 1/(λN). The field z_lk is linear in the instance's
    features and in the instance's *context*: the constant 1, the spins of the labels before k, and the
    products of spins in k's cliques. Labels are numbered by position in the ordering.

    Args:
        spins: (labels, instances) in {−1, +1}, 0 for a missing label.
        context: (instances, columns): 1, then the spins, then the cliques' products.
        shared: (labels,): the first ``shared[k]`` columns of the context are inputs of label k, and
        own: (labels + 1,): so are the columns from ``own[k]`` up to ``own[k + 1]``.
        cliques: the clique of each column from ``own[0]`` on, child last; a single parent gives a pair.
        C: the weight of the losses.
        upper: (instances,), C_l = C · sample weight, the upper bound of the duals; or (labels, instances).
        margin: γ.
        ordering: (labels,), the label at each position.
        clique_order: (cliques,), the index of each clique in the caller's list.
    """

    spins: np.ndarray
    context: np.ndarray
    shared: np.ndarray
    own: np.ndarray
    cliques: tuple[tuple[int, ...], ...]
    C: float
    upper: np.ndarray
    margin: float
    ordering: np.ndarray
    clique_order: np.ndarray

    @property
    @abstractmethod
    def num_features(self) -> int:
        """Return the number of weights of a label for the features."""

    @property
    def num_columns(self) -> int:
        """Return the number of weights of a label for the features and the context."""
        return self.num_features + self.context.shape[1]

    @abstractmethod
    def fields(self, weights: np.ndarray) -> np.ndarray:
        """Return the fields z, (instances, labels), for ``weights`` (columns, labels)."""

    @abstractmethod
    def square_norms(self, weights: np.ndarray) -> np.ndarray:
        """Return the squared norm ‖w_k‖² of each label's weights, (labels,)."""

    @abstractmethod
    def weights(self, dual_coef: np.ndarray) -> np.ndarray:
        """Return the weights (columns, labels) of duals (labels, instances)."""

    @cached_property
    def sees(self) -> np.ndarray:
        """Return a mask (columns of the context, labels), True if the label has a weight for the column."""
        column = np.arange(self.context.shape[1])[:, None]
        return (column < self.shared) | ((column >= self.own[:-1]) & (column < self.own[1:]))

    def hinge(self, weights: np.ndarray) -> np.ndarray:
        """Return the hinge losses [γ − s z]_+, (instances, labels), with 0 for missing labels."""
        return self.losses(self.fields(weights))

    def losses(self, fields: np.ndarray) -> np.ndarray:
        """Return the hinge losses [γ − s z]_+ for fields z; both are (instances, labels)."""
        spins = self.spins.T
        return np.where(spins == 0, 0.0, np.maximum(self.margin - spins * fields, 0.0))

    def primal(self, weights: np.ndarray) -> np.ndarray:
        """Return each label's primal objective ½‖w_k‖² + Σ_l C_l [γ − s_lk z_lk]_+, (labels,)."""
        return 0.5 * self.square_norms(weights) + self.weighed(self.hinge(weights))

    def weighed(self, losses: np.ndarray) -> np.ndarray:
        """Return each label's weighted sum Σ_l C_l losses_lk, (labels,), of losses (instances, labels)."""
        return self.upper @ losses if self.upper.ndim == 1 else np.einsum("kl,lk->k", self.upper, losses)

    def by_box(self, labels: np.ndarray) -> Iterator[tuple[Self, np.ndarray]]:
        """Yield problems in which all labels have the same bounds ``upper``, each with its ``labels``."""
        if self.upper.ndim == 1:
            yield self, labels
            return
        for label in labels.tolist():
            yield replace(self, upper=self.upper_of(label)), np.array([label])

    def upper_of(self, label: int) -> np.ndarray:
        """Return the upper bounds of the duals of the label at a position, (instances,)."""
        return self.upper if self.upper.ndim == 1 else self.upper[label]

    def dual(self, dual_coef: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Return each label's dual value γ Σ_l α_lk − ½‖w_k‖², (labels,), for duals and their weights."""
        return self.margin * dual_coef.sum(1) - 0.5 * self.square_norms(weights)

    def network(self, weights: np.ndarray) -> NetworkWeights:
        """Convert weights (columns, labels by position) to weights with labels by index."""
        width, labels = self.num_features, self.num_labels
        by_label = np.argsort(self.ordering)
        among = weights[width + 1 : width + 1 + labels].T.copy()
        own = weights[width + 1 + labels :]
        cliques = np.empty(len(self.cliques))
        cliques[self.clique_order] = [own[c, clique[-1]] for c, clique in enumerate(self.cliques)]
        given = [clique for clique in self.cliques if len(clique) == 2]
        for parent, child in given:
            among[child, parent] = own[self.cliques.index((parent, child)), child]
        return NetworkWeights(
            features=weights[:width].T[by_label],
            bias=weights[width][by_label],
            parents=among[by_label][:, by_label],
            # Leave out the pairs of given parents, which come after the caller's cliques.
            cliques=cliques[: len(cliques) - len(given)],
        )

    def stages(self) -> Iterator[range]:
        """Return the ranges of positions to train together; a label with missing values ends a range.

        The label's own classifier then imputes the missing values before later labels use them.
        """
        is_last = (self.spins == 0).any(1)
        is_last[-1] = True
        ends = (np.flatnonzero(is_last) + 1).tolist()
        return map(range, [0, *ends], ends)

    def impute(self, position: int, weights: np.ndarray) -> Self:
        """Replace missing spins of the label at ``position`` in the context by the sign of the field."""
        missing = self.spins[position] == 0
        if not missing.any():
            return self
        spins = self.context[:, 1 : 1 + self.num_labels].copy()
        field = self.fields(weights[:, position : position + 1])[:, 0]
        spins[missing, position] = np.where(field[missing] >= 0, 1, -1)
        return replace(self, context=_context(spins, self.cliques))

    def complete(self, weights: np.ndarray) -> Self:
        """Impute the missing values of all labels in turn, so that no loss is left out."""
        if self.spins.all():
            return self
        problems = self
        for position in range(self.num_labels):
            problems = problems.impute(position, weights)
        spins = problems.context[:, 1 : 1 + self.num_labels].T
        return replace(problems, spins=np.ascontiguousarray(spins))


@dataclass(frozen=True, kw_only=True)
class LabelProblems(NetworkProblems):
    """The problems of a belief network with fields linear in features; see :meth:`from_labels`.

    Args:
        features: (instances, features), dense or CSR.
        square_norm: (instances,), squared norms of the features.
    """

    features: Features
    square_norm: np.ndarray

    @classmethod
    def from_labels(
        cls, features: Features, labels: np.ndarray, **settings: Unpack[NetworkSettings]
    ) -> LabelProblems:
        """Build the problems of a belief network in which all earlier labels may be parents of a label.

        Args:
            features: (instances, features), dense or CSR.
            labels: (instances, labels) in {0, 1}; NaN is a missing label, which has no loss; :meth:`impute`
                fills in its spin for later labels.
            settings: see :class:`NetworkSettings`.

        Raises:
            ValueError: a shape is wrong; a value is not finite; labels are not 0, 1 or NaN; a sample weight
                is negative; the ordering is no permutation; a clique is too small, or has a repeated or
                unknown label.
            TypeError: features are neither float32 nor float64, or labels are no numbers.
        """
        features, square_norm = rows_with_norms(features)
        structure = network_structure(len(square_norm), labels, **settings)
        return cls(features=features, square_norm=square_norm, **structure)

    @property
    def num_features(self) -> int:
        return self.features.shape[1]  # pyright: ignore[reportOptionalSubscript]

    @single_threaded()
    def fields(self, weights: np.ndarray) -> np.ndarray:
        """Return the fields z, (instances, labels), for ``weights`` (columns, labels)."""
        width = self.num_features
        return self.features @ weights[:width] + self.context @ weights[width:]

    def square_norms(self, weights: np.ndarray) -> np.ndarray:
        """Return the squared norm ‖w_k‖² of each label's weights, (labels,)."""
        return np.square(weights).sum(0)

    def weights(self, dual_coef: np.ndarray) -> np.ndarray:
        """Return the weights of duals, w_k = Σ_l α_lk s_lk (features, context)_l, (columns, labels)."""
        signed = (dual_coef * self.spins).T
        return np.vstack([self.features.T @ signed, (self.context.T @ signed) * self.sees])


def network_structure(
    instances: int,
    labels: np.ndarray,
    *,
    ordering: Sequence[int] | np.ndarray | None = None,
    parents: bool | np.ndarray = True,
    cliques: Sequence[Sequence[int]] = (),
    C: float = 1.0,
    sample_weight: np.ndarray | None = None,
    margin: float = 1.0,
) -> dict[str, Any]:
    """Return the fields of :class:`NetworkProblems` from the arguments of ``from_labels``."""
    labels = label_matrix(labels, instances, allow_missing=True)
    check_positive("C", C)
    check_positive("margin", margin)
    count = labels.shape[1]
    check_permutation("ordering", range(count) if ordering is None else ordering, count)
    ordering = np.arange(count) if ordering is None else np.array(ordering, np.int64)
    weight = sample_weights(sample_weight, instances, count)
    for clique in cliques:
        if len(clique) < 3 or len(set(clique)) < len(clique) or not set(clique) <= set(range(count)):
            raise ValueError(
                f"cliques: expected 3 or more distinct labels below {count}, got {tuple(clique)}"
            )
    position = np.argsort(ordering)
    by_position = [tuple(sorted(int(position[label]) for label in clique)) for clique in cliques]
    if isinstance(parents, np.ndarray):
        by_position += _given_parents(parents, position)
    clique_order = np.array(sorted(range(len(by_position)), key=lambda c: by_position[c][-1]), dtype=np.int64)
    sorted_cliques = tuple(by_position[c] for c in clique_order)
    children = np.array([clique[-1] for clique in sorted_cliques], dtype=np.int64)
    spins = np.nan_to_num(to_spins(labels[:, ordering], np.float32)).astype(np.int8)
    return {
        "spins": np.ascontiguousarray(spins.T),
        "context": _context(spins, sorted_cliques),
        "shared": np.arange(1, count + 1) if parents is True else np.ones(count, np.int64),
        "own": 1 + count + np.searchsorted(children, np.arange(count + 1)),
        "cliques": sorted_cliques,
        "C": float(C),
        "upper": C * weight if weight.ndim == 1 else np.ascontiguousarray(C * weight.T[ordering]),
        "margin": float(margin),
        "ordering": ordering,
        "clique_order": clique_order,
    }


def _given_parents(parents: np.ndarray, position: np.ndarray) -> list[tuple[int, int]]:
    """Return a pair (parent, child) of positions in the ordering for each entry of the mask ``parents``."""
    check_shape("parents", parents, len(position), len(position))
    pairs = [(int(position[parent]), int(position[child])) for child, parent in np.argwhere(parents)]
    if any(parent >= child for parent, child in pairs):
        raise ValueError("parents: expected parents before children in the ordering, got some after")
    return pairs


def label_matrix(labels: np.ndarray, instances: int, *, allow_missing: bool = False) -> np.ndarray:
    """Check labels (instances, labels) in {0, 1}, or NaN if missing labels are allowed; return an array."""
    labels = np.asarray(labels)
    check_shape("labels", labels, instances, None)
    check_labels("labels", labels, allow_missing=allow_missing)
    return labels


def rows_with_norms(features: Features) -> tuple[Features, np.ndarray]:
    """Convert features by :func:`feature_rows`, and also return the rows' squared norms, (instances,)."""
    features = feature_rows(features)
    square_norm = row_square_norms(features)
    check_finite("features: squared norms", square_norm)
    return features, square_norm


def feature_rows(features: Features) -> Features:
    """Convert rows to the solvers' layout: C-ordered, or CSR without duplicates; float32 or float64.

    Wide arrays of nearly all zeros, such as word counts, become CSR, and nearly full CSR becomes an array.

    Raises:
        ValueError: ``features`` is no matrix, or has values that are not finite.
        TypeError: ``features`` is neither float32 nor float64.
    """
    if sparse.issparse(features):
        features = canonical(features)
        values = features.data
    else:
        # Align the memory: NumPy sums unaligned arrays in another order, which changes the round-off.
        features = values = np.require(features, requirements=["C", "ALIGNED"])
    check_shape("features", features, None, None)
    if values.dtype not in (np.float32, np.float64):
        raise TypeError(f"features: expected float32 or float64, got {values.dtype}")
    check_finite("features", values)
    # Choose a dense array or CSR, whichever the solvers read faster.
    rows, columns = features.shape  # pyright: ignore[reportGeneralTypeIssues]
    if isinstance(features, sparse.csr_array):
        return features.toarray() if features.nnz > MOSTLY_FULL * rows * columns else features
    is_sparse = columns >= MANY_COLUMNS and np.count_nonzero(features) <= MOSTLY_ZEROS * features.size
    return canonical(features) if is_sparse else features


def sample_weights(sample_weight: np.ndarray | None, instances: int, labels: int | None = None) -> np.ndarray:
    """Check sample weights, and return them, (instances,); without weights, all weights are 1.

    Args:
        labels: the number of labels, if weights (instances, labels) are allowed, too.

    Raises:
        ValueError: the weights have another shape, negative values, or values that are not finite.
    """
    weight = np.ones(instances) if sample_weight is None else np.asarray(sample_weight, np.float64)
    check_shape("sample_weight", weight, instances, *([labels] if labels and weight.ndim == 2 else []))
    check_finite("sample_weight", weight)
    if (weight < 0).any():
        raise ValueError(f"sample_weight: expected no negative values, got {(weight < 0).sum()} of them")
    return weight


def canonical(features: Any) -> sparse.csr_array:
    """Convert features to CSR with sorted indices, 32-bit if possible, without duplicates and zeros."""
    rows = sparse.csr_array(features)
    if not rows.has_canonical_format or not rows.data.all():
        rows = rows.copy()
        rows.sum_duplicates()
        rows.eliminate_zeros()
        check_finite("features: sums of entries of one place", rows.data)
    if rows.indices.dtype != np.int32 and max(*features.shape, rows.nnz) <= np.iinfo(np.int32).max:
        indices, indptr = rows.indices.astype(np.int32), rows.indptr.astype(np.int32)
        rows = sparse.csr_array((rows.data, indices, indptr), shape=rows.shape)
    return rows


def row_square_norms(features: Features) -> np.ndarray:
    """Return the squared norm of each row, (instances,), in double precision."""
    if isinstance(features, sparse.csr_array):
        squares = np.square(features.data, dtype=np.float64)
        return sparse.csr_array((squares, features.indices, features.indptr), shape=features.shape).sum(1)
    return np.einsum("nd,nd->n", features, features, dtype=np.float64)


def _context(spins: np.ndarray, cliques: Sequence[tuple[int, ...]]) -> np.ndarray:
    constant = np.ones((len(spins), 1), np.int8)
    products = [spins[:, clique[:-1]].prod(1, keepdims=True, dtype=np.int8) for clique in cliques]
    # Store in row-major order, as the solvers read; hstack would keep the order of a transposed input.
    return np.ascontiguousarray(np.hstack([constant, spins, *products]))


@dataclass(frozen=True)
class NetworkState(SolverState):
    """Feasible duals, the weights computed from the duals, and the primal and dual values.

    Args:
        dual_coef: the dual variables, (labels, instances).
        weights: (columns, labels).
        primal: (labels,), each label's objective at ``weights``.
        dual: (labels,), each label's dual value at ``dual_coef``.
        num_iters: the number of iterations made so far.
        stage: the positions of the labels that :func:`~lmbm_torch.solvers.base.run` trains now; None for all
            labels together, with a common gap.
    """

    dual_coef: np.ndarray
    weights: np.ndarray
    primal: np.ndarray
    dual: np.ndarray
    num_iters: int
    stage: range | None = None

    @property
    def gaps(self) -> np.ndarray:
        """Return each label's duality gap relative to the primal value, (labels,)."""
        return relative_gap(self.primal - self.dual, self.primal)

    def solved(self, tol: float) -> bool:
        """Return whether every label of the stage has a relative gap of at most ``tol``."""
        return super().solved(tol) if self.stage is None else not unsolved(self, self.stage, tol).any()


def init(problems: NetworkProblems, dual_coef: np.ndarray | None = None) -> NetworkState:
    """Return the state at ``dual_coef`` (labels, instances), by default at zero.

    Raises:
        ValueError: the duals have a wrong shape, or are outside the box [0, C_l].
    """
    return certified(problems, problems.feasible(dual_coef), 0, next(problems.stages(), None))


def certified(
    problems: NetworkProblems, dual_coef: np.ndarray, num_iters: int, stage: range | None = None
) -> NetworkState:
    """Return the state at given duals, with weights computed anew: running sums would carry round-off."""
    weights = problems.weights(dual_coef)
    primal, dual = problems.primal(weights), problems.dual(dual_coef, weights)
    return NetworkState(dual_coef, weights, primal, dual, num_iters, stage)


def unsolved(state: NetworkState, labels: np.ndarray | range, tol: float) -> np.ndarray:
    """Return for each of ``labels`` whether the relative gap is above ``tol``."""
    return (state.primal - state.dual > tol * state.primal)[labels]


class UpdateSettings(TypedDict, total=False):
    """Settings of an ``update``; :func:`work` holds the defaults.

    Args:
        tol: labels with a relative gap of at most ``tol`` stay unchanged.
        num_iters: the largest number of rounds.
        seed: the seed of the order in which instances are visited.
        positions: the labels to train, by position in the ordering; by default all.
    """

    tol: float
    num_iters: int
    seed: int
    positions: Sequence[int] | None


def work(
    problems: NetworkProblems,
    state: NetworkState,
    tol: float = 1e-3,
    num_iters: int = 1,
    seed: int = 0,
    positions: Sequence[int] | None = None,
) -> tuple[np.ndarray, float, int, int]:
    """Check the settings of an update; return them with the positions of the unsolved labels only.

    Raises:
        ValueError: the state does not fit the problems, or positions are unknown.
    """
    check_shape("state.dual_coef", state.dual_coef, *problems.spins.shape)
    check_shape("state.weights", state.weights, problems.num_columns, problems.num_labels)
    every = range(problems.num_labels)
    if positions is not None and not set(positions) <= set(every):
        raise ValueError(
            f"positions: expected numbers of labels from 0 to {len(every) - 1}, got {list(positions)}"
        )
    labels = np.arange(len(every)) if positions is None else np.unique(np.array(positions, np.int64))
    return labels[unsolved(state, labels, tol)], tol, num_iters, seed


def limits(state: NetworkState, tol: float, left: int, watched: bool) -> dict[str, Any]:
    """Return the arguments of the next ``update``: all rounds that are left, or few if a callback waits."""
    rounds = min(ROUNDS_PER_CALLBACK, left) if watched else left
    return {"tol": tol, "num_iters": rounds, "positions": state.stage}


def next_stage(problems: NetworkProblems, state: NetworkState) -> tuple[NetworkProblems | None, NetworkState]:
    """Impute the missing values of the stage's last label, which later labels use as inputs.

    Returns:
        The completed problems and the first state of the next stage; after the last stage, None and the state
        with a new certificate.
    """
    following = following_stage(problems, state)
    if following is None:
        return None, certified(problems, state.dual_coef, state.num_iters, state.stage)
    completed = problems.impute(following[0] - 1, state.weights)
    return completed, certified(completed, state.dual_coef, state.num_iters, following)


def following_stage(problems: NetworkProblems, state: NetworkState) -> range | None:
    """Return the positions to train after the state's stage; None after the last stage."""
    stages = list(problems.stages())
    following = stages[stages.index(state.stage) + 1 :] if state.stage in stages else []
    return following[0] if following else None
