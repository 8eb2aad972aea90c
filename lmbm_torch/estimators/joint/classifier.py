"""A classifier of label vectors: any model that scores single labels, and a joint head over these scores."""

from __future__ import annotations

from typing import Any, ClassVar, Self, cast

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse
from sklearn.base import clone
from sklearn.model_selection import check_cv
from sklearn.utils.validation import check_is_fitted

from lmbm_torch.checks import check_shape
from lmbm_torch.data.rows import checked_weights, num_instances, some_instances
from lmbm_torch.data.splits import IterativeStratifiedKFold
from lmbm_torch.estimators.common.base import Rows, StructuredClassifier
from lmbm_torch.estimators.common.calls import answer_call, fit_call
from lmbm_torch.estimators.common.settings import SHARED, Constraints, HasMethods, check_parameters, seeds_for
from lmbm_torch.estimators.common.under_rules import Rules
from lmbm_torch.estimators.explain.explanations import Explanation
from lmbm_torch.estimators.joint.bases import LabelScorer
from lmbm_torch.estimators.joint.head import JointHead
from lmbm_torch.inference.common.results import Decoding


class JointClassifier(StructuredClassifier):
    """A model of single labels with a joint head over the scores of held-out rows.

    For each fold a copy of the base is fitted to all other folds, and scores the rows of the fold; finally
    the base is fitted to all rows. The head, a :class:`~lmbm_torch.estimators.joint.head.JointHead`, learns
    from these scores, one for each row and label, and sees no features.

    The base may be any classifier of label matrices in {0, 1} with ``fit`` and ``predict_proba``, or else
    ``decision_function`` for logits: forests, neural networks, boosting of several labels. If the base
    refuses label matrices, a copy is fitted for each label, as by ``MultiOutputClassifier``; a label that has
    only one value in the training rows of a fold is scored by the value there. If labels are missing,
    classifiers of the library get NaN; of every other base, a copy is fitted for each label, to the rows
    where the label is known. For parallel fits, wrap the base in ``MultiOutputClassifier``.

    Args:
        base: the unfitted model.
        head: the unfitted head; ``JointHead()`` by default. The parameter ``scores`` of the head is set to
            the kind of scores that the base has.
        cv: number of folds, stratified by label, or a splitter of scikit-learn. If a row is held out several
            times, the scores are averaged.
        random_state: seed for the folds, and for a base and a head without seeds.

    Attributes:
        base_: the model, fitted to all rows.
        head_: the fitted head; ``head_.save`` writes a file without the base.
        classes_: (labels, 2), the two values of each label.

    Examples:
        >>> from sklearn.datasets import make_multilabel_classification
        >>> from sklearn.linear_model import LogisticRegression
        >>> from lmbm_torch import JointClassifier
        >>> X, Y = make_multilabel_classification(200, n_classes=4, random_state=0)
        >>> model = JointClassifier(LogisticRegression(), random_state=0).fit(X, Y)
        >>> model.predict(X[:2]), model.head_.structure_
        (array([[1, 0, 0, 0],
               [0, 1, 0, 0]]), 'network')
    """

    holds_others: ClassVar[bool] = True
    _accepted: ClassVar[Constraints] = {
        **SHARED,
        "base": [HasMethods(["fit", "get_params"])],
        "head": [JointHead, None],
        "cv": ["cv_object"],
    }

    def __init__(self, base, head=None, *, cv=5, random_state=None):
        self.base = base
        self.head = head
        self.cv = cv
        self.random_state = random_state

    @fit_call
    def fit(
        self, X: Any, y: Rows, sample_weight: ArrayLike | None = None, groups: ArrayLike | None = None
    ) -> Self:
        """Fit the base and the head.

        Args:
            X: instances in any form for the base: a matrix, dense or sparse, a data frame, a list.
            y: labels (instances, labels) of two values, such as 0 and 1, NaN for missing labels, or two
                classes (instances,).
            sample_weight: weights (instances,) for the base and the head.
            groups: (instances,); all instances of a group are in the same fold.

        Raises:
            ValueError: scores of the base have another shape than labels, or the base raises ValueError.
        """
        check_parameters(self)
        head = JointHead() if self.head is None else cast(JointHead, clone(self.head))
        labels, X = head._labels(y, None), _instances(X)
        check_shape("y", labels, num_instances(X), None)
        weights = None if sample_weight is None else checked_weights(sample_weight, len(labels))
        head.set_params(**seeds_for(head, self.random_state))
        base = cast(Any, clone(self.base)).set_params(**seeds_for(self.base, self.random_state))
        scorer = LabelScorer(base)
        total, times = np.zeros(labels.shape), np.zeros(len(labels))
        for train, test in self._folds(X, labels, groups):
            own = None if weights is None else weights[train]
            scorer.fit(some_instances(X, np.asarray(train)), labels[train], own)
            total[test] += scorer.scores(some_instances(X, np.asarray(test)))
            times[test] += 1
        self.base_ = scorer.fit(X, labels, weights).fitted_
        self._scorer = scorer
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(self.base_, name):
                setattr(self, name, getattr(self.base_, name))
        rows = np.flatnonzero(times)
        head.set_params(scores=scorer.kind)
        self.head_ = head.fit(
            total[rows] / times[rows, None],
            y if len(rows) == len(labels) else some_instances(y, rows),
            None if weights is None else weights[rows],
            None if groups is None else np.asarray(groups)[rows],
        )
        self._note_head()
        return self

    def recalibrate(
        self, X: Any, y: Rows, sample_weight: ArrayLike | None = None, groups: ArrayLike | None = None
    ) -> Self:
        """Fit a new head to instances that the base has not seen in training; keep the base unchanged.

        Args, Raises: see :meth:`fit`.
        """
        head = cast(JointHead, clone(self.head_))
        self.head_ = head.fit(self.base_scores(X), y, sample_weight, groups)
        self._note_head()
        return self

    @answer_call
    def base_scores(self, X: Any) -> np.ndarray:
        """Return the base's probabilities (instances, labels), or logits if it has no probabilities."""
        check_is_fitted(self)
        return self._scorer.scores(X)

    @answer_call
    def predict(self, X: Any, known: ArrayLike | None = None) -> np.ndarray:
        """Predict labels (instances, labels), or classes (instances,); see :meth:`JointHead.predict`."""
        return self._fitted_head().predict(self.base_scores(X), known)

    @answer_call
    def predict_proba(self, X: Any) -> np.ndarray:
        """Return P(label = 1), (instances, labels), or P(class), (instances, 2); see :class:`JointHead`."""
        found = self._fitted_head().predict_proba(self.base_scores(X))
        return found if self.binarizer_ is None else np.hstack([1 - found, found])

    @answer_call
    def log_prob(self, X: Any, Y: ArrayLike) -> np.ndarray:
        """Return the log-probabilities log P(Y | X) of the rows of ``Y``; see :meth:`JointHead.log_prob`."""
        return self._fitted_head().log_prob(self.base_scores(X), Y)

    @answer_call
    def decode(
        self, X: Any, known: ArrayLike | None = None, top_k: int = 1, constraints: Rules | None = None
    ) -> Decoding:
        """Return the ``top_k`` most probable label vectors of each instance; see :meth:`JointHead.decode`."""
        return self._fitted_head().decode(self.base_scores(X), known, top_k, constraints)

    @answer_call
    def explain(self, X: Any, *, num_features: int = 10) -> Explanation:
        """Explain the labels predicted for one instance by the base's scores: :meth:`JointHead.explain`."""
        return self._fitted_head().explain(self.base_scores(X), num_features=num_features)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        tags.classifier_tags.multi_class = False
        return tags

    def _fitted_head(self) -> JointHead:
        check_is_fitted(self)
        return self.head_

    def _note_head(self) -> None:
        for name in ("classes_", "label_names_", "binarizer_"):
            setattr(self, name, getattr(self.head_, name))

    def _folds(self, X: Any, labels: np.ndarray, groups: ArrayLike | None) -> Any:
        together = None if groups is None else np.asarray(groups)
        count = 5 if self.cv is None else self.cv
        if not isinstance(count, int | np.integer):
            return cast(Any, check_cv(count)).split(X, labels, together)
        splitter = IterativeStratifiedKFold(
            max(2, min(int(count), len(labels))), random_state=self._seed() % 2**31
        )
        return splitter.split(X, labels, together)


def _instances(X: Any) -> Any:
    """Convert sparse matrices to CSR, and objects without a length to arrays, so rows can be selected."""
    if sparse.issparse(X):
        return X.tocsr()
    return X if hasattr(X, "shape") or hasattr(X, "__len__") else np.asarray(X)
