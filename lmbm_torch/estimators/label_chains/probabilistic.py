"""Probabilistic classifier chains of scikit-learn classifiers, decoded jointly with a proof."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import check_cv
from sklearn.pipeline import Pipeline
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from lmbm_torch import constraints as rules_of
from lmbm_torch.checks import check_permutation
from lmbm_torch.data.features import numbered
from lmbm_torch.data.rows import checked_weights, num_instances, some_instances
from lmbm_torch.energies import SequentialEnergy
from lmbm_torch.estimators.common.calls import answer_call, fit_call
from lmbm_torch.estimators.common.settings import (
    CLASS_WEIGHT,
    COUNT,
    NOT_NEGATIVE,
    POSITIVE,
    RULES,
    Constraints,
    HasMethods,
    StrOptions,
    check_parameters,
    seeds_for,
)
from lmbm_torch.estimators.common.targets import check_given, label_weights, with_rows
from lmbm_torch.estimators.common.under_rules import Rules, decode_around, explained, rules_of_fit
from lmbm_torch.estimators.explain.contributions import given_names
from lmbm_torch.estimators.explain.explanations import Explanation
from lmbm_torch.estimators.explain.parts import ChainFields
from lmbm_torch.estimators.label_chains.links import (
    MISSING,
    ClassifierOfLabels,
    LabelColumns,
    Link,
    check_classifier,
)
from lmbm_torch.inference import decode_expected
from lmbm_torch.inference.common.limits import LIMITS
from lmbm_torch.inference.common.results import Decoding, StateMarginals
from lmbm_torch.inference.sampling import ancestral
from lmbm_torch.inference.search import beam_search, best_first, mixture
from lmbm_torch.protocol import Capabilities

# Samples that break rules are drawn again, at most this many times.
MAX_DRAWS = 1000
# Number of samples from which an expected metric is estimated, if label sets cannot be enumerated.
NUM_SAMPLES = 1000


@dataclass(frozen=True, eq=False)
class Chain:
    """A fitted classifier chain.

    Args:
        ordering: the index of the label at each position.
        num_states: number of classes of each label.
        links: the link of the label at each position.
    """

    ordering: tuple[int, ...]
    num_states: tuple[int, ...]
    links: tuple[Link, ...]

    @classmethod
    def fit(
        cls,
        estimator: Any,
        X: Any,
        codes: np.ndarray,
        ordering: np.ndarray,
        num_states: tuple[int, ...],
        weights: np.ndarray | None,
        cv: Any,
    ) -> Chain:
        """Train the links in order.

        The link of a label predicts the missing values, before later links learn from the label.

        Args:
            estimator: the unfitted classifier of every link.
            codes: (instances, labels), class codes of the labels, ``MISSING`` if unknown.
            weights: (instances, labels), weights of the labels in training.
            cv: folds; links then learn from predictions of earlier labels for held-out instances. None to
                learn from the true earlier labels.
        """
        links: list[Link] = []
        seen = codes[:, ordering]
        states = tuple(num_states[label] for label in ordering)
        for position, label in enumerate(ordering):
            own = codes[:, label]
            weight = None if weights is None else weights[:, label]
            settings = (states[position], states[:position])
            earlier = seen[:, :position].copy()
            links.append(Link.fit(estimator, X, own, earlier, *settings, weight))
            if position + 1 == len(ordering):
                break
            missing = np.flatnonzero(own == MISSING)
            if cv is not None:
                known = np.flatnonzero(own != MISSING)
                folds: Any = check_cv(cv, own[known], classifier=True)
                for train, held_out in folds.split(known, own[known]):
                    train, held_out = known[train], known[held_out]
                    some = some_instances(X, train)
                    held_weight = None if weight is None else weight[train]
                    fold = Link.fit(
                        clone(estimator), some, own[train], earlier[train], *settings, held_weight
                    )
                    held = some_instances(X, held_out)
                    seen[held_out, position] = fold.most_probable(held, earlier[held_out])
            if len(missing):
                found = links[-1].most_probable(some_instances(X, missing), earlier[missing])
                seen[missing, position] = found
        return cls(tuple(int(label) for label in ordering), num_states, tuple(links))

    def energy(self, X: Any, instances: int) -> SequentialEnergy:
        """Return an energy that defines the distribution of label vectors for each instance."""
        inputs: dict[int, Any] = {}

        def conditional(position: int, rows: Tensor, earlier: Tensor) -> Tensor:
            link = self.links[position]
            if position not in inputs:
                inputs[position] = link.inputs(X)
            return torch.from_numpy(link.log_proba(inputs[position], rows.numpy(), earlier.numpy()))

        return SequentialEnergy(instances, self.num_states, self.ordering, conditional)


def draws_of_mixture(
    energies: Sequence[SequentialEnergy],
    num_samples: int,
    generator: torch.Generator,
    rules: rules_of.Constraints | None = None,
) -> Tensor:
    """Draw label codes from an equally weighted mixture of chains, (num_samples, instances, labels).

    Args:
        rules: samples that break rules are drawn again.

    Raises:
        ValueError: after a thousand repeated draws some sample still breaks rules.
    """
    drawn = _drawn(energies, num_samples, generator)
    if rules is None:
        return drawn
    for _ in range(MAX_DRAWS):
        flat = drawn.flatten(0, 1).numpy()
        broken = torch.from_numpy(rules.violated(flat).any(1)).unflatten(0, drawn.shape[:2])
        rows = broken.any(0).nonzero()[:, 0]
        if not len(rows):
            return drawn
        again = _drawn([energy.select(rows) for energy in energies], num_samples, generator)
        drawn[:, rows] = torch.where(broken[:, rows, None], again, drawn[:, rows])
    raise ValueError(f"constraints: expected samples that obey the rules, got none in {MAX_DRAWS} draws")


def _drawn(energies: Sequence[SequentialEnergy], num_samples: int, generator: torch.Generator) -> Tensor:
    which = torch.randint(len(energies), (num_samples,), generator=generator, device="cpu")
    drawn = torch.empty(
        num_samples, energies[0].batch_size, energies[0].num_labels, dtype=torch.int64, device="cpu"
    )
    for member, energy in enumerate(energies):
        if count := int((which == member).sum()):
            drawn[which == member] = ancestral.sample(energy, count, generator=generator)
    return drawn


class ProbabilisticClassifierChain(ClassifierOfLabels):
    """A chain of classifiers with probabilities, decoded jointly (Dembczyński et al. 2010).

    Each label has a classifier, whose inputs are the instance and the earlier labels, fitted as in
    scikit-learn's ``ClassifierChain``. The prediction is the best label set under the joint distribution P(y
    | x) = Π_t P(y_t | x, y_<t), found and proven by search, where ``ClassifierChain`` decides label after
    label. Labels may have any number of classes.

    Args:
        estimator: a classifier with ``predict_proba`` from scikit-learn or a compatible library. In a
            pipeline only the last step gets the earlier labels, next to the features that the other steps
            make; instances may have any form, such as texts.
        order: the order of labels in the first chain: ``"index"``, ``"random"``, or a permutation whose entry
            t is the label at position t.
        num_members: number of chains in an equal mixture; chains after the first have random orders.
        search: ``"best_first"``; ``"depth_first"``, which needs less memory; or ``"beam"``, usually without a
            proof. Several chains are always searched best first.
        beam_width: number of prefixes that the beam keeps; 1 decides like ``ClassifierChain``.
        tolerance: ε; the predicted label set's probability is at least e^−ε times the largest one.
        node_limit: number of prefixes at which a search ends without a proof; None for no limit. ``predict``
            warns of searches without a proof.
        decoder: the metric whose expected value :meth:`predict` maximises: ``"exact_match"`` (by the most
            probable label set), ``"hamming"``, ``"f1"`` or ``"jaccard"`` (for labels in {0, 1}).
        precision: largest error, because enumeration leaves out improbable label sets, of the expected
            ``"hamming"``, ``"f1"`` or ``"jaccard"``, and of probabilities in :meth:`predict_proba`.
        max_labellings: largest number of label sets to enumerate for each member and instance.
        cv: folds (a number or a splitter); each link then learns from predictions of earlier labels for
            held-out instances. None to learn from the true labels.
        class_weight: ``"balanced"``, a dictionary of weights by class or None, for all labels; or a list with
            such a setting for each label.
        random_state: seed for random orders, for samples, and for links without a seed.
        constraints: rules that all predictions and probabilities obey, as text or objects
            (:mod:`lmbm_torch.constraints`), if all labels have two classes; a label is true if it has the
            second class. Training ignores rules.

    Attributes:
        classes_: the classes of each label, including declared categories of a data frame; 0 and 1 for binary
            labels, even if one of the values does not occur.
        label_names_: column names of a data frame, or label_0, label_1, …
        ordering_: (labels,), the order of labels in the first chain.
        members_: the fitted chains.
        n_features_in_: number of features; absent if X has no columns.

    Examples:
        >>> from lmbm_torch.estimators import ProbabilisticClassifierChain
        >>> from sklearn.linear_model import LogisticRegression
        >>> X, y = [[0.0], [1.0], [2.0], [3.0]], [[0, 0], [0, 1], [1, 1], [1, 1]]
        >>> ProbabilisticClassifierChain(LogisticRegression()).fit(X, y).predict([[2.5]])
        array([[1, 1]])
    """

    _accepted: ClassVar[Constraints] = {
        "estimator": [HasMethods(["fit"])],
        "order": [StrOptions({"index", "random"}), "array-like"],
        "num_members": [COUNT],
        "search": [StrOptions({"best_first", "depth_first", "beam"})],
        "beam_width": [COUNT],
        "tolerance": [NOT_NEGATIVE],
        "node_limit": [COUNT, None],
        "decoder": [StrOptions({"exact_match", "hamming", "f1", "jaccard"})],
        "precision": [POSITIVE],
        "max_labellings": [COUNT],
        "cv": ["cv_object"],
        "class_weight": CLASS_WEIGHT,
        "random_state": ["random_state"],
        "constraints": RULES,
    }

    def __init__(
        self,
        estimator,
        *,
        order="index",
        num_members=1,
        search="best_first",
        beam_width=10,
        tolerance=0.0,
        node_limit: int | None = 10_000,
        decoder="exact_match",
        precision=0.01,
        max_labellings=10_000,
        cv=None,
        class_weight=None,
        random_state=None,
        constraints=None,
    ):
        self.estimator = estimator
        self.order = order
        self.num_members = num_members
        self.search = search
        self.beam_width = beam_width
        self.tolerance = tolerance
        self.node_limit = node_limit
        self.decoder = decoder
        self.precision = precision
        self.max_labellings = max_labellings
        self.cv = cv
        self.class_weight = class_weight
        self.random_state = random_state
        self.constraints = constraints

    @fit_call
    def fit(self, X, y, sample_weight=None):
        """Train the chains on instances and labels.

        Args:
            X: features, dense, CSR or a data frame; for a pipeline any form that the first step takes.
            y: labels (instances, labels), classes of any kind; NaN or None for missing labels. A link learns
                from instances where the label is known, and predicts missing labels before later links learn.
            sample_weight: (instances,), for estimators that take sample weights.

        Raises:
            TypeError: the estimator is not a classifier, or has no ``predict_proba``.
            ValueError: a parameter or input is invalid.
        """
        check_parameters(self)
        X = self._validated(X, reset=True)
        check_given(self, y)
        columns, codes = LabelColumns.of(y)
        if num_instances(X) != len(codes):
            raise ValueError(f"y: expected {num_instances(X)} rows like X, got {len(codes)} rows")
        if sample_weight is not None:
            sample_weight = checked_weights(sample_weight, len(codes))
        weights = label_weights(self.class_weight, columns.decode(codes), codes == MISSING, sample_weight)
        check_classifier(self.estimator, is_weighted=weights is not None)
        random = check_random_state(self.random_state)
        self.columns_, self.classes_ = columns, list(columns.classes)
        self.label_names_ = columns.names
        self._rules()
        self.members_ = []
        for member in range(self.num_members):
            order = self._ordering(len(columns.names), random, is_first=member == 0)
            estimator: Any = clone(self.estimator)
            estimator.set_params(**seeds_for(estimator, None if self.random_state is None else random))
            self.members_.append(Chain.fit(estimator, X, codes, order, columns.num_states, weights, self.cv))
        self.ordering_ = np.array(self.members_[0].ordering)
        return self

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            objective=self.decoder,
            minimises=False,
            predicts_by_decode=self.decoder == "exact_match",
            has_probabilities=True,
            limits={"node_limit": self.node_limit},
        )

    @answer_call
    def energies(self, X) -> list[SequentialEnergy]:
        """Return for each chain an energy that defines the distribution of label vectors."""
        check_is_fitted(self)
        X = self._validated(X, reset=False)
        return [member.energy(X, num_instances(X)) for member in self.members_]

    @answer_call
    def decode(self, X, known=None, top_k=1, constraints: Rules | None = None) -> Decoding:
        """Return the ``top_k`` most probable label sets of each instance, and whether proven best.

        Args:
            X: see :meth:`fit`.
            known: (instances, labels), known labels, NaN or None for unknown labels.
            top_k: number of label sets, best first; 1 with ``search="beam"``.
            constraints: further rules, only for this call, if all labels have two classes.

        Returns:
            A decoding, whose labels are indices into ``classes_``. The objective is the log-probability of
            the label set, including known labels.

        Raises:
            ValueError: there are rules, but a label has three or more classes; or ``top_k > 1`` with a beam.
        """
        check_parameters(self)
        if (rules := self._rules(constraints)) is not None:
            codes = None if known is None else self._codes(known, num_instances(X))
            return decode_around(self.with_rules(None), X, rules, codes, top_k, values=self.label_values)
        energies = self.energies(X)
        given = self._known(known, energies[0])
        if len(energies) > 1:
            most = max(top_k, LIMITS.candidates)
            return mixture.decode(
                energies, known=given, top_k=top_k, max_candidates=most, node_limit=self.node_limit
            )
        (energy,) = energies
        if self.search == "beam":
            if top_k > 1:
                raise ValueError(f"top_k: expected 1 with search='beam', got {top_k}")
            return beam_search.decode(energy, self.beam_width, known=given)
        is_depth_first = self.search == "depth_first"
        search = best_first.decode_depth_first if is_depth_first else best_first.decode
        return search(energy, known=given, top_k=top_k, node_limit=self.node_limit, tolerance=self.tolerance)

    @answer_call
    def predict_decoding(self, X, known=None) -> Decoding:
        """Return the labels of :meth:`predict` as indices into ``classes_``, and whether proven best."""
        if self.decoder == "exact_match":
            return self.decode(X, known)
        check_parameters(self)
        energies, rules = self.energies(X), self._rules()
        return decode_expected(
            energies,
            self.decoder,
            known=self._known(known, energies[0]),
            constraints=rules,
            tolerance=self.precision,
            max_labellings=self.max_labellings,
            num_samples=NUM_SAMPLES,
            generator=self._generator() if rules is None else None,
        )

    @answer_call
    def marginals(self, X, known=None) -> StateMarginals:
        """Return P(y_i = class | x) for each label, with error bounds.

        With ``constraints``, return P(y_i = class | x, all rules hold), computed from enumerated label sets.
        If no enumerated label set obeys the rules, all values are 0 with an error bound of 1.
        """
        energies, rules = self.energies(X), self._rules()
        given = self._known(known, energies[0])
        return mixture.marginals(energies, known=given, constraints=rules, **self._limits)

    @answer_call
    def predict_proba(self, X):
        """Return the probability of each label's second class, (instances, labels).

        If a label has more than two classes, return for each label P(y_i = class | x), (instances, classes).
        """
        states = self.marginals(X).states.numpy()
        if self.columns_.are_binary:
            return states[:, :, 1]
        return [states[:, label, : len(classes)] for label, classes in enumerate(self.classes_)]

    @answer_call
    def predict(self, X, known=None):
        """Predict the class of each label, (instances, labels).

        A ConvergenceWarning tells if a search was ended by a limit; see :meth:`predict_decoding`.

        Args:
            X: see :meth:`fit`.
            known: (instances, labels), known labels, NaN or None for unknown labels.
        """
        decoding = self.predict_decoding(X, known)
        if ended := int((~decoding.status.converged).sum()):
            warnings.warn(
                f"{ended} of {len(decoding.labels)} searches were ended by their limits "
                f"(node_limit={self.node_limit}); their labels are the best found, not proven optimal",
                ConvergenceWarning,
                stacklevel=2,
            )
        return self.columns_.decode(decoding.labels.numpy())

    @answer_call
    def log_prob(self, X, Y):
        """Return log P(Y | x) of whole label vectors, (instances,).

        With ``constraints``, return log P(Y | x, all rules hold), −∞ if Y breaks a rule. The value may be too
        small by −log(1 − ``precision``), or by more if ``max_labellings`` ends the enumeration.

        Args:
            X: see :meth:`fit`.
            Y: (instances, labels), label vectors in the values of ``fit``.
        """
        energies, rules = self.energies(X), self._rules()
        codes = self.columns_.encode("Y", Y, energies[0].batch_size)
        if (codes == MISSING).any():
            raise ValueError(
                f"Y: expected whole label vectors, got {(codes == MISSING).sum()} missing labels"
            )
        found = mixture.log_prob(energies, torch.from_numpy(codes)).numpy()
        if rules is None:
            return found
        of_allowed = mixture.labellings(energies, constraints=rules, **self._limits).log_known.numpy()
        return np.where(rules.violated(codes).any(1), -np.inf, found - of_allowed)

    def sample(self, X, num_samples=1):
        """Draw label vectors from P(y | x), (num_samples, instances, labels).

        Samples that break ``constraints`` are drawn again.

        Raises:
            ValueError: after a thousand repeated draws some sample still breaks rules.
        """
        energies, rules, generator = self.energies(X), self._rules(), self._generator()
        drawn = draws_of_mixture(energies, num_samples, generator, rules)
        return self.columns_.decode(drawn.numpy())

    @answer_call
    def explain(self, X: Any, *, reference: ArrayLike | None = None, num_features: int = 10) -> Explanation:
        """Explain the labels of one instance, each label given the earlier labels of the chain.

        Args:
            X: one instance (1, features), or one instance in the form that a pipeline takes.
            reference: (features,), values of features that are left out, and the baseline for contributions
                to linear classifiers; by default 0.
            num_features: number of features to set to the reference, one at a time, to see which labels
                change: the features that change a probability most; 0 for a pipeline.

        Returns:
            An :class:`~lmbm_torch.estimators.explain.explanations.Explanation`. Contributions of the inputs
            (in a pipeline, of the features made by the steps) sum to half the log-odds for linear classifiers
            and boosted trees, and to the probability for forests. Contributions for trees are TreeSHAP values
            relative to the training mean. For further classifiers only the probability is given. Several
            chains are averaged, see :class:`~lmbm_torch.estimators.explain.parts.ChainFields`.

        Raises:
            ModuleNotFoundError: the classifiers have trees, and ``shap`` is not installed.
            ValueError: X has several instances, a label has more than two classes, or the reference has a
                wrong shape.
        """
        check_is_fitted(self)
        X = self._validated(X, reset=False)
        fields = self._fields(X, reference)
        return explained(self, fields, X, num_features)

    def _fields(self, X: Any, reference: ArrayLike | None = None) -> ChainFields:
        """Return the fields from which :meth:`explain` explains a validated instance.

        Raises:
            ValueError: see :meth:`explain`.
        """
        if not self.columns_.are_binary:
            raise ValueError("explain: expected labels of two values each, got a label of more values")
        features = None
        if not isinstance(self.estimator, Pipeline):
            features = given_names(self) or numbered("feature", X.shape[1])
        return ChainFields(self.members_, self.label_names_, features, reference)

    def _ordering(self, labels: int, random: np.random.RandomState, *, is_first: bool) -> np.ndarray:
        if not is_first or (isinstance(self.order, str) and self.order == "random"):
            return random.permutation(labels)
        if isinstance(self.order, str):
            return np.arange(labels)
        check_permutation("order", self.order, labels)
        return np.asarray(self.order)

    def _validated(self, X: Any, *, reset: bool) -> Any:
        """Validate instances; data frames and inputs of pipelines are returned unchanged."""
        X = with_rows(X)
        if isinstance(self.estimator, Pipeline) or hasattr(X, "columns"):
            validate_data(self, X, reset=reset, skip_check_array=True)
            return X
        tags = self.__sklearn_tags__().input_tags
        return validate_data(
            self,
            X,
            reset=reset,
            accept_sparse="csr",
            ensure_all_finite="allow-nan" if tags.allow_nan else True,
        )

    def _known(self, known: Any, energy: SequentialEnergy) -> torch.Tensor | None:
        if known is None:
            return None
        return torch.from_numpy(self._codes(known, energy.batch_size))

    def _codes(self, known: Any, instances: int) -> np.ndarray:
        """Convert known labels to indices into ``classes_``, NaN for unknown labels."""
        codes = self.columns_.encode("known", known, instances)
        return np.where(codes == MISSING, np.nan, codes)

    def label_values(self, labels: ArrayLike) -> np.ndarray:
        """Convert indices into ``classes_`` (…, labels) to the values of ``fit``; NaN becomes None."""
        return self.columns_.decode(np.asarray(labels))

    @property
    def rules(self) -> rules_of.Constraints | None:
        """Return the rules that all predictions obey; None without rules."""
        return self._rules()

    def with_rules(self, rules: rules_of.Constraints | None) -> Self:
        """Return a copy whose only rules are ``rules``; for None, a copy without rules."""
        other = copy(self)
        other.constraints = rules
        return other

    def binding_rules(self, X: Any) -> list[list[str]]:
        """Return for each instance the rules, as text, that a prediction without rules would break."""
        labels = self.with_rules(None).predict_decoding(X).labels.cpu().numpy()
        rules = self.rules
        return [[] for _ in labels] if rules is None else rules.broken(labels)

    @property
    def _given_rules(self) -> tuple[Rules | None, ...]:
        return (self.constraints,)

    def _rules(self, more: Rules | None = None) -> rules_of.Constraints | None:
        if self.constraints is None and more is None:
            return None
        rules = rules_of_fit(self.label_names_, self.constraints, more)
        if rules is not None and not self.columns_.are_binary:
            raise ValueError("constraints: expected None, because some label has more than two values")
        return rules

    @property
    def _limits(self) -> dict[str, Any]:
        return {"mass_left": self.precision, "max_labellings": self.max_labellings}

    def _generator(self) -> torch.Generator:
        seed = int(check_random_state(self.random_state).randint(2**31))
        return torch.Generator().manual_seed(seed)
