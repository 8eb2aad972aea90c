"""The joint head: the distribution of whole labellings, learned from scores of single labels."""

from __future__ import annotations

import warnings
from copy import copy
from typing import Any, ClassVar, Self

import numpy as np
import torch
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
from lmbm_torch.estimators.common.targets import check_columns, label_codes, label_values
from lmbm_torch.estimators.common.under_rules import Rules, decode_around, explained
from lmbm_torch.estimators.explain.contributions import AnswerFields
from lmbm_torch.estimators.explain.explanations import Explanation
from lmbm_torch.estimators.joint import choosing, rules
from lmbm_torch.estimators.joint.bases import KINDS, log_odds, names_of, score_matrix
from lmbm_torch.estimators.joint.choosing import METRICS, STRUCTURES
from lmbm_torch.estimators.joint.likelihood import Parameters
from lmbm_torch.inference import decode_expected
from lmbm_torch.inference.common.results import Decoding, Status, joined
from lmbm_torch.inference.search import mixture
from lmbm_torch.protocol import Capabilities

# Metrics for which predictions maximise the metric's expected value; others use probabilities or thresholds.
EXPECTED = ("f1", "jaccard", "hamming")


class JointHead(StructuredClassifier):
    """A joint distribution of labels, given any model's scores for the single labels.

    Train the head with scores for rows that the model has not seen in training, as by ``cross_val_predict``:
    scores for training rows are overconfident, and a head trained on overconfident scores fails on new rows.
    :class:`~lmbm_torch.estimators.joint.classifier.JointClassifier` makes scores of held-out rows by itself.

    The head chooses among three structures, trained by penalised maximum likelihood with exact sums:

    * ``"independent"``: a slope and an offset for the log-odds of each label, shrunk to 1 and 0 (Platt 1999);
    * ``"cardinality"``: in addition a weight for each number of labels present in a row;
    * ``"network"``: an equally weighted mixture of belief networks. The log-odds of a label given earlier
      labels are a weighted sum of the log-odds by ``"cardinality"``, all scores, and the earlier labels.

    Cross-validation chooses the penalties and the structure by the log loss of whole label vectors. Then the
    structure is compared by ``metric`` with three simple rules: a common threshold for all labels, a
    threshold for each label, and only the most probable label. If a rule is better, :meth:`predict` follows
    the rule; all other methods use the distribution.

    Args:
        metric: the metric that decides about simple rules, and that predictions maximise: ``"exact_match"``,
            ``"f1"`` (mean over rows), ``"jaccard"``, ``"hamming"``, ``"macro_f1"`` (mean over labels) or
            ``"micro_f1"`` (over all entries). With ``"log_loss"`` the prediction is the most probable label
            vector, and simple rules are not tried.
        scores: kind of the scores: ``"probabilities"``, ``"logits"`` or ``"log_probabilities"``.
        structure: a structure, or ``"auto"`` to try all (networks only for at most 100 labels).
        cv: number of folds, or a splitter of scikit-learn. With fewer than 1,000 rows, cross-validation is
            repeated once with different folds.
        num_orders: number of networks in the mixture, each with a different order of the labels.
        clip: probabilities are clipped to [clip, 1 − clip], because forests may return exactly 0 and 1.
        random_state: seed for the folds, the orders and the samples.
        constraints: rules that all predictions and probabilities obey, as text or objects
            (:mod:`lmbm_torch.constraints`, with hierarchies); training ignores rules.

    Attributes:
        structure_: the chosen structure.
        rule_: the simple rule that :meth:`predict` follows; None if the distribution is better.
        cross_validated_: name of the structure or a rule → the metric's value on the held-out rows.
        log_loss_: structure → mean log loss of whole label vectors on the held-out rows, in nats.
        slope_, offset_: (labels,), slopes and offsets of the log-odds.
        count_weight_: (K + 1,), log-potentials of 0, 1, …, K present labels; the last is for K or more.
        orderings_: (orders, labels), orders of the labels in the networks.
        coef_: (orders, labels, 2 labels + 2), see
            :class:`~lmbm_torch.estimators.joint.likelihood.Parameters`.
        thresholds_: (labels,), thresholds for the log-odds if there is a rule; NaN if the rule is to predict
            only the most probable label. Without a rule, thresholds are used for ``"macro_f1"`` and
            ``"micro_f1"``, and are for probabilities.
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
        constraints=None,
    ):
        self.metric = metric
        self.scores = scores
        self.structure = structure
        self.cv = cv
        self.num_orders = num_orders
        self.clip = clip
        self.random_state = random_state
        self.constraints = constraints

    @fit_call
    def fit(
        self, X: Any, y: Rows, sample_weight: ArrayLike | None = None, groups: ArrayLike | None = None
    ) -> Self:
        """Fit the head to scores for rows that the scoring model has not seen in training.

        Args:
            X: scores (rows, labels): a matrix, a data frame with the names of the labels, or a list of arrays
                (rows, 2), one for each label.
            y: labels (rows, labels) of two values, such as 0 and 1, with NaN for missing labels. The
                likelihood sums over missing labels; only known labels enter metrics.
            sample_weight: (rows,), weights of the rows in the likelihood and the metric.
            groups: (rows,); all rows of a group are in the same fold.

        Raises:
            TypeError: scores or labels are not numbers.
            ValueError: scores are not of the kind given by ``scores``, shapes are wrong, or the columns of
                ``X`` and ``y`` have different names.
        """
        check_parameters(self)
        log_odds, labels = self._log_odds(X, is_training=True), self._labels(y, names_of(X))
        check_shape("scores", log_odds, *labels.shape)
        self._rules()
        weights = (
            np.ones(len(labels)) if sample_weight is None else checked_weights(sample_weight, len(labels))
        )
        self.n_features_in_ = log_odds.shape[1]
        # Rows in which all labels are missing get the weight 0.
        weights = weights * ~np.isnan(labels).all(1)
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
        elif self.metric in rules.OF_LABELS:
            own = choosing.marginals(found, log_odds)
            self.thresholds_ = rules.of_marginals(self.metric, own, labels, weights)
        self.seed_ = seed
        return self

    @property
    def capabilities(self) -> Capabilities:
        """Return what the head can do: decode by a search of its own, and give probabilities."""
        return Capabilities(
            objective="own",
            minimises=False,
            predicts_by_decode=False,
            has_probabilities=True,
            restricts_probabilities=False,
        )

    @answer_call
    def predict(self, X: Any, known: ArrayLike | None = None) -> np.ndarray:
        """Predict the labels with the largest expected ``metric``, (rows, labels), in the values of ``fit``.

        Rows with known labels, and rows whose labels break ``constraints``, are predicted again under both:
        for F1, Jaccard and Hamming without a simple rule by the largest expected metric, otherwise by the
        largest probability. A warning tells if a search ended at its limit, so labels are not proven best.

        Args:
            X: scores, see :meth:`fit`.
            known: (rows, labels), known labels in the values of ``fit``; NaN for labels to predict.
        """
        found = self.predict_decoding(X, known)
        is_open = ~found.status.converged.numpy()
        if is_open.any():
            warnings.warn(
                f"{is_open.sum()} of {len(is_open)} rows: the search ended at its limit; the labels are the "
                "best found, not proven optimal",
                ConvergenceWarning,
                stacklevel=level_of_caller(),
            )
        labels = found.labels.numpy()
        return self.label_values(labels) if self.binarizer_ is None else self.classes_[labels[:, 0]]

    def predict_decoding(self, X: Any, known: ArrayLike | None = None) -> Decoding:
        """Return the labels of :meth:`predict`, as indices into ``classes_``, with proofs of optimality.

        The result's objective is the log-probability of the labels.
        """
        log_odds, within = self._fitted_log_odds(X), self._rules()
        labels, is_proven = self._answers(log_odds)
        given = None if known is None else self._codes("known", known, log_odds)
        again = np.zeros(len(labels), np.bool_) if within is None else within.violated(labels).any(1)
        if given is not None:
            again |= ~np.isnan(given).all(1)
        if again.any():
            held = None if given is None else given[again]
            if self.rule_ is None and self.metric in EXPECTED:
                energies = self._parameters().energies(log_odds[again])
                fixed = None if held is None else torch.from_numpy(held)
                found = decode_expected(energies, self.metric, known=fixed, constraints=within)
            else:
                found = self.decode(self._scores(X)[again], None if held is None else self._spoken(held))
            labels[again] = found.labels.numpy()
            is_proven[again] = found.status.converged.numpy()
        objective = torch.from_numpy(self._parameters().log_prob(log_odds, labels.astype(np.float64)))
        status = Status(
            exact=torch.from_numpy(is_proven),
            converged=torch.from_numpy(is_proven),
            num_iters=torch.zeros(len(labels), dtype=torch.int64, device="cpu"),
            residual=torch.zeros(len(labels), dtype=torch.float64, device="cpu"),
        )
        return Decoding(torch.from_numpy(labels), objective, objective, status)

    @answer_call
    def predict_proba(self, X: Any) -> np.ndarray:
        """Return P(label = 1 | X, all ``constraints`` hold) under the joint distribution, (rows, labels).

        Probabilities are exact for ``"independent"`` and ``"cardinality"`` without rules. Otherwise they are
        computed from the most probable label vectors, up to a total probability of 0.99 or 10,000 vectors.
        """
        return choosing.marginals(self._parameters(), self._fitted_log_odds(X), constraints=self._rules())

    @answer_call
    def log_prob(self, X: Any, Y: ArrayLike) -> np.ndarray:
        """Return log P(Y | X) of whole label vectors, (rows,); without rules the values are exact.

        With ``constraints``, return log P(Y | X, all rules hold), which is −∞ if Y breaks a rule; the
        probability that all rules hold is a sum over likely label vectors, see :meth:`predict_proba`.

        Args:
            X: scores, see :meth:`fit`.
            Y: (rows, labels), label vectors in the values of ``fit``.
        """
        log_odds, rules, parameters = self._fitted_log_odds(X), self._rules(), self._parameters()
        labels = self._codes("Y", Y, log_odds)
        check_labels("Y", labels)
        found = parameters.log_prob(log_odds, labels)
        if rules is None:
            return found
        allowed = [
            mixture.labellings(parameters.energies(some), constraints=rules).log_known.numpy()
            for some in choosing.in_parts(log_odds, parameters)
        ]
        return np.where(rules.violated(labels).any(1), -np.inf, found - np.concatenate(allowed))

    @answer_call
    def decode(
        self, X: Any, known: ArrayLike | None = None, top_k: int = 1, constraints: Rules | None = None
    ) -> Decoding:
        """Return the most probable label vectors, their log-probabilities, and whether they are proven best.

        Args:
            X: scores, see :meth:`fit`.
            known: (rows, labels), known labels in the values of ``fit``; NaN for labels to decode.
            top_k: number of label vectors for each row, best first.
            constraints: further rules, only for this call, as text or objects.

        Returns:
            A :class:`~lmbm_torch.inference.common.results.Decoding`, whose labels are indices into
            ``classes_``, see :meth:`label_values`.

        Raises:
            ValueError: rules name unknown labels, or known labels contradict the rules.
        """
        check_count("top_k", top_k)
        log_odds, rules = self._fitted_log_odds(X), self._rules(constraints)
        given = None if known is None else self._codes("known", known, log_odds)
        if rules is not None:
            free, scores = self.with_rules(None), self._scores(X)
            return decode_around(free, scores, rules, given, top_k, values=self._spoken)
        return joined([*choosing.decoded(self._parameters(), log_odds, given, top_k)])

    def binding_rules(self, X: Any) -> list[list[str]]:
        """Return for each row the rules, as text, that the labels predicted without rules would break."""
        labels, rules = self._answers(self._fitted_log_odds(X))[0], self._rules()
        return [[] for _ in labels] if rules is None else rules.broken(labels)

    def explain(self, X: Any, *, num_features: int = 10) -> Explanation:
        """Explain the predicted labels of one row by the scores, and by predictions with a label held fixed.

        The features are the scores; a score is left out by setting it to the score of the probability ½.

        Args:
            X: scores (1, labels), see :meth:`fit`.
            num_features: number of scores to leave out, one at a time, to see which labels change.
        """
        check_is_fitted(self)
        named, scores = copy(self), self._scores(X)
        named.names_of_features_ = self.label_names_
        even = np.full(
            scores.shape[1], {"logits": 0.0, "log_probabilities": -np.log(2)}.get(self.scores, 0.5)
        )
        return explained(self, AnswerFields(named, self.predict_proba, scores, even), scores, num_features)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    @staticmethod
    def _scores(X: Any) -> np.ndarray:
        return score_matrix(X)

    def _log_odds(self, X: Any, *, is_training: bool = False) -> np.ndarray:
        return log_odds(score_matrix(X), self.scores, self.clip, is_training=is_training)

    def _fitted_log_odds(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        check_columns(X, self.label_names_)
        found = self._log_odds(X)
        check_shape("scores", found, len(found), self.n_features_in_)
        return found

    def _labels(self, y: Any, names: list[str] | None) -> np.ndarray:
        """Convert ``y`` to labels (rows, labels) in {0, 1, NaN}; set ``classes_`` and ``label_names_``."""
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None")
        labels = self._encode(y)
        if self.label_names_ is None and len(self.classes_) > 2:
            raise ValueError(
                "Only binary classification is supported. y: expected labels (rows, labels) or two classes, "
                f"got {len(self.classes_)} classes; give a label matrix with one column for each class"
            )
        if len(labels) < 2:
            raise ValueError(f"y: expected 2 rows or more, got n_samples = {len(labels)}")
        check_labels("y", labels, allow_missing=True)
        labels = self._with_known_values(labels)
        if names is not None and self.label_names_ is not None:
            if hasattr(y, "columns"):
                check_columns(y, names)
            self.label_names_ = tuple(names)
        return labels

    def _codes(self, name: str, labels: Any, log_odds: np.ndarray) -> np.ndarray:
        """Convert labels (rows, labels) in the values of ``fit`` to {0, 1, NaN}."""
        # After a fit to a vector of two classes, ``classes_`` is a vector: convert to (1 label, 2 values).
        classes = np.reshape(self.classes_, (-1, 2))
        found = label_codes(name, labels, classes, allow_missing=True)
        check_shape(name, found, *log_odds.shape)
        return found

    def _spoken(self, codes: np.ndarray) -> np.ndarray:
        """Convert labels (rows, labels) in {0, 1, NaN} to the values of ``fit``."""
        return label_values(codes, np.reshape(self.classes_, (-1, 2)))

    def _answers(self, log_odds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Predict labels without ``constraints``; also return whether each row's labels are proven best."""
        if self.rule_ is not None:
            return rules.predicted(self.thresholds_, log_odds), np.ones(len(log_odds), np.bool_)
        parameters = self._parameters()
        if self.metric in rules.OF_LABELS:
            found = choosing.marginals(parameters, log_odds) > self.thresholds_
            return found.astype(np.int64), np.ones(len(log_odds), np.bool_)
        return choosing.predicted(parameters, log_odds, self.metric, self.seed_, choosing.ANSWER_LIMITS)

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
