"""How many parents the labels of a large network may have, by cross-validation.

Some labels along the ordering are learned without each fold in turn, once for each limit; the limit of the
least held-out loss is taken, of equal ones the smaller. Parents have their true values, as in training. Each
limit goes on from the duals of the one below, and labels are learned to a hundredth alone: the choice costs
some tenth of a fit of a thousand labels.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from sklearn.model_selection import KFold

from lmbm_torch.estimators.spreading import Kept, spread
from lmbm_torch.solvers.networks.chosen_parents import ManyLabels, held_out_losses

COUNTS = (5, 10, 20, 40, 80)
# Labels that are learned; where there are more, evenly spaced along the ordering.
SAMPLED = 32
FOLDS = 3


def chosen(problems: ManyLabels, *, max_iter: int, seed: int, kept: Kept | None = None) -> int:
    """The limit of parents, one of ``COUNTS``, that loses least on held-out instances.

    Folds are learned wherever joblib's active backend says.

    Args:
        max_iter: rounds of the solver.
        seed: of the folds and of the solver's order of visits.
        kept: the problems, where workers keep them.
    """
    instances, count = problems.labels.shape
    if instances < FOLDS:
        return COUNTS[0]
    # The first label of all has no parents.
    labels = np.unique(np.linspace(1, count - 1, min(SAMPLED, count - 1)).round().astype(int)).tolist()
    settings = {"labels": labels, "counts": COUNTS, "max_iter": max_iter, "seed": seed}
    folds = KFold(FOLDS, shuffle=True, random_state=seed).split(np.empty(instances))
    losses = sum(spread(partial(held_out_losses, **settings), problems if kept is None else kept, folds))
    return COUNTS[int(np.argmin(losses))]
