"""Weights of sequences' scores by penalised likelihood."""

from __future__ import annotations

import numpy as np

from lmbm_torch.estimators.chains.base import ProbabilisticSequenceClassifier
from lmbm_torch.solvers.base import run
from lmbm_torch.solvers.chains.likelihood import LikelihoodProblem
from lmbm_torch.solvers.networks.problems import Features
from lmbm_torch.solvers.structural import lbfgs
from lmbm_torch.solvers.structural.problems import StructuralWeights


class LikelihoodClassifier(ProbabilisticSequenceClassifier):
    """Training minimises ½‖w‖² − C Σ log p(y | x) by L-BFGS, intercepts and transitions in ‖w‖² too.

    Attributes:
        objective_: its value; relative_gradient_: its norm beside that at zero; duality_gap_: a bound on what
            the objective is above its optimum, relative to it, which is loose where C is large; n_iter_: of
            L-BFGS.
    """

    def _learn(
        self, X: Features, codes: np.ndarray, start: np.ndarray, C: float, weights: np.ndarray | None
    ) -> StructuralWeights:
        """The weights of features, with intercepts, and transitions; reports the training.

        Args:
            X: (rows, features), all chains one after another.
            codes: (rows,), indices into the classes.
            start: (chains + 1,), where each chain begins.
            weights: (chains,), multiplies C.
        """
        problem = LikelihoodProblem(X, codes, start, len(self.classes_), C=C, sample_weight=weights)
        with self._progress() as progress:
            state = run(lbfgs, problem, tol=self.tol, max_iter=self.max_iter, progress=progress)
        self.objective_, self.n_iter_ = state.objective, state.num_iters
        self.duality_gap_, self.relative_gradient_ = state.relative_excess, state.relative_gradient
        self._warn_unless_reached(state.gap, "relative gradient or gain")
        return state.weights
