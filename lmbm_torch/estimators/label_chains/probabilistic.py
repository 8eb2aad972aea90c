"""Probabilistic classifier chains over anyone's classifiers, decoded jointly and with a proof."""

from __future__ import annotations

import warnings
from copy import copy
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.pipeline import Pipeline
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from lmbm_torch import constraints as rules_of
from lmbm_torch.checks import check_permutation
from lmbm_torch.data.features import numbered
from lmbm_torch.data.rows import checked_weights, num_instances
from lmbm_torch.energies import SequentialEnergy
from lmbm_torch.estimators.common.calls import all_or_nothing, of_label_columns, watched
from lmbm_torch.estimators.common.class_weights import label_weights
from lmbm_torch.estimators.common.seeding import seeds_for
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
)
from lmbm_torch.estimators.common.under_rules import Rules, decode_around, explained, rules_of_fit
from lmbm_torch.estimators.explain.chains import ChainFields
from lmbm_torch.estimators.explain.explanations import Explanation
from lmbm_torch.estimators.label_chains.columns import MISSING, LabelColumns
from lmbm_torch.estimators.label_chains.links import ClassifierOfLabels, check_classifier
from lmbm_torch.estimators.label_chains.members import Chain, draws_of_mixture
from lmbm_torch.inference.expected import bayes, bayes_under_rules
from lmbm_torch.inference.results import Decoding, StateMarginals
from lmbm_torch.inference.search import beam_search, best_first, mixture
from lmbm_torch.protocol import Capabilities
from lmbm_torch.solvers.networks.problems import canonical

NUM_SAMPLES = 1000


class ProbabilisticClassifierChain(ClassifierOfLabels):
    """A chain of anyone's classifiers, one a label, decoded jointly (Dembczyński et al. 2010).

    Each label has a classifier that sees the instance and the labels before it, as scikit-learn's
    ``ClassifierChain`` fits them; prediction is the labelling that is best under their joint distribution
    P(y | x) = Π_t P(y_t | x, y_<t), found by search and proven, where ``ClassifierChain`` takes its first
    guesses. Labels may have any number of classes, each label its own.

    Args:
        estimator: a classifier with ``predict_proba``, of any library that follows scikit-learn. Of a
            pipeline all steps but the last see the instances alone: whatever they take, such as texts, passes
            through; the last step sees the labels beside their outcome.
        order: ``"index"``, ``"random"``, or a permutation whose entry t is the label at position t; of the
            first member.
        num_members: chains, whose equal mixture is decoded; those after the first one have random orders.
        search: ``"best_first"``; ``"depth_first"``, in less memory; or ``"beam"``, without proof as a rule.
            An ensemble is searched best first.
        beam_width: prefixes that the beam keeps; with 1 the decoding is ``ClassifierChain``'s.
        tolerance: ε, an answer may be less probable than the best one by a factor e^−ε.
        node_limit: end an instance's search after so many prefixes; None for never. ``predict`` warns of
            such an end.
        decoder: what :meth:`predict` optimises: ``"exact_match"`` (the most probable labelling), or the
            expectation of ``"hamming"``, ``"f1"`` or ``"jaccard"`` (labels in {0, 1} alone).
        precision: δ, labellings are enumerated for the last three until no other answer can be better by more
            than this, and for :meth:`predict_proba` until those left out have no more probability.
        max_labellings: enumerated at most, of each member and instance; what they leave out is told.
        cv: folds (a number or a splitter), by which a link is trained on predictions, of instances that were
            held out, of the labels before it; None for the labels themselves.
        class_weight: ``"balanced"``, weights by class or None, for all labels; or a list of these.
        random_state: of random orders, of samples, and of the links, where these are not seeded themselves.
        constraints: rules that all answers and probabilities obey, as text or objects
            (:mod:`lmbm_torch.constraints`), over the columns of ``y``, all 0 or 1; training looks at none.

    Attributes:
        classes_: the classes of each label; 0 and 1 where a label has no others, even if one was not seen.
        label_names_: the columns of a data frame, else label_0, label_1, …
        ordering_: (labels,), of the first member.
        members_: the fitted chains.
        n_features_in_: where X has a number of features.
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

    @watched
    @all_or_nothing
    def fit(self, X, y, sample_weight=None):
        """Learn from instances, in any form that the estimator takes, and labels (instances, labels).

        Args:
            X: features, dense, CSR or a data frame; for a pipeline whatever its first step takes.
            y: classes of any kind, each label its own; NaN or None where missing: a link is trained on the
                instances whose label is known, and a missing label is imputed by its own link before later
                ones see it.
            sample_weight: (instances,), for estimators that take it.

        Raises:
            TypeError: an estimator that is no classifier, or has no ``predict_proba``.
            ValueError: a setting or an input that is not as described; the message names it.
        """
        check_parameters(self)
        X = self._validated(X, reset=True)
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None")
        columns, codes = LabelColumns.of(y)
        if num_instances(X) != len(codes):
            raise ValueError(f"y: expected {num_instances(X)} rows like X, got {len(codes)}")
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
        """See :class:`~lmbm_torch.protocol.Capabilities`."""
        return Capabilities(
            objective=self.decoder,
            minimises=False,
            predicts_by_decode=self.decoder == "exact_match",
            has_probabilities=True,
            limits={"node_limit": self.node_limit},
        )

    def energies(self, X) -> list[SequentialEnergy]:
        """The members' distributions over the label vectors of instances."""
        check_is_fitted(self)
        X = self._validated(X, reset=False)
        return [member.energy(X, num_instances(X)) for member in self.members_]

    @watched
    @of_label_columns
    def decode(self, X, known=None, top_k=1, constraints: Rules | None = None) -> Decoding:
        """The most probable labelling of each instance, or the ``top_k``, with certificate.

        Args:
            X: see :meth:`fit`.
            known: (instances, labels): outputs that are given already, NaN or None for the others.
            top_k: how many labellings, best first; of the beam one.
            constraints: further rules, for this call, as text or objects, where all labels are 0 or 1.

        Returns:
            Labels are indices into ``classes_``; the objective is their log-probability, together with what
            is known.

        Raises:
            ValueError: rules where labels have other values than 0 and 1; several labellings of the beam.
        """
        check_parameters(self)
        if (rules := self._rules(constraints)) is not None:
            return decode_around(self.with_rules(None), X, rules, known, top_k)
        energies = self.energies(X)
        given = self._known(known, energies[0])
        if len(energies) > 1:
            most = max(top_k, mixture.MAX_CANDIDATES)
            return mixture.decode(
                energies, known=given, top_k=top_k, max_candidates=most, node_limit=self.node_limit
            )
        (energy,) = energies
        if self.search == "beam":
            if top_k > 1:
                raise ValueError(f"top_k: expected 1 for the beam, got {top_k}")
            return beam_search.decode(energy, self.beam_width, known=given)
        is_depth_first = self.search == "depth_first"
        search = best_first.decode_depth_first if is_depth_first else best_first.decode
        return search(energy, known=given, top_k=top_k, node_limit=self.node_limit, tolerance=self.tolerance)

    @of_label_columns
    def predict_decoding(self, X, known=None) -> Decoding:
        """The labels of :meth:`predict`, as indices into ``classes_``; the objective is ``decoder``'s."""
        if self.decoder == "exact_match":
            return self.decode(X, known)
        check_parameters(self)
        energies, rules = self.energies(X), self._rules()
        if rules is not None:
            limits = {"mass_left": self.precision, "max_labellings": self.max_labellings}
            given = self._known(known, energies[0])
            return bayes_under_rules.decode(energies, self.decoder, rules, known=given, **limits)
        decode = {
            "hamming": bayes.decode_hamming,
            "f1": bayes.decode_f1,
            "jaccard": bayes.decode_jaccard,
        }[self.decoder]
        return decode(
            energies,
            known=self._known(known, energies[0]),
            tolerance=self.precision,
            max_labellings=self.max_labellings,
            num_samples=NUM_SAMPLES,
            generator=self._generator(),
        )

    @of_label_columns
    def marginals(self, X, known=None) -> StateMarginals:
        """P(y_i = class | x) of each label, and how far they may be from the truth.

        Under ``constraints`` they are those given that all rules are obeyed: of the likely labellings those
        that do. Where ``max_labellings`` hold none, all are 0, and said to be wrong by up to 1.
        """
        energies, rules = self.energies(X), self._rules()
        given = self._known(known, energies[0])
        limits = {"mass_left": self.precision, "max_labellings": self.max_labellings}
        return mixture.marginals(energies, known=given, constraints=rules, **limits)

    @watched
    def predict_proba(self, X):
        """P(y_i = 1 | x), (instances, labels), where all labels are 0 or 1.

        Else a list of P(y_i = class | x), (instances, classes), one a label.
        """
        states = self.marginals(X).states.numpy()
        if self.columns_.are_binary:
            return states[:, :, 1]
        return [states[:, label, : len(classes)] for label, classes in enumerate(self.classes_)]

    @watched
    @of_label_columns
    def predict(self, X, known=None):
        """Classes (instances, labels).

        Warns of searches that were ended before their proof; :meth:`predict_decoding` says which.

        Args:
            X: see :meth:`fit`.
            known: (instances, labels): outputs that are given already, NaN or None for the others.
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

    @of_label_columns
    def log_prob(self, X, Y):
        """log P(Y | x) of whole label vectors, (instances,).

        Under ``constraints`` that given that all rules are obeyed, −∞ where Y does not obey them; too small
        by at most −log(1 − ``precision``), unless ``max_labellings`` are not enough for that.

        Args:
            X: see :meth:`fit`.
            Y: (instances, labels), classes.
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
        limits = {"mass_left": self.precision, "max_labellings": self.max_labellings}
        of_allowed = mixture.labellings(energies, constraints=rules, **limits).log_known.numpy()
        return np.where(rules.violated(codes).any(1), -np.inf, found - of_allowed)

    def sample(self, X, num_samples=1):
        """Label vectors drawn from P(y | x), (num_samples, instances, labels).

        Those that break rules of ``constraints`` are drawn again.

        Raises:
            ValueError: draws that break rules a thousand times in a row.
        """
        energies, rules, generator = self.energies(X), self._rules(), self._generator()
        drawn = draws_of_mixture(energies, num_samples, generator, rules)
        return self.columns_.decode(drawn.numpy())

    def explain(self, X: Any, *, reference: ArrayLike | None = None, num_features: int = 10) -> Explanation:
        """Why one instance has its labels, each given those before it in the chain.

        Args:
            X: (1, features), or whatever the pipeline takes.
            reference: (features,), relative to which features contribute to linear classifiers, and where
                they are left out; by default 0.
            num_features: how many of the features that change a probability most are set to their reference,
                one at a time, to see which labels change; with a pipeline none.

        Returns:
            Of linear classifiers half the log-odds, a sum over their inputs (of a pipeline over the features
            that it makes); of forests the probability, and of boosted trees half the log-odds, by TreeSHAP's
            values, relative to the training instances' mean; of others the probability alone. Of several
            chains the mean, see :class:`~lmbm_torch.estimators.explain.chains.ChainFields`. And
            what else would change with each label. See
            :class:`~lmbm_torch.estimators.explain.explanations.Explanation`.

        Raises:
            ModuleNotFoundError: trees, without ``shap``.
            ValueError: more or fewer instances than one, labels of other values than 0 and 1, a reference of
                another shape.
        """
        check_is_fitted(self)
        X = self._validated(X, reset=False)
        fields = self._fields(X, reference)
        return explained(fields, self.predict_decoding, self.rules, self.binding_rules, X, num_features)

    def _fields(self, X: Any, reference: ArrayLike | None = None) -> ChainFields:
        """What :meth:`explain` takes apart, of one validated instance.

        Raises:
            ValueError: see :meth:`explain`.
        """
        if not self.columns_.are_binary:
            raise ValueError("explain: expected labels of 0 and 1 alone")
        names, features = getattr(self, "feature_names_in_", None), None
        if not isinstance(self.estimator, Pipeline):
            features = numbered("feature", X.shape[1]) if names is None else list(map(str, names))
        return ChainFields(self.members_, self.label_names_, features, reference)

    def _ordering(self, labels: int, random: np.random.RandomState, *, is_first: bool) -> np.ndarray:
        if not is_first or (isinstance(self.order, str) and self.order == "random"):
            return random.permutation(labels)
        if isinstance(self.order, str):
            return np.arange(labels)
        check_permutation("order", self.order, labels)
        return np.asarray(self.order)

    def _validated(self, X: Any, *, reset: bool) -> Any:
        """Instances; what a pipeline takes is left to it, as are data frames."""
        if sparse.issparse(X):
            X = canonical(X)
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
        codes = self.columns_.encode("known", known, energy.batch_size).astype(np.float64)
        return torch.from_numpy(np.where(codes == MISSING, np.nan, codes))

    @property
    def rules(self) -> rules_of.Constraints | None:
        """The rules over the labels of ``fit`` that all answers obey; None where there are none."""
        return self._rules()

    def with_rules(self, rules: rules_of.Constraints | None) -> Self:
        """The same chain, whose answers obey these rules alone; None for no rules."""
        other = copy(self)
        other.constraints = rules
        return other

    def binding_rules(self, X: Any) -> list[list[str]]:
        """The rules of the constructor, as text, that each instance's answer would break without them."""
        labels = self.with_rules(None).predict_decoding(X).labels.cpu().numpy()
        rules = self.rules
        return [[] for _ in labels] if rules is None else rules.broken(labels)

    @property
    def _given_rules(self) -> tuple[Rules | None, ...]:
        return (self.constraints,)

    def _rules(self, more: Rules | None = None) -> rules_of.Constraints | None:
        given = [each for each in (self.constraints, more) if each is not None]
        rules = rules_of_fit(self.label_names_, *given) if given else None
        if rules is not None and not self.columns_.are_binary:
            raise ValueError("constraints: expected None, for not all labels are 0 or 1")
        return rules

    def _generator(self) -> torch.Generator:
        seed = int(check_random_state(self.random_state).randint(2**31))
        return torch.Generator().manual_seed(seed)
