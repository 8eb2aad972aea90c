"""Fits of sigmoid belief networks whose labels see a few chosen parents each, over any backend of joblib."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from scipy import sparse

from lmbm_torch.estimators import orderings, parent_counts, targets
from lmbm_torch.estimators.paths import Path
from lmbm_torch.estimators.progress import bar
from lmbm_torch.estimators.spreading import Kept, keep, spread
from lmbm_torch.models import SigmoidBeliefNetwork
from lmbm_torch.solvers.base import relative_gap
from lmbm_torch.solvers.networks.chosen_parents import ManyLabels, Solved, solve_block
from lmbm_torch.solvers.networks.problems import Features

# Labels beyond which "auto" chooses parents.
MANY_LABELS = 128


class FewParentsMixin:
    """A network whose ``max_parents`` may limit the parents of its labels."""

    max_parents: int | str | None
    kernel: Any
    degree: int
    solver: str

    def _has_few_parents(self, labels: Any) -> bool:
        """Whether each label sees a few parents that are chosen for it, not all labels before it.

        Args:
            labels: (instances, labels), dense or sparse.

        Raises:
            ValueError: a number of parents with settings or labels that need all of them.
        """
        if self.max_parents is None:
            return False
        reasons = {
            "the linear kernel": self.kernel == "linear",
            "degree=2": self.degree == 2,
            "solver='dual_coordinate'": self.solver == "dual_coordinate",
            "no missing labels": sparse.issparse(labels) or not np.isnan(labels).any(),
        }
        unmet = [reason for reason, is_met in reasons.items() if not is_met]
        if self.max_parents == "auto":
            return not unmet and labels.shape[1] > MANY_LABELS
        if unmet:
            raise ValueError(f"max_parents: expected None without {unmet[0]}, got {self.max_parents}")
        return True

    def _encode(self, y: Any) -> Any:
        """Sparse label matrices in {0, 1} stay sparse where parents are chosen."""
        as_usual: Any = super()
        if not targets.is_sparse_and_binary(y) or not self._has_few_parents(y):
            return as_usual._encode(y)
        labels: Any = targets.sparse_label_matrix(y)
        self.classes_ = np.tile([0, 1], (labels.shape[1], 1))
        as_usual._note_labels(labels.shape[1])
        return labels

    def _fit_few_parents(self, X: Any, labels: Any, sample_weight: np.ndarray | None, path: Path) -> None:
        """Learn the network, and note what it has learned and how well.

        Args:
            labels: (instances, labels) in {0, 1}, dense or sparse.
            path: where the ordering comes from.
        """
        estimator: Any = self
        inputs = estimator._scaled(X, sample_weight)
        order = path.ordering
        if order is None:
            order = self._ordering(inputs, labels, sample_weight)
        path.C, path.ordering = estimator.C_, order
        dense = labels.toarray() if estimator.class_weight is not None and sparse.issparse(labels) else labels
        weights = estimator._label_weights(dense, sample_weight)
        if weights is not None and weights.ndim == 2:
            weights = weights[:, order]
        problems = ManyLabels(
            features=inputs,
            labels=sparse.csc_array(labels, dtype=np.float64)[:, order],
            C=estimator.C_,
            sample_weight=weights,
            margin=estimator.margin,
        )
        kept = keep(problems)
        estimator.max_parents_ = self.max_parents
        if self.max_parents == "auto":
            # One and the same however often an unseeded fit is repeated.
            seed = 0 if estimator.random_state is None else estimator._seed()
            limits = {"max_iter": estimator.max_iter, "seed": seed}
            estimator.max_parents_ = parent_counts.chosen(problems, kept=kept, **limits)
        solved = self._solved(problems, kept)
        by_label = np.argsort(order)
        parents: Any = sparse.vstack([part.parents for part in solved], format="csr")
        parents = parents[by_label][:, by_label].toarray()
        model = SigmoidBeliefNetwork(X.shape[1], len(order), order.tolist(), 2).double()
        weight = np.concatenate([part.features for part in solved])[by_label]
        bias = np.concatenate([part.bias for part in solved])[by_label]
        model.assign(*map(torch.from_numpy, (weight, bias, parents)))
        estimator._undo_scaling(model)
        estimator.model_ = model.to(estimator._device)
        estimator.ordering_, estimator.parent_coef_ = order, parents
        estimator.coef_ = estimator._array(model.feature_weight)
        estimator.intercept_ = estimator._array(model.bias)
        estimator._finish(X, labels, sample_weight, self._report_blocks(solved, X.shape[0]))

    def _solved(self, problems: ManyLabels, kept: Kept) -> list[Solved]:
        """The blocks of labels, learned wherever joblib's active backend says: here if there is none."""
        estimator: Any = self
        settings = {"tol": estimator.tol, "max_iter": estimator.max_iter, "seed": estimator._seed()}
        solve = partial(solve_block, max_parents=estimator.max_parents_, **settings)
        solved, count = [], problems.labels.shape[1]
        with bar(type(self).__name__, estimator.verbose) as tell:
            for part in spread(solve, kept, problems.blocks()):
                solved.append(part)
                done = sum(len(each.bias) for each in solved)
                if tell is not None:
                    tell(done / count, f"{done} of {count} labels")
        return solved

    def _ordering(self, inputs: Features, labels: Any, sample_weight: np.ndarray | None) -> np.ndarray:
        """(labels,), the label at each position; only F-scores are found with labels that are dense."""
        estimator: Any = self
        if isinstance(estimator.ordering, str) and estimator.ordering in ("auto", "frequency"):
            return orderings.frequency(labels, sample_weight)
        dense = labels.toarray() if sparse.issparse(labels) else labels
        common: Any = {"C": estimator.C_, "seed": estimator._seed(), "sample_weight": sample_weight}
        return orderings.chosen(estimator.ordering, inputs, dense, **common)

    def _report_blocks(self, solved: list[Solved], instances: int) -> float:
        """Note objective, gap and rounds; the mean loss of the instances."""
        estimator: Any = self
        primal, dual, losses, rounds = (
            np.concatenate([getattr(part, name) for part in solved])
            for name in ("primal", "dual", "losses", "num_iters")
        )
        estimator.objective_ = float(primal.sum())
        estimator.duality_gap_ = float(relative_gap(primal.sum() - dual.sum(), primal.sum()))
        estimator.n_iter_ = int(rounds.max())
        estimator._warn_unless_reached(estimator.duality_gap_)
        return float(losses.sum() / instances)
