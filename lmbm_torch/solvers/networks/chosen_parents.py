"""Belief networks of many labels, each with a few chosen parents, trained block by block.

Label k's field (the score for y_k = 1) is ⟨w, x⟩ + b + Σ_{j ∈ pa(k)} v_j 2 y_j with y_j in {0, 1}: absent
labels cost neither time nor memory. In spins s = 2y − 1 the network is a sigmoid belief network with
intercept b + Σ_j v_j; but the penalty is ½b², where b is the intercept if all parents are absent.

Parents are chosen as features are chosen by Perkins, Lacker and Theiler, "Grafting", JMLR 2003: independent
labels are trained first. At the duals α, the objective's derivative by a new weight v_j is −Σ_i α_ik s_ik
2 y_ij. The labels j with the largest derivatives become parents, and training continues from the duals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from lmbm_torch.checks import check_count
from lmbm_torch.kernels.threads import share, single_threaded
from lmbm_torch.solvers.base import run
from lmbm_torch.solvers.networks import dual_coordinate
from lmbm_torch.solvers.networks.problems import Features, LabelProblems, feature_rows

# Number of labels trained together: the duals of all these labels must fit into memory.
BLOCK = 64
# Relative gap at which the first training, without parents, ends; the dual variables select the parents.
FIRST_TOL = 1e-2


@dataclass(frozen=True, kw_only=True)
class ManyLabels:
    """The training problems of all labels; labels are numbered by position in the ordering.

    Args:
        features: (instances, features), dense or CSR.
        labels: (instances, labels) in {0, 1}, CSC of float64.
        C: the weight of the losses.
        sample_weight: (instances,), or (instances, labels) for a weight of each label; multiplies C.
        margin: γ.
    """

    features: Features
    labels: Any
    C: float
    sample_weight: np.ndarray | None = None
    margin: float = 1.0

    def weights_of(self, k: int) -> np.ndarray | None:
        """Return the weights of label k's losses, (instances,)."""
        weight = self.sample_weight
        return weight if weight is None or weight.ndim == 1 else weight[:, k]

    def rows(self, rows: np.ndarray) -> ManyLabels:
        """Return the problems restricted to the instances ``rows``."""
        weight = None if self.sample_weight is None else self.sample_weight[rows]
        return replace(
            self, features=self.features[rows], labels=self.labels[rows].tocsc(), sample_weight=weight
        )

    def blocks(self) -> list[range]:
        """Divide the labels into ranges, one for each call of :func:`solve_block`."""
        count = self.labels.shape[1]
        return [range(first, min(first + BLOCK, count)) for first in range(0, count, BLOCK)]


class Solved(NamedTuple):
    """The trained weights of the labels of a block, with parents as spins, and the objectives' values.

    Args:
        features: weights of features, (labels of the block, features).
        bias: (labels of the block,).
        parents: weights of parents, (labels of the block, labels), CSR.
        primal: (labels of the block,), each label's objective.
        dual: (labels of the block,), each label's dual value.
        losses: (labels of the block,), the sum of hinge losses Σ_i [γ − m_i]_+.
        num_iters: (labels of the block,), the number of the solver's rounds.
    """

    features: np.ndarray
    bias: np.ndarray
    parents: sparse.csr_array
    primal: np.ndarray
    dual: np.ndarray
    losses: np.ndarray
    num_iters: np.ndarray


class _Label(NamedTuple):
    """The trained weights of one label, with the positions of the parents, and the dual variables."""

    features: np.ndarray
    bias: float
    parents: np.ndarray
    weights: np.ndarray
    dual_coef: np.ndarray
    values: tuple[float, float, float, int]


@single_threaded()
def solve_block(
    problems: ManyLabels, block: range, *, max_parents: int, tol: float, max_iter: int, seed: int
) -> Solved:
    """Train the labels ``block``, each to a relative gap of ``tol`` or for ``max_iter`` rounds.

    The result does not depend on other blocks; separate processes may train separate blocks.

    Args:
        max_parents: the largest number of parents of a label.

    Raises:
        ValueError: ``max_parents`` is below one; see also :meth:`LabelProblems.from_labels`.
        TypeError: see :meth:`LabelProblems.from_labels`.
    """
    check_count("max_parents", max_parents)
    # Copy the features: memory shared with another process is read-only, and compiled code would be compiled
    # again for read-only arrays.
    problems = replace(problems, features=feature_rows(problems.features.copy()))
    independent, dual_coef = _begin(problems, block, max_iter=max_iter, seed=seed)
    earlier = sparse.csr_array(problems.labels[:, : block.stop].T)
    found: list[_Label | None] = [None] * len(block)

    def learn(j: int) -> None:
        signed = dual_coef[j] * independent.spins[j]
        parents = choose_parents(earlier, block[j], signed, max_parents)
        found[j] = _learn(problems, block[j], parents, dual_coef[j], tol=tol, max_iter=max_iter, seed=seed)

    share(range(len(block)), learn)
    return _together([label for label in found if label is not None], problems.labels.shape[1])


@single_threaded()
def held_out_losses(
    problems: ManyLabels,
    split: tuple[np.ndarray, np.ndarray],
    *,
    labels: Sequence[int],
    counts: Sequence[int],
    max_iter: int,
    seed: int,
) -> np.ndarray:
    """Sum the losses of held-out instances for several limits of the number of parents, (counts,).

    Labels are trained to a relative gap of ``FIRST_TOL``, with the true values of parents.

    Args:
        split: indices of training instances and of held-out instances.
        labels: positions, ascending, of the labels to train.
        counts: limits of the number of parents; training is fastest if the limits are in rising order.
    """
    known, held_out = (problems.rows(rows) for rows in split)
    known = replace(known, features=feature_rows(known.features))
    independent, dual_coef = _begin(known, labels, max_iter=max_iter, seed=seed)
    earlier = sparse.csr_array(known.labels.T)
    losses = np.zeros((len(labels), len(counts)))

    def learn(j: int) -> None:
        k, signed, duals = labels[j], dual_coef[j] * independent.spins[j], dual_coef[j]
        for place, count in enumerate(counts):
            parents = choose_parents(earlier, k, signed, count)
            label = _learn(known, k, parents, duals, tol=FIRST_TOL, max_iter=max_iter, seed=seed)
            losses[j, place] = _losses(held_out, k, label).sum()
            # The next limit adds parents to these parents, so training starts from these duals.
            duals = label.dual_coef

    share(range(len(labels)), learn)
    return losses.sum(0)


def _losses(problems: ManyLabels, k: int, label: _Label) -> np.ndarray:
    """Return label k's weighted losses, (instances,)."""
    fields = problems.features @ label.features + label.bias - label.weights.sum()
    fields += problems.labels[:, label.parents] @ (2 * label.weights)
    spins = 2 * problems.labels[:, [k]].toarray()[:, 0] - 1
    losses = np.maximum(problems.margin - spins * fields, 0)
    weight = problems.weights_of(k)
    return losses if weight is None else weight * losses


def choose_parents(labels: sparse.csr_array, k: int, signed: np.ndarray, count: int) -> np.ndarray:
    """Return at most ``count`` positions before k, ascending, with the largest changes of the objective.

    Args:
        labels: (at least k labels, instances) in {0, 1}.
        signed: (instances,), α_i s_i of label k without the new parents.
    """
    promise = np.abs(labels @ signed)[:k]
    # If derivatives are equal, prefer the first labels.
    best = np.argsort(-promise, kind="stable")[:count]
    return np.sort(best[promise[best] > 0])


def _begin(
    problems: ManyLabels, labels: Sequence[int], *, max_iter: int, seed: int
) -> tuple[LabelProblems, np.ndarray]:
    """Train labels without parents; return the problems, and the dual variables (labels, instances)."""
    columns, weight = problems.labels[:, list(labels)].toarray(), problems.sample_weight
    if weight is not None and weight.ndim == 2:
        weight = weight[:, list(labels)]
    settings = {"C": problems.C, "sample_weight": weight, "margin": problems.margin}
    independent = LabelProblems.from_labels(problems.features, columns, parents=False, **settings)
    start = run(dual_coordinate, independent, tol=FIRST_TOL, max_iter=max_iter, seed=seed)
    return independent, start.dual_coef


def _learn(
    problems: ManyLabels,
    k: int,
    parents: np.ndarray,
    dual_coef: np.ndarray,
    *,
    tol: float,
    max_iter: int,
    seed: int,
) -> _Label:
    """Train label k with given parents, starting from the dual variables found with fewer or no parents."""
    own = LabelProblems.from_labels(
        with_parents(problems.features, problems.labels[:, parents]),
        problems.labels[:, [k]].toarray(),
        C=problems.C,
        sample_weight=problems.weights_of(k),
        margin=problems.margin,
    )
    first = dual_coordinate.init(own, dual_coef[None])
    state = run(dual_coordinate, own, tol=tol, max_iter=max_iter, start=first, seed=seed)
    network, width = own.network(state.weights), problems.features.shape[1]  # pyright: ignore[reportOptionalSubscript]
    weights = network.features[0, width:]
    losses = float(own.hinge(state.weights).sum())
    values = float(state.primal[0]), float(state.dual[0]), losses, state.num_iters
    bias, duals = network.bias[0] + weights.sum(), state.dual_coef[0]
    return _Label(network.features[0, :width], bias, parents, weights, duals, values)


def with_parents(features: Features, labels: Any) -> Features:
    """Append a column 2y to the features for each parent label y; return features of the same kind and dtype.

    The factor gives a parent the scale of its spin 2y − 1.
    """
    if isinstance(features, sparse.csr_array):
        # Convert to CSR first: SciPy stacks two CSR arrays in half the time.
        columns = (2 * labels).tocsr()
        return sparse.csr_array(sparse.hstack([features, columns], format="csr", dtype=features.dtype))
    return np.hstack([features, 2 * labels.toarray()], dtype=features.dtype)


def _together(labels: list[_Label], count: int) -> Solved:
    start = np.cumsum([0, *(len(label.parents) for label in labels)])
    entries = [np.concatenate([getattr(label, name) for label in labels]) for name in ("weights", "parents")]
    primal, dual, losses, num_iters = map(np.array, zip(*(label.values for label in labels), strict=True))
    return Solved(
        np.stack([label.features for label in labels]),
        np.array([label.bias for label in labels]),
        sparse.csr_array((entries[0], entries[1], start), shape=(len(labels), count)),
        primal,
        dual,
        losses,
        num_iters,
    )
