"""Training of sigmoid belief networks whose labels have few parents, chosen by the gradient of the dual.

Cross-validation chooses the largest number of parents: some labels along the order are trained without each
fold, once for each number, and the number of least held-out loss is taken, the smaller of equal ones.
Parents have their true values, as in training. Each number starts from the duals of the number before, and
labels are trained to a relative gap of 0.01: the choice costs about a tenth of a fit of a thousand labels.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from scipy import sparse
from sklearn.model_selection import KFold

from lmbm_torch.estimators.common.calls import bar
from lmbm_torch.estimators.common.spreading import Kept, keep, spread
from lmbm_torch.estimators.networks import orderings
from lmbm_torch.estimators.networks.network_training import NetworkSettings, Trained
from lmbm_torch.fitting import recipe
from lmbm_torch.fitting.dual import Path
from lmbm_torch.models import SigmoidBeliefNetwork
from lmbm_torch.solvers.base import relative_gap
from lmbm_torch.solvers.networks.chosen_parents import ManyLabels, Solved, held_out_losses, solve_block
from lmbm_torch.solvers.networks.problems import Features

COUNTS = (5, 10, 20, 40, 80)
# Labels trained in the choice, evenly spaced along the order if there are more.
SAMPLED = 32
FOLDS = 3


def train_few_parents(
    settings: NetworkSettings,
    X: Features,
    labels: Any,
    sample_weight: np.ndarray | None,
    label_weight: np.ndarray | None,
    path: Path,
    max_parents: int | str | None,
) -> Trained:
    """Train a linear belief network whose labels have at most ``max_parents`` parents, see this module.

    Args:
        X: (instances, features), in the units of training.
        labels: (instances, labels) in {0, 1}, dense or sparse.
        sample_weight: (instances,), of the ordering.
        label_weight: (instances,) or (instances, labels), of the losses.
        path: a source of the ordering.
        max_parents: a count, or a name for a choice by cross-validation.
    """
    order = path.ordering
    if order is None:
        common: Any = {"C": settings.C, "sample_weight": sample_weight, "draw_seed": settings.draw_seed}
        common["default"] = recipe.ORDERING_OF_CHOSEN_PARENTS
        order = orderings.chosen(settings.ordering, X, labels, **common)
    path.C, path.ordering = settings.C, order
    if label_weight is not None and label_weight.ndim == 2:
        label_weight = label_weight[:, order]
    problems = ManyLabels(
        features=X,
        labels=sparse.csc_array(labels, dtype=np.float64)[:, order],
        C=settings.C,
        sample_weight=label_weight,
        margin=settings.margin,
    )
    kept, most = keep(problems), max_parents
    if not isinstance(most, int):
        seed = settings.draw_seed() if settings.is_seeded else 0
        most = chosen_count(problems, kept=kept, max_iter=settings.max_iter, seed=seed)
    solved = _solved(settings, problems, kept, most)
    by_label = np.argsort(order)
    parents: Any = sparse.vstack([part.parents for part in solved], format="csr")
    parents = parents[by_label][:, by_label].toarray()
    weight = np.concatenate([part.features for part in solved])[by_label]
    bias = np.concatenate([part.bias for part in solved])[by_label]
    with torch.device("cpu"):
        model = SigmoidBeliefNetwork(weight.shape[1], len(order), order.tolist(), 2).double()
    model.assign(*map(torch.from_numpy, (weight, bias, parents)))
    primal, dual, losses, rounds = map(
        np.concatenate,
        zip(*((part.primal, part.dual, part.losses, part.num_iters) for part in solved), strict=True),
    )
    gap = float(relative_gap(primal.sum() - dual.sum(), primal.sum()))
    mean_loss = float(losses.sum() / labels.shape[0])
    report = float(primal.sum()), gap, int(rounds.max()), mean_loss
    return Trained(model, order, parents, *report, max_parents=most)


def _solved(settings: NetworkSettings, problems: ManyLabels, kept: Kept, max_parents: int) -> list[Solved]:
    """Train blocks of labels by the workers of joblib's active backend."""
    limits = {"tol": settings.tol, "max_iter": settings.max_iter, "seed": settings.draw_seed()}
    solve = partial(solve_block, max_parents=max_parents, **limits)
    solved, count = [], problems.labels.shape[1]
    with bar(settings.name, settings.verbose) as tell:
        for part in spread(solve, kept, problems.blocks()):
            solved.append(part)
            done = sum(len(each.bias) for each in solved)
            if tell is not None:
                tell(done / count, f"{done} of {count} labels")
    return solved


def chosen_count(problems: ManyLabels, *, max_iter: int, seed: int, kept: Kept | None = None) -> int:
    """Return the number of parents in ``COUNTS`` of least loss on held-out instances.

    Args:
        max_iter: rounds of the solver.
        seed: of the folds and of the solver's order of visits.
        kept: the problems, if workers keep them already.
    """
    instances, count = problems.labels.shape
    if instances < FOLDS:
        return COUNTS[0]
    # The first label has no parents.
    labels = np.unique(np.linspace(1, count - 1, min(SAMPLED, count - 1)).round().astype(int)).tolist()
    settings = {"labels": labels, "counts": COUNTS, "max_iter": max_iter, "seed": seed}
    folds = KFold(FOLDS, shuffle=True, random_state=seed).split(np.empty(instances))
    losses = sum(spread(partial(held_out_losses, **settings), problems if kept is None else kept, folds))
    return COUNTS[int(np.argmin(losses))]
