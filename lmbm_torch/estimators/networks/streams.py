"""Training of sigmoid belief networks on a stream of instances, by Pegasos."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from scipy import sparse
from sklearn.preprocessing import LabelBinarizer
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from lmbm_torch.checks import check_count
from lmbm_torch.estimators.common import targets
from lmbm_torch.estimators.common.base import StructuredClassifier
from lmbm_torch.estimators.networks import orderings
from lmbm_torch.estimators.networks.network_training import NetworkSettings, Trained
from lmbm_torch.fitting import recipe
from lmbm_torch.fitting.dual import dual_problem
from lmbm_torch.models import SigmoidBeliefNetwork
from lmbm_torch.solvers.networks import pegasos
from lmbm_torch.solvers.networks.problems import Features


@dataclass(frozen=True, kw_only=True)
class StreamTrainer:
    """A trainer of belief networks with one step for each instance, in epochs with losses of weight C.

    Args:
        ordering: (labels,).
        epoch_size: instances of an epoch.
        seed: of the order of instances in each call.
        visits: number of steps so far.
        sums: (2, columns, labels), see :func:`pegasos.step_along`; None before the first step.
    """

    settings: NetworkSettings
    ordering: np.ndarray
    epoch_size: int
    seed: int
    visits: int = 0
    sums: np.ndarray | None = None

    @classmethod
    def begun(
        cls,
        settings: NetworkSettings,
        X: Features,
        labels: np.ndarray,
        sample_weight: np.ndarray | None,
        epoch_size: int | None,
    ) -> StreamTrainer:
        """Return a trainer with the shared settings of all calls, from the first call's instances.

        Args:
            X: (instances, features), in the units of training.
            epoch_size: None for the number of instances of the first call.
        """
        size = len(labels) if epoch_size is None else epoch_size
        check_count("epoch_size", size)
        seed = settings.draw_seed() if settings.is_seeded else 0
        common: Any = {"C": settings.C, "draw_seed": lambda: seed, "sample_weight": sample_weight}
        order = orderings.chosen(settings.ordering, X, labels, default=recipe.ORDERING_OF_STREAMS, **common)
        return cls(settings=settings, ordering=order, epoch_size=size, seed=seed)

    def train(
        self, X: Features, labels: np.ndarray, sample_weight: np.ndarray | None
    ) -> tuple[StreamTrainer, Trained]:
        """Return the trainer after a pass over the instances, and the belief network, without a duality gap.

        Args:
            X: (instances, features), in the units of training.
            labels: (instances, labels) in {0, 1}.
        """
        settings = self.settings
        width: int = X.shape[1]  # pyright: ignore[reportOptionalSubscript]
        with torch.device("cpu"):
            model = SigmoidBeliefNetwork(
                width, labels.shape[1], self.ordering.tolist(), settings.degree
            ).double()
        common: Any = {"C": settings.C, "margin": settings.margin, "sample_weight": sample_weight}
        dual = dual_problem(model, X, labels, solver="pegasos", **common)
        shape = 2, dual.problem.num_columns, labels.shape[1]
        sums = np.zeros(shape) if self.sums is None else self.sums.copy()
        order = np.random.default_rng((self.seed, self.visits)).permutation(len(labels))
        pegasos.step_along(dual.problem, sums, self.visits, order, self.epoch_size)
        after = replace(self, sums=sums, visits=self.visits + len(labels))
        learned = pegasos.mean_weights(sums, after.visits)
        dual.assign(learned)
        parents = dual.problem.network(learned).parents
        epochs = max(1, round(after.visits / self.epoch_size))
        mean_loss = float(dual.problem.hinge(learned).sum(1).mean())
        return after, Trained(model, self.ordering, parents, np.nan, np.nan, epochs, mean_loss)


def labels_of_call(
    classifier: StructuredClassifier, y: Any, classes: Sequence[Any] | np.ndarray | None, *, is_first: bool
) -> np.ndarray:
    """Return the label matrix (instances, labels) of ``partial_fit``; the first call sets the classes.

    Raises:
        ValueError: no targets, missing labels, or a change of the classes or widths of the first call.
    """
    targets.check_given(classifier, y)
    dense = targets.dense(y)
    if targets.is_label_matrix(dense):
        labels = targets.label_matrix("y", dense, allow_missing=False)
        if is_first:
            names = getattr(y, "columns", None) if classes is None else classes
            if names is not None and len(names) != labels.shape[1]:
                raise ValueError(f"classes: expected {labels.shape[1]} names of labels, got {len(names)}")
            classifier._note_labels(labels.shape[1], None if names is None else [str(name) for name in names])
            classifier.classes_ = np.tile([0, 1], (labels.shape[1], 1))
        elif classifier.binarizer_ is not None or labels.shape[1] != len(classifier.classes_):
            raise ValueError(f"y: expected the labels of the first call, got {labels.shape[1]} labels")
        else:
            targets.check_columns(y, classifier.label_names_)
        return labels
    y = column_or_1d(dense)
    check_classification_targets(y)
    if is_first:
        if classes is None and getattr(classifier, "binarizer_", None) is not None:
            classes = classifier.classes_
        if classes is None:
            raise ValueError("classes: expected all classes at the first call of partial_fit, got None")
        classifier.label_names_ = None
        classifier.binarizer_ = LabelBinarizer().fit(np.asarray(classes))
        classifier.classes_ = classifier.binarizer_.classes_
    elif classifier.binarizer_ is None:
        raise ValueError("y: expected a label matrix as in the first call, got classes")
    if len(others := np.setdiff1d(y, classifier.classes_)):
        raise ValueError(f"y: expected the classes of the first call, got {others[0]!r}")
    labels: Any = classifier.binarizer_.transform(y)
    return np.asarray(labels.todense() if sparse.issparse(labels) else labels, np.float64)
