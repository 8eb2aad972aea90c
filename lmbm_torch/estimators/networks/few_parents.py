"""Training of sigmoid belief networks whose labels see a few parents each, chosen by the dual's gradient.

How many parents at most is chosen by cross-validation: some labels along the ordering are learned without
each fold in turn, once for each limit; the limit of the least held-out loss is taken, of equal ones the
smaller. Parents have their true values, as in training. Each limit goes on from the duals of the one below,
and labels are learned to a hundredth alone: the choice costs some tenth of a fit of a thousand labels.
"""

from __future__ import annotations

from dataclasses import dataclass
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
from lmbm_torch.fitting.dual import Path
from lmbm_torch.models import SigmoidBeliefNetwork
from lmbm_torch.solvers.base import relative_gap
from lmbm_torch.solvers.networks.chosen_parents import ManyLabels, Solved, held_out_losses, solve_block
from lmbm_torch.solvers.networks.problems import Features

COUNTS = (5, 10, 20, 40, 80)
# Labels that are learned; where there are more, evenly spaced along the ordering.
SAMPLED = 32
FOLDS = 3


@dataclass(frozen=True)
class FewParentsTrainer:
    """Learns a network of features, whose labels see ``max_parents`` labels before them; see this module.

    Args:
        max_parents: the limit; ``"auto"`` to choose it by cross-validation.
    """

    settings: NetworkSettings
    max_parents: int | str

    def train(
        self,
        X: Features,
        labels: Any,
        sample_weight: np.ndarray | None,
        label_weight: np.ndarray | None,
        path: Path,
    ) -> Trained:
        """Return the network.

        Args:
            X: (instances, features), in the units of training.
            labels: (instances, labels) in {0, 1}, dense or sparse.
            sample_weight: (instances,), of the ordering.
            label_weight: (instances,) or (instances, labels), of the losses.
            path: where the ordering comes from.
        """
        settings, order = self.settings, path.ordering
        if order is None:
            order = self._ordering(X, labels, sample_weight)
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
        kept, most = keep(problems), self.max_parents
        if isinstance(most, str):
            seed = settings.draw_seed() if settings.is_seeded else 0
            most = chosen_count(problems, kept=kept, max_iter=settings.max_iter, seed=seed)
        solved = self._solved(problems, kept, most)
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

    def _solved(self, problems: ManyLabels, kept: Kept, max_parents: int) -> list[Solved]:
        """The blocks of labels, learned wherever joblib's active backend says: here if there is none."""
        settings = self.settings
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

    def _ordering(self, inputs: Features, labels: Any, sample_weight: np.ndarray | None) -> np.ndarray:
        """(labels,), the label at each position; only F-scores are found with labels that are dense."""
        settings = self.settings
        if isinstance(settings.ordering, str) and settings.ordering in ("auto", "frequency"):
            return orderings.frequency(labels, sample_weight)
        dense = labels.toarray() if sparse.issparse(labels) else labels
        common: Any = {"C": settings.C, "seed": settings.draw_seed(), "sample_weight": sample_weight}
        return orderings.chosen(settings.ordering, inputs, dense, **common)


def chosen_count(problems: ManyLabels, *, max_iter: int, seed: int, kept: Kept | None = None) -> int:
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
