"""The joint head: the distribution of whole labellings, learned from scores of single labels."""

from __future__ import annotations

import warnings
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import check_cv
from sklearn.utils.validation import check_is_fitted

from lmbm_torch.checks import check_count, check_labels, check_shape, level_of_caller
from lmbm_torch.data.rows import checked_weights
from lmbm_torch.data.splits import IterativeStratifiedKFold
from lmbm_torch.estimators.common.base import Rows, StructuredClassifier
from lmbm_torch.estimators.common.calls import answer_call, fit_call
from lmbm_torch.estimators.common.settings import (
    COUNT,
    SHARED,
    Constraints,
    Number,
    StrOptions,
    check_parameters,
)
from lmbm_torch.estimators.common.targets import check_columns, label_matrix
from lmbm_torch.estimators.joint import choosing, rules
from lmbm_torch.estimators.joint.choosing import METRICS, STRUCTURES
from lmbm_torch.estimators.joint.likelihood import Parameters
from lmbm_torch.estimators.joint.scores import KINDS, log_odds, names_of, score_matrix
from lmbm_torch.inference.results import Decoding, joined
from lmbm_torch.inference.search import mixture


class JointHead(StructuredClassifier):
    """A joint distribution of labels over the scores of single labels, from any model.

    The scores must come from rows outside of the model's training set, as ``cross_val_predict`` returns:
    scores of training rows are overconfident, and a head over such scores fails on new rows.
    :class:`~lmbm_torch.estimators.joint.classifier.JointClassifier` makes scores out of fold.

    Three structures learn by penalised maximum likelihood, with exact sums for any number of labels:

    * ``"independent"``: a slope and an offset of the log-odds of each label, shrunk to 1 and 0 (Platt 1999);
    * ``"cardinality"``: in addition a weight of the number of labels in a row;
    * ``"network"``: an equal mixture of belief networks. The log-odds of a label given the labels before are
      the conditional log-odds of ``"cardinality"``, with slopes of the scores of all labels and a weight of
      each label before.

    Folds choose the penalties by the log loss of whole labellings, and the structure by ``metric``, together
    with three cheap rules: one threshold, a threshold for each label, and the most probable label. If a rule
    is better on the folds than all structures, :meth:`predict` follows the rule; all other methods describe
    the distribution.

    Args:
        metric: the measure to choose by and to decode for: ``"exact_match"``, ``"f1"`` (mean over rows),
            ``"jaccard"``, ``"hamming"``, or ``"log_loss"`` of whole labellings, with the most probable
            labelling as the prediction and without rules.
        scores: ``"probabilities"`` or ``"logits"``.
        structure: ``"auto"`` for all structures, networks for up to 100 labels; or a single structure.
        cv: number of folds, or a splitter of scikit-learn. Fewer than 1,000 rows are divided into folds
            twice.
        num_orders: networks in the mixture, each with a different order of the labels.
        clip: probabilities nearer to 0 and 1 count as ``clip`` and 1 − ``clip``; forests return 0 and 1.
        random_state: seed of the folds, the orders and the samples.

    Attributes:
        structure_: the structure of the distribution.
        rule_: the rule of :meth:`predict`; None for the distribution.
        cross_validated_: metric of every structure and rule on the folds, by name.
        log_loss_: mean log loss of whole labellings on the folds, by structure, in nats.
        slope_, offset_: (labels,), of the log-odds.
        count_weight_: (K + 1,), log-potentials of 0, 1, …, K labels in a row; K and more share the last.
        orderings_: (orders, labels), of the networks; coef_: (orders, labels, 2 labels + 2), see
            :class:`~lmbm_torch.estimators.joint.likelihood.Parameters`.
        thresholds_: (labels,), a rule sets labels of larger log-odds; NaN for the most probable label.
        classes_: (labels, 2), the two values of each label.

    Examples:
        >>> import numpy as np
        >>> from lmbm_torch import JointHead
        >>> Y = np.eye(3, dtype=int)[np.arange(60) % 3]
        >>> scores = 0.2 + 0.3 * Y + 0.1 * np.random.default_rng(0).random((60, 3))
        >>> head = JointHead(random_state=0).fit(scores, Y)
        >>> head.predict([[0.4, 0.45, 0.1]])
        array([[0, 1, 0]])
    """

    encodes_frames: ClassVar[bool] = False
    _accepted: ClassVar[Constraints] = {
        **SHARED,
        "metric": [StrOptions(METRICS)],
        "scores": [StrOptions(KINDS)],
        "structure": [StrOptions({"auto", *STRUCTURES})],
        "cv": ["cv_object"],
        "num_orders": [COUNT],
        "clip": [Number(float, 0, 0.5, closed="neither")],
    }

    def __init__(
        self,
        metric="exact_match",
        *,
        scores="probabilities",
        structure="auto",
        cv=5,
        num_orders=3,
        clip=1e-3,
        random_state=None,
    ):
        self.metric = metric
        self.scores = scores
        self.structure = structure
        self.cv = cv
        self.num_orders = num_orders
        self.clip = clip
        self.random_state = random_state

    @fit_call
    def fit(
        self,
        X: Any,
        y: Rows,
        sample_weight: ArrayLike | None = None,
        groups: ArrayLike | None = None,
    ) -> Self:
        """Fit the head to scores of rows outside of the model's training set.

        Args:
            X: scores (rows, labels): a matrix, a data frame with the names of the labels, or a list of arrays
                (rows, 2), one for each label.
            y: labels (rows, labels) of two values, such as 0 and 1.
            sample_weight: (rows,), weights in the likelihood and the metric.
            groups: (rows,), rows of a group stay in a common fold.

        Raises:
            TypeError: scores or labels other than numbers.
            ValueError: scores of another kind than the parameter ``scores``, missing labels, other shapes, or
                different names of columns in ``X`` and ``y``.
        """
        check_parameters(self)
        log_odds, labels = self._log_odds(X, is_training=True), self._labels(y, names_of(X))
        check_shape("scores", log_odds, *labels.shape)
        weights = (
            np.ones(len(labels)) if sample_weight is None else checked_weights(sample_weight, len(labels))
        )
        self.n_features_in_ = log_odds.shape[1]
        rows, seed = choosing.Rows(log_odds, labels, weights), self._seed()
        is_small = labels.shape[1] <= choosing.NETWORK_LABELS
        automatic = STRUCTURES if is_small else STRUCTURES[:-1]
        structures = automatic if self.structure == "auto" else (self.structure,)
        choice = choosing.choose(
            self.metric, rows, self._folds(labels, groups, seed), structures, seed, self.num_orders
        )
        orderings = choosing.orders(rows, seed, self.num_orders)
        found = choosing.at_penalty(choice.structure, rows, choice.penalties, orderings)
        self.structure_, self.rule_ = choice.structure, choice.rule
        self.cross_validated_, self.log_loss_ = choice.values, choice.log_losses
        self.slope_, self.offset_, self.count_weight_ = found.slope, found.offset, found.count_weight
        self.orderings_, self.coef_ = found.orderings, found.coef
        self.thresholds_ = np.zeros(labels.shape[1])
        if choice.rule is not None:
            self.thresholds_ = rules.learned(choice.rule, self.metric, log_odds, labels, weights)
        self.seed_ = seed
        return self

    @answer_call
    def predict(self, X: Any) -> np.ndarray:
        """Return the labels of largest expected ``metric``, (rows, labels), in the values of ``fit``.

        A warning tells of searches at their limit.
        """
        log_odds = self._fitted_log_odds(X)
        if self.rule_ is not None:
            return self._values(rules.predicted(self.thresholds_, log_odds))
        labels, is_proven = choosing.predicted(
            self._parameters(), log_odds, self.metric, self.seed_, choosing.ANSWER_LIMITS
        )
        if not is_proven.all():
            warnings.warn(
                f"{(~is_proven).sum()} of {len(labels)} rows: the search ended at its limit; the labels are "
                "the best found, not proven optimal",
                ConvergenceWarning,
                stacklevel=level_of_caller(),
            )
        return self._values(labels)

    @answer_call
    def predict_proba(self, X: Any) -> np.ndarray:
        """Return P(label = 1 | X) under the joint distribution, (rows, labels).

        Exact for ``"independent"`` and ``"cardinality"``; networks enumerate likely labellings up to a
        probability of 0.99, or 10,000 labellings.
        """
        log_odds, parameters = self._fitted_log_odds(X), self._parameters()
        if not len(parameters.orderings):
            return parameters.counts(log_odds).moments()[0]
        found = [
            mixture.marginals(parameters.energies(some)).states[..., 1].numpy()
            for some in choosing.in_parts(log_odds, parameters)
        ]
        return np.concatenate(found)

    @answer_call
    def log_prob(self, X: Any, Y: ArrayLike) -> np.ndarray:
        """Return log P(Y | X) of whole labellings, (rows,), exactly.

        Args:
            X: scores, see :meth:`fit`.
            Y: (rows, labels), in the values of ``fit``.
        """
        log_odds = self._fitted_log_odds(X)
        labels = self._coded("Y", Y, log_odds.shape, allow_missing=False)
        return self._parameters().log_prob(log_odds, labels)

    @answer_call
    def decode(self, X: Any, known: ArrayLike | None = None, top_k: int = 1) -> Decoding:
        """Return the most probable labellings with their log-probabilities and certificates.

        Args:
            X: scores, see :meth:`fit`.
            known: (rows, labels), given labels in the values of ``fit``, NaN elsewhere.
            top_k: number of labellings, best first.

        Returns:
            Labels in {0, 1}; see :class:`~lmbm_torch.inference.results.Decoding`.
        """
        check_count("top_k", top_k)
        log_odds = self._fitted_log_odds(X)
        given = None if known is None else self._coded("known", known, log_odds.shape, allow_missing=True)
        return joined([*choosing.decoded(self._parameters(), log_odds, given, top_k)])

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def _log_odds(self, X: Any, *, is_training: bool = False) -> np.ndarray:
        return log_odds(score_matrix(X), self.scores, self.clip, is_training=is_training)

    def _fitted_log_odds(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        check_columns(X, self.label_names_)
        found = self._log_odds(X)
        check_shape("scores", found, len(found), self.n_features_in_)
        return found

    def _labels(self, y: Any, names: list[str] | None) -> np.ndarray:
        """Labels (rows, labels) in {0, 1}; values and names go to the attributes."""
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None")
        labels = self._encode(y)
        if self.label_names_ is None and len(self.classes_) > 2:
            raise ValueError(
                "Only binary classification is supported. y: expected labels (rows, labels) or two classes, "
                f"got {len(self.classes_)} classes; one column for each class makes labels of them"
            )
        if len(labels) < 2:
            raise ValueError(f"y: expected 2 rows or more, got n_samples = {len(labels)}")
        missing = int(np.isnan(labels).any(1).sum())
        if missing:
            raise ValueError(f"y: expected labels that are all known, got {missing} rows with NaN")
        check_labels("y", labels)
        if names is not None and self.label_names_ is not None:
            if hasattr(y, "columns"):
                check_columns(y, names)
            self.label_names_ = tuple(names)
        return labels

    def _coded(self, name: str, labels: Any, shape: tuple[int, ...], *, allow_missing: bool) -> np.ndarray:
        """Labels in the values of ``fit`` as {0, 1, NaN}."""
        values = np.asarray(labels)
        zeros, ones = np.broadcast_to(self.classes_, (shape[1], 2)).T
        if values.dtype.kind == "O" or (np.asarray(self.classes_) != (0, 1)).any():
            missing = values != values
            coded = np.where(values == ones, 1.0, np.where(values == zeros, 0.0, np.inf))
            values = np.where(missing, np.nan, coded)
        found = label_matrix(name, values, allow_missing=allow_missing)
        check_shape(name, found, *shape)
        return found

    def _values(self, labels: np.ndarray) -> np.ndarray:
        # Two classes are a single label.
        return super()._values(labels) if self.binarizer_ is None else self.classes_[labels[:, 0]]

    def _parameters(self) -> Parameters:
        return Parameters(self.slope_, self.offset_, self.count_weight_, self.orderings_, self.coef_)

    def _folds(self, labels: np.ndarray, groups: ArrayLike | None, seed: int) -> choosing.Folds:
        count = 5 if self.cv is None else self.cv
        together = None if groups is None else np.asarray(groups)
        if not isinstance(count, int | np.integer):
            splitter: Any = check_cv(count)
            return [*splitter.split(labels, labels, together)]
        whole = len(labels) if together is None else len(np.unique(together))
        divisions = min(choosing.DIVISIONS, -(-choosing.HELD_OUT // len(labels)))
        return [
            fold
            for division in range(divisions)
            for fold in IterativeStratifiedKFold(
                max(2, min(int(count), whole)), random_state=seed % 2**31 + division
            ).split(labels, labels, together)
        ]
