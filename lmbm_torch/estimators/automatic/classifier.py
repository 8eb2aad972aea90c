"""The automatic choice of a multi-label classifier by cross-validation, within a time budget."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from numbers import Integral
from typing import Any, ClassVar, Self, cast

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils import check_random_state, gen_batches
from sklearn.utils.validation import check_is_fitted

from lmbm_torch import constraints as rules_of
from lmbm_torch.data.features import numbered
from lmbm_torch.data.rows import num_instances
from lmbm_torch.estimators.automatic.beliefs import beliefs, marginals
from lmbm_torch.estimators.automatic.blend import choose, chosen, pooled, worth
from lmbm_torch.estimators.automatic.candidates import Candidate, answers_of, candidates, fitted
from lmbm_torch.estimators.automatic.rules import Rule, RuledClassifier, allowed_answer
from lmbm_torch.estimators.automatic.search import (
    FINALISTS,
    SEARCH_SHARE,
    Decoder,
    Search,
    Table,
    Trial,
    folds_of,
)
from lmbm_torch.estimators.common.base import Rows, StructuredClassifier
from lmbm_torch.estimators.common.calls import answer_call, bar, fit_call
from lmbm_torch.estimators.common.measures import MEASURES
from lmbm_torch.estimators.common.settings import POSITIVE, SHARED, Constraints, StrOptions
from lmbm_torch.estimators.common.spreading import spread
from lmbm_torch.estimators.common.under_rules import Rules
from lmbm_torch.estimators.explain.contributions import (
    AnswerFields,
    Contributions,
    Fields,
    are_taken_apart,
    fields_of,
)
from lmbm_torch.estimators.explain.explanations import Answer, Explanation, explanation, without_names
from lmbm_torch.estimators.explain.parts import ChainFields
from lmbm_torch.estimators.label_chains.probabilistic import ProbabilisticClassifierChain
from lmbm_torch.solvers.networks.problems import Features

Folds = list[tuple[np.ndarray, np.ndarray]]
# The final training may exceed the time budget by this share of the budget.
OVERTIME = 0.2
# Number of instances whose probabilities are computed at once; limits memory.
BATCH = 10_000


class MemberFields(AnswerFields):
    """The fields that explain a fitted mixture: the heaviest member's if additive, otherwise probabilities.

    Args:
        model: fitted mixture with ``members_`` (pipelines of scalings and a classifier) and ``weights_``.
        X, reference: see :class:`AnswerFields`.
    """

    def __init__(self, model: Any, X: Any, reference: ArrayLike | None) -> None:
        super().__init__(model, self._probabilities_or_labels, X, reference)
        self.heaviest = model.members_[int(model.weights_.argmax())]

    def contributions(self, X: Any, labels: np.ndarray) -> Contributions:
        fields = self._apart(X)
        if fields is None:
            return super().contributions(X, labels)
        count, kind = len(self.model.members_), type(self.heaviest[-1]).__name__
        whose = kind if count == 1 else f"{kind}, the heaviest of {count}"
        parts = replace(fields.contributions(self._scaled(X), labels), whose=whose)
        # Name the sources after the features, unless the sources are training rows, as for kernels.
        are_features = list(parts.sources) == list(numbered("feature", len(self.features)))
        return replace(parts, sources=self.features) if are_features else parts

    def probabilities(self, X: Any) -> np.ndarray:
        found = [beliefs(member, X) for member in self.model.members_]
        known = [each for each in found if each is not None]
        if len(known) < len(found):
            return np.full((num_instances(X), len(self.names)), np.nan)
        return marginals(pooled(self.model.weights_, known))

    def _probabilities_or_labels(self, rows: np.ndarray) -> np.ndarray:
        found = self.probabilities(rows)
        return self.model._labels(rows, None) if np.isnan(found).any() else found

    def _apart(self, X: Any) -> Fields | None:
        """Return the fields of the heaviest member; None unless fields are sums over features."""
        classifier: Any = self.heaviest[-1]
        if isinstance(classifier, ProbabilisticClassifierChain):
            return ChainFields(classifier.members_, self.names, self.features, None)
        return fields_of(classifier, None) if are_taken_apart(classifier, self._scaled(X)) else None

    def _scaled(self, X: Any) -> Any:
        return self.heaviest[:-1].transform(X)


def _held(known: np.ndarray) -> tuple[rules_of.Rule, ...]:
    """Return for each known label a rule that fixes the label at the known value; names are indices."""
    return tuple(
        rules_of.Rule({label: -1.0}, -1.0, f"{label}")
        if known[label]
        else rules_of.Rule({label: 1.0}, 0.0, f"not {label}")
        for label in np.flatnonzero(~np.isnan(known)).tolist()
    )


class AutoLabelClassifier(StructuredClassifier):
    """A multi-label classifier whose model, settings and decoder are chosen within a time budget.

    The families of candidates are logistic regressions of single labels, belief networks (linear and with
    kernels), ensembles of belief networks, Boltzmann machines, chains of extra trees, of boosting and of
    logistic regressions, forests, label boosting (with XGBoost), SVMs and forests of whole label sets, each
    with several penalties and feature scalings, and the classifiers in ``candidates``. Successive halving
    compares fewer and fewer candidates on more and more instances, finally on all cross-validation folds, and
    starts again with untried candidates while time is left. If time does not allow two candidates in the next
    round, the best of each family are compared in the current round. With many labels, small fits to few
    labels show whether there is time for a family. For F1, labels are chosen from probabilities by largest
    expected F1 or by thresholds. The best candidates are combined into a mixture if the mixture is better on
    the folds. Workers of joblib's active backend fit candidates in parallel, each with the whole budget.

    Belief networks, Boltzmann machines, trees of this library and chains train with missing labels (NaN).
    For scikit-learn's forests and classifiers of label sets, missing labels are first predicted by a belief
    network, within each training part. Only known labels enter the scores; an instance is an exact match if
    all known labels are right, so scores are higher on less complete tables. Instances without a known label
    are ignored.

    Args:
        metric: metric to maximise: ``"exact_match"``, ``"hamming"`` (the share of right labels),
            ``"sample_f1"``, ``"macro_f1"``, ``"micro_f1"``, ``"jaccard"`` or ``"log_loss"`` (the negative log
            loss of the labels' probabilities, for :meth:`predict_proba`).
        time_budget: seconds for :meth:`fit`. Fitting exceeds the budget by at most a quarter, if a candidate
            can be trained on all instances in less time, and if imports and compilation leave half of the
            budget.
        families: names of the families to try, keys of
            :data:`~lmbm_torch.estimators.automatic.candidates.FAMILIES`; None for all.
        candidates: pairs of a name and an unfitted classifier of any library, each a further family; a
            :class:`JointClassifier` over the classifier is tried, too.
        cv: number of folds, stratified by label sets, or a splitter of scikit-learn.
        mixture: whether the best candidates may be combined into a mixture.
        clock: function that returns the time in seconds; use ``time.process_time`` on a shared processor.
            Each worker measures its own fits; among parallel fits the longest enters the budget.
        verbose: 1 for a progress bar of the time with the last trial (needs rich); 0 for none.
        random_state: seed of the folds and of all candidates.
        constraints: rules that all predicted labels obey, as text or objects (:mod:`lmbm_torch.constraints`);
            the choice of the classifier ignores rules.

    Attributes:
        members_: the classifiers of the mixture, fitted to all instances.
        weights_: the members' positive weights, whose sum is 1.
        rule_: decision rule that chooses labels from the members' mean probabilities, such as a threshold;
            None if the members' own predictions are used.
        table_: a dictionary for each tried candidate, the chosen ones first, then by rank, with ``family``,
            ``settings``, ``decoder``, ``score``, ``folds``, ``instances`` (for training in each fold),
            ``seconds`` (for the last fold) and ``weight`` in the mixture.
        best_score_: the metric's cross-validated value for the chosen mixture.
        label_names_, classes_: see :class:`StructuredClassifier`.

    Examples:
        >>> import numpy as np
        >>> from lmbm_torch.estimators import AutoLabelClassifier
        >>> X, y = [[i % 4.0] for i in range(40)], [[i % 4 > 1, i % 4 > 0] for i in range(40)]
        >>> model = AutoLabelClassifier(families=["network"], time_budget=30, cv=2, random_state=0)
        >>> model.fit(np.array(X), np.array(y, int)).predict([[2.0]])
        array([[1, 1]])
    """

    _accepted: ClassVar[Constraints] = {
        **SHARED,
        "metric": [StrOptions({*MEASURES})],
        "time_budget": [POSITIVE],
        "families": ["array-like", None],
        "candidates": ["array-like"],
        "cv": ["cv_object"],
        "mixture": ["boolean"],
        "clock": [callable],
        "verbose": ["verbose"],
    }

    holds_others = True

    def __init__(
        self,
        metric="exact_match",
        *,
        time_budget: float = 60,
        families=None,
        candidates=(),
        cv=5,
        mixture=True,
        clock=time.perf_counter,
        verbose=0,
        random_state=None,
        constraints=None,
    ):
        self.metric = metric
        self.time_budget = time_budget
        self.families = families
        self.candidates = candidates
        self.cv = cv
        self.mixture = mixture
        self.clock = clock
        self.verbose = verbose
        self.random_state = random_state
        self.constraints = constraints

    @fit_call
    def fit(self, X: Rows, y: Rows, groups: ArrayLike | None = None) -> Self:
        """Choose classifiers by cross-validation, and train the chosen ones on all instances.

        Args:
            X: (instances, features), dense or CSR; finite.
            y: labels (instances, labels) in {0, 1} and NaN (missing), or a class for each instance.
            groups: (instances,), group of each instance; a group is never split between folds.

        Raises:
            ValueError: a parameter or input is invalid (the message names it), or there are fewer instances
                with a known label than folds.
        """
        started = self.clock()
        X, labels, _ = self._validate_fit(X, y, None, allow_missing=True)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        features, labels, folds = self._folded(X, labels, groups, seed)
        tried = candidates(
            self.metric,
            labels.shape[1],
            is_sparse=not isinstance(features, np.ndarray),
            families=self.families,
            seed=seed,
            given=self.candidates,
        )
        deadline = started + SEARCH_SHARE * self.time_budget
        with bar(type(self).__name__, self.verbose) as tell:
            note = partial(self._note, tell, started)
            search = Search(features, labels, folds, self.metric, deadline, note, self.clock)
            trials = search.run(tried)
        left = started + self.time_budget - search.now()
        choice = choose(search, self._affordable(trials, left, len(labels)))
        self.best_score_, self.rule_ = choice.score, choice.rule
        self._keep(trials, {id(trial): weight for trial, weight in choice.members})
        members = [
            trial.candidate.unfitted(None if self.rule_ else cast("str | None", trial.decoder))
            for trial, _ in choice.members
        ]
        self.members_ = [*spread(_fitted, search.kept, members)]
        self.weights_ = np.array([weight for _, weight in choice.members])
        self._scores = [trial.score for trial, _ in choice.members]
        self._num_labels = labels.shape[1]
        return self

    @answer_call
    def predict(self, X: Rows, constraints: Rules | None = None) -> np.ndarray:
        """Predict labels (instances, labels), or classes (instances,) if ``fit`` was given classes.

        Args:
            X: (instances, features), dense or CSR.
            constraints: further rules, only for this call.

        Raises:
            ValueError: rules name unknown labels or contradict each other, or the model predicts classes.
        """
        labels = self._labels(self._validate_predict(X), self._rules(constraints))
        if self.binarizer_ is None:
            return self.label_values(labels)
        return np.asarray(self.binarizer_.inverse_transform(labels))

    @answer_call
    def predict_proba(self, X: Rows) -> np.ndarray:
        """Return P(y_i = 1 | x), (instances, labels), or P(class | x): the weighted mean over the members.

        For a member without probabilities the predicted labels 0 and 1 are used. Rules have no effect.
        """
        rows: Any = self._validate_predict(X)
        parts = [self._present(rows[batch]) for batch in gen_batches(rows.shape[0], BATCH)]
        found = np.concatenate(parts)
        if self.binarizer_ is None:
            return found
        if found.shape[1] == 1:
            return np.hstack([1 - found, found])
        return found / np.maximum(found.sum(1, keepdims=True), np.finfo(float).tiny)

    @answer_call
    def explain(self, X: Rows, *, reference: ArrayLike | None = None, num_features: int = 10) -> Explanation:
        """Return an explanation of the labels of one instance.

        Args:
            X: (1, features), dense or CSR.
            reference: (features,), the values that replace left-out features; by default the training means.
            num_features: number of the most important features, set to the reference one at a time, to see
                which labels change.

        Returns:
            An :class:`~lmbm_torch.estimators.explain.explanations.Explanation`. If the heaviest member is a
            belief network, a Boltzmann machine, or a chain of linear classifiers or trees, the explanation
            shows this member's fields as sums over scaled features; the mixture's answer may differ.
            Otherwise the explanation shows the probability of each label, if all members have probabilities.
            Changed labels are always changes of the mixture's answer.

        Raises:
            ModuleNotFoundError: the member is a chain of trees, and ``shap`` is not installed.
            ValueError: there are several instances, ``reference`` has not the shape (features,), or the model
                predicts classes.
        """
        check_is_fitted(self)
        X = self._validate_predict(X)
        model = without_names(self)
        fields = MemberFields(model, X, reference)
        rules = model._rules()
        broken = [] if rules is None else rules.broken(model._labels(X, None))[0]

        def decode(X: np.ndarray, known: np.ndarray | None) -> Answer | None:
            try:
                allowed = model._rules(() if known is None else _held(known[0]))
            except ValueError:
                return None
            return Answer.of(model._labels(X, allowed))

        found = explanation(fields, decode, X, num_features, tuple(dict.fromkeys(broken)))
        return found.in_values(self.classes_)

    def unfitted(self, row: int) -> Any:
        """Return an unfitted copy of the classifier in row ``row`` of ``table_``."""
        check_is_fitted(self)
        candidate, decoder = self._candidates[row]
        if isinstance(decoder, Rule):
            return RuledClassifier(candidate.unfitted(), decoder)
        return candidate.unfitted(decoder)

    def _present(self, X: Any) -> np.ndarray:
        """Return the weighted mean of the members' P(y_i = 1 | x), (instances, labels)."""
        found = np.zeros((X.shape[0], self._num_labels))
        for weight, member in zip(self.weights_, self.members_, strict=True):
            own = beliefs(member, X)
            found += weight * (answers_of(member, X) if own is None else marginals(own))
        return found.clip(0, 1)

    def _labels(self, X: Rows, rules: rules_of.Constraints | None) -> np.ndarray:
        answers, rows = [], cast(Any, X)
        if self.rule_ is not None:
            for batch in gen_batches(rows.shape[0], BATCH):
                found = [cast(np.ndarray, beliefs(member, rows[batch])) for member in self.members_]
                answers.append(_by_rule(self.rule_, pooled(self.weights_, found), rules))
            return np.concatenate(answers)
        answers = [allowed_answer(member, X, rules) for member in self.members_]
        if len(answers) == 1:
            return answers[0]
        return chosen(self.weights_, worth(self.metric, self.members_, answers, X, self._scores), answers)

    def _folded(
        self, X: Any, labels: np.ndarray, groups: ArrayLike | None, seed: int
    ) -> tuple[Features, np.ndarray, Folds]:
        """Return instances with a known label, their labels (integers if none is missing), and the folds."""
        known: Any = ~np.isnan(labels).all(1)
        if known.all():
            folds = folds_of(self.cv, X, labels, groups, seed)
        elif self.cv is None or isinstance(self.cv, Integral):
            together = None if groups is None else np.asarray(groups)[known]
            X, labels = X[known], labels[known]
            folds = folds_of(self.cv, X, labels, together, seed)
        else:
            # A user's splitter refers to all instances, so drop instances without labels after splitting.
            place = np.cumsum(known) - 1
            every = folds_of(self.cv, X, labels, groups, seed)
            folds = [(place[train[known[train]]], place[held[known[held]]]) for train, held in every]
            X, labels = X[known], labels[known]
        return X, labels if np.isnan(labels).any() else labels.astype(np.int64), folds

    def _affordable(self, trials: list[Trial], left: float, size: int) -> list[Trial]:
        """Return the best trials that can be trained on all instances in the seconds ``left``.

        If no training is short enough, return the trial with the shortest training.
        """
        times = [trial.expected_seconds(size) for trial in trials]
        # The best trial may exceed the budget by the overtime; other members of the mixture may not.
        most = left + OVERTIME * self.time_budget
        best = next((at for at, seconds in enumerate(times) if seconds <= most), int(np.argmin(times)))
        trials, left = trials[best:], left - times[best]
        found = trials[:1]
        for trial in trials[1:FINALISTS] if self.mixture else []:
            left -= trial.expected_seconds(size)
            if left < 0 or not trials[0].is_comparable(trial):
                break
            found.append(trial)
        return found

    def _keep(self, trials: list[Trial], weights: dict[int, float]) -> None:
        """Set ``table_``: members by decreasing weight first, then the other trials by rank in the search."""
        ranked = sorted(trials, key=lambda trial: -weights.get(id(trial), 0.0))
        self._candidates: list[tuple[Candidate, Decoder]] = [
            (trial.candidate, trial.decoder) for trial in ranked
        ]
        self.table_ = [{**_row(trial), "weight": float(weights.get(id(trial), 0.0))} for trial in ranked]

    def _note(self, tell: Callable[[float, str], None] | None, started: float, trial: Trial) -> None:
        if tell is not None:
            share = min((self.clock() - started) / self.time_budget, 1.0)
            tell(share, f"{trial.score:.4f} {trial.candidate.family}, {trial.candidate.settings}")


def _fitted(table: Table, classifier: Any) -> Any:
    return fitted(classifier, table.X, table.labels)


def _by_rule(rule: Rule, found: np.ndarray, rules: rules_of.Constraints | None) -> np.ndarray:
    answer = rule.answer(found)
    if rules is None:
        return answer
    broken = rules.violated(answer).any(1)
    if broken.any():
        answer[broken] = rule.allowed(found[broken], rules)
    return answer


def _row(trial: Trial) -> dict[str, Any]:
    return {
        "family": trial.candidate.family,
        "settings": trial.candidate.settings,
        "decoder": None if trial.decoder is None else str(trial.decoder),
        "score": trial.score,
        "folds": len(trial.models),
        "instances": trial.size,
        "seconds": trial.seconds,
    }
