"""Weights of sequences' scores by penalised likelihood."""

from __future__ import annotations

import numpy as np

from lmbm_torch.estimators.chains.base import ProbabilisticSequenceClassifier
from lmbm_torch.solvers.base import run
from lmbm_torch.solvers.chains.likelihood import LikelihoodProblem
from lmbm_torch.solvers.networks.problems import Features
from lmbm_torch.solvers.structural import lbfgs
from lmbm_torch.solvers.structural.problems import StructuralWeights


def train_likelihood(
    classifier: ProbabilisticSequenceClassifier,
    X: Features,
    codes: np.ndarray,
    start: np.ndarray,
    C: float,
    weights: np.ndarray | None,
) -> StructuralWeights:
    """Return weights of features, with intercepts, and transitions, and report the training of a classifier.

    They minimise ½‖w‖² − C Σ log p(y | x) by L-BFGS, intercepts and transitions in ‖w‖² too.

    Args:
        X: (rows, features), all chains one after another.
        codes: (rows,), indices into the classes.
        start: (chains + 1,), where each chain begins.
        weights: (chains,), multiplies C.
    """
    problem = LikelihoodProblem(X, codes, start, len(classifier.classes_), C=C, sample_weight=weights)
    with classifier._progress() as progress:
        limits = {"tol": classifier.tol, "max_iter": classifier.max_iter, "progress": progress}
        state = run(lbfgs, problem, **limits)
    classifier.objective_, classifier.n_iter_ = state.objective, state.num_iters
    classifier.duality_gap_, classifier.relative_gradient_ = state.relative_excess, state.relative_gradient
    classifier._warn_unless_reached(state.gap, "relative gradient or gain")
    return state.weights
