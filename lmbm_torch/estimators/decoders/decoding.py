"""Classifiers that decode label vectors: predictions of labels, or of classes by their codes."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Callable, Sequence
from copy import copy
from importlib import import_module
from types import ModuleType
from typing import Any, Generic, Protocol, Self, TypeVar, cast

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from lmbm_torch import constraints as rules_of
from lmbm_torch.checks import check_count
from lmbm_torch.data.rows import num_instances, some_instances
from lmbm_torch.data.tensors import to_tensor
from lmbm_torch.energies import DirectedEnergy, Energy
from lmbm_torch.estimators.common.base import Rows, StructuredClassifier, level_of_caller
from lmbm_torch.estimators.common.calls import of_label_columns, watched
from lmbm_torch.estimators.common.targets import known_tensor, label_tensor
from lmbm_torch.estimators.common.under_rules import Rules, explained
from lmbm_torch.estimators.decoders.distributions import EXPECTED, AllowedDistribution, max_labellings
from lmbm_torch.estimators.explain.contributions import (
    AnswerFields,
    Fields,
    are_taken_apart,
    check_label_matrices,
    fields_of,
)
from lmbm_torch.estimators.explain.explanations import Explanation, without_names
from lmbm_torch.inference.results import BipartiteMarginals, Decoding, Marginals
from lmbm_torch.protocol import Capabilities
from lmbm_torch.solvers.networks.problems import Features, canonical

AnEnergy = TypeVar("AnEnergy", bound=Energy)


ROUTINES = {
    "exact": "enumeration.exact",
    "integer_program": "relaxations.integer_program",
    "lp_relaxation": "relaxations.lp_relaxation",
}


def routine(name: str) -> ModuleType:
    """The inference module of a decoder in ``ROUTINES``.

    Raises:
        ValueError: another one, which was set after ``fit``.
    """
    if name not in ROUTINES:
        raise ValueError(f"decoder: expected one of {tuple(ROUTINES)} or 'auto', got {name!r}")
    # Imported here: enumeration does without the solvers behind the others.
    return import_module(f"lmbm_torch.inference.{ROUTINES[name]}")


def several(top_k: int, decoder: Any, able: tuple[str, ...]) -> dict[str, Any]:
    """The argument ``top_k`` of a routine that is to find several labellings; none for one.

    Raises:
        ValueError: no count, or several by a ``decoder`` that is not ``able`` to find them.
    """
    check_count("top_k", top_k)
    if top_k > 1 and decoder not in able:
        raise ValueError(f"top_k: expected 1 with the decoder {decoder!r}, got {top_k}")
    return {} if top_k == 1 else {"top_k": top_k}


class Distribution(Protocol):
    """P(y | x) of some instances, as the energies of a model or of its members give it."""

    def marginals(self) -> Marginals | BipartiteMarginals:
        """Return the marginal probabilities of the labels."""
        ...

    def log_prob(self, labels: Tensor) -> Tensor:
        """Return log P(labels), (instances,), of label vectors (instances, labels)."""
        ...

    def log_weights(self, codes: Tensor) -> Tensor:
        """Return log P(codes), (classes, instances), up to a constant, of vectors (classes, 1, labels)."""
        ...


class DecodingClassifier(StructuredClassifier, Generic[AnEnergy]):
    """A classifier whose prediction is the best of all label vectors, or of those that stand for a class.

    The methods without underscore are all that reports, servers and wrappers ask of a classifier: the energy
    of instances, the calibrated energy behind its probabilities, and decoding. A subclass gives the energies,
    the decoding of one, the distribution that calibrated energies stand for, and its capabilities.

    Attributes:
        model_: the model, on ``device``; in float64 where the estimator has no ``dtype``.
    """

    model_: Any
    # Of classifiers along a path of C.
    C_edge_: str | None = None

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities:
        """What the classifier can do, fitted or not."""

    @property
    def trained(self) -> DecodingClassifier:
        """The classifier that was trained: the one within a wrapper, or this one."""
        return self

    def field_weights(self) -> np.ndarray | None:
        """Return the weights (labels, features) of each label's field; None unless the fields are linear."""
        trained = self.trained
        is_linear = trained.get_params(deep=False).get("kernel", "linear") == "linear"
        coef = getattr(trained, "coef_", None) if is_linear else None
        return None if coef is None else np.asarray(coef, np.float64)

    @abstractmethod
    def fit(self, X: Rows, y: Rows, sample_weight: ArrayLike | None = None) -> Self:
        """Learn from features (instances, features), labels (instances, labels) or classes, and weights."""

    def energy(self, X: Rows) -> AnEnergy:
        """The model's energy for instances (instances, features), dense or CSR."""
        return self._energy(self._validate_predict(X))

    def energies(self, X: Rows) -> list[AnEnergy]:
        """The energies of the members for instances (instances, features), one of a single model."""
        return [self.energy(X)]

    def calibrated(self, energies: Sequence[AnEnergy]) -> list[AnEnergy]:
        """The energies whose equal mixture gives the probabilities, from those of :meth:`energies`."""
        return list(energies)

    @watched
    @of_label_columns
    def decode(
        self, X: Rows, known: ArrayLike | None = None, top_k: int = 1, constraints: Rules | None = None
    ) -> Decoding:
        """The best labelling for each instance by the classifier's objective, with its certificate.

        Args:
            X: (instances, features), dense or CSR.
            known: (instances, labels) of {0, 1, NaN}: outputs that are given already.
            top_k: how many labellings, best first.
            constraints: further rules, for this call, as text or objects.

        Raises:
            ValueError: several labellings, or known labels, by a decoder that takes none.
        """
        energy = self.energy(X)
        return self._decode_energy(energy, known_tensor(known, energy), top_k, self._rules(constraints))

    def predict_decoding(self, X: Rows, known: ArrayLike | None = None) -> Decoding:
        """The labels of :meth:`predict` for label matrices, with their objective and certificate."""
        return self.decode(X, known=known)

    @watched
    @of_label_columns
    def predict(self, X: Rows, known: ArrayLike | None = None) -> Any:
        """Labels (instances, labels) in {0, 1}, or classes where ``fit`` was given classes.

        Warns of searches that were ended before their proof; :meth:`predict_decoding` says which.

        Args:
            X: (instances, features), dense or CSR.
            known: (instances, labels) of {0, 1, NaN}: outputs that are given already; label matrices only.
        """
        codes = self._class_codes()
        if known is not None and self.binarizer_ is not None:
            raise ValueError("known: expected None, because fit was given classes, not label matrices")
        if codes is not None:
            return self.classes_[self._code_losses(X, codes).argmin(0).cpu().numpy()]
        if self.binarizer_ is not None:
            return self.classes_[self.decode(X).labels.cpu().numpy()[:, 0]]
        decoding = self.predict_decoding(X, known)
        self._warn_of_ends(decoding.status.converged.cpu().numpy())
        return self._values(decoding.labels.cpu().numpy())

    @watched
    @of_label_columns
    def decision_function(self, X: Rows) -> np.ndarray:
        """By how much each label is decided, (instances, labels): above 0 where :meth:`decode` says 1.

        In size it is by how much the objective of :meth:`decode` suffers if that label alone is held at its
        other value and all others are decoded again: one decoding more for each label; infinite where rules
        leave the label no other value. Of classes minus their losses, (instances, classes), or the difference
        of two, (instances,).
        """
        codes = self._class_codes()
        if codes is not None:
            return -self._code_losses(X, codes).mT.cpu().numpy()
        best = self.decode(X)
        labels, margins = best.labels.cpu().numpy(), []
        objective_of = self._objective_of_held(X)
        for label in range(labels.shape[1]):
            other = np.full(labels.shape, np.nan)
            other[:, label] = 1 - labels[:, label]
            margins.append(self._loss_of(objective_of, other, best.objective.cpu().numpy()))
        signed = (2 * labels - 1) * np.stack(margins, 1)
        return signed if self.binarizer_ is None else signed[:, 0]

    @watched
    @of_label_columns
    def marginals(self, X: Rows) -> Marginals | BipartiteMarginals:
        """P(y_i = 1 | x), and under ``constraints`` that given that all rules are obeyed, exactly.

        The status says whether they are exact, else the standard error of samples, or that the marginals are
        a mean field's or belief propagation's.

        Raises:
            ValueError: many labels under rules, or in cliques of three or more, that have no narrow junction
                tree, see :func:`lmbm_torch.inference.log_partition`.
        """
        return self._restricted(self.calibrated(self.energies(X))).marginals()

    @watched
    @of_label_columns
    @torch.no_grad()
    def log_prob(self, X: Rows, Y: ArrayLike) -> np.ndarray:
        """log P(Y | x) of whole label vectors, (instances,); given that all ``constraints`` are obeyed.

        Args:
            X: (instances, features), dense or CSR.
            Y: (instances, labels) in {0, 1}.

        Raises:
            ValueError: labels of another shape or with other values; see also :meth:`marginals`.
        """
        energies = self.calibrated(self.energies(X))
        labels = label_tensor("Y", Y, energies[0])
        return self._restricted(energies).log_prob(labels).cpu().numpy()

    @watched
    @of_label_columns
    @torch.no_grad()
    def predict_proba(self, X: Rows) -> np.ndarray:
        """P(y_i = 1 | x), (instances, labels), those of :meth:`marginals`; or P(class | x), exactly."""
        codes = self._class_codes()
        if codes is not None:
            distribution = self._distribution(self.calibrated(self.energies(X)))
            return distribution.log_weights(codes).softmax(0).mT.cpu().numpy()
        probability = self.marginals(X).labels.cpu().numpy()
        if self.binarizer_ is None:
            return probability
        return np.hstack([1 - probability, probability])

    def explain(self, X: Rows, *, reference: ArrayLike | None = None, num_features: int = 10) -> Explanation:
        """Why one instance has its labels; only models of pairs of labels have parts of their fields.

        Args:
            X: (1, features), dense or CSR.
            reference: (features,), relative to which features contribute, and where they are left out; by
                default the training means; of a kernel the means of the support vectors.
            num_features: how many of the features that matter most (contribute most or, of others than linear
                models, change a field most) are set to their reference, one at a time, to see which labels
                change.

        Returns:
            Of each label its field, which is the sum of the contributions (of features or, of a kernel, of
            support vectors, by their rows), or else its probability, where there is one, and what else would
            change with it; a mapping, a text and HTML (:mod:`~lmbm_torch.estimators.explain.explanations`).

        Raises:
            ValueError: more or fewer instances than one, a reference of another shape or of precomputed
                kernel values, or a model of classes.
        """
        check_is_fitted(self)
        X = self._validate_predict(X)
        model = without_names(self)
        return model._explanation(model._fields(X, reference), X, num_features)

    def can_explain(self, X: Rows) -> bool:
        """Whether :meth:`explain` takes instances like X (instances, features) apart."""
        return self.binarizer_ is None and are_taken_apart(self, X)

    def binding_rules(self, X: Rows) -> list[list[str]]:
        """The rules of the constructor, as text, that each instance's answer would break without them."""
        labels = self.with_rules(None).predict_decoding(X).labels.cpu().numpy()
        rules = self._rules()
        return [[] for _ in labels] if rules is None else rules.broken(labels)

    def with_feature_names(self, names: Sequence[str]) -> Self:
        """The same classifier, whose explanations of arrays name the features."""
        other = copy(self)
        other.names_of_features_ = tuple(names)
        return other

    def with_node_limit(self, node_limit: int | None) -> Self:
        """The same classifier, whose searches end after so many nodes; None for never.

        Raises:
            ValueError: a classifier without such a limit.
        """
        if "node_limit" not in self.get_params(deep=False):
            raise ValueError(f"node_limit: expected none for {type(self).__name__}, which has no such limit")
        return copy(self).set_params(node_limit=node_limit)

    @torch.no_grad()
    def _energy(self, X: Features) -> AnEnergy:
        """The energy of validated instances, which have lost the column names of a data frame."""
        dtype = next(self.model_.parameters()).dtype
        return self.model_(to_tensor(self._inputs(X)).to(self._device, dtype))

    def _inputs(self, X: Features) -> Features:
        """The model's inputs."""
        return X

    @abstractmethod
    def _decode_energy(
        self,
        energy: AnEnergy,
        known: Tensor | None = None,
        top_k: int = 1,
        rules: rules_of.Constraints | None = None,
    ) -> Decoding:
        """The best labellings of an energy that obey the rules; see :meth:`decode`."""

    @abstractmethod
    def _distribution(self, energies: Sequence[AnEnergy]) -> Distribution:
        """The distribution that calibrated energies stand for, rules aside."""

    @abstractmethod
    def _code_losses(self, X: Rows, codes: Tensor) -> Tensor:
        """The loss to minimise, (classes, instances), of label vectors (classes, 1, labels)."""

    def _restricted(self, energies: Sequence[AnEnergy]) -> Distribution | AllowedDistribution:
        """The distribution of calibrated energies, given that all rules are obeyed."""
        rules = self._rules()
        return self._distribution(energies) if rules is None else AllowedDistribution(energies, rules)

    def _warn_of_ends(self, converged: np.ndarray) -> None:
        """Warn if searches with limits ended before their proof: those not ``converged``, (instances,)."""
        limits = self.capabilities.limits
        if converged.all() or not limits:
            return
        words = " or ".join(f"{name}={value}" for name, value in limits.items())
        if self.capabilities.objective in EXPECTED:
            words = f"the limit of {max_labellings(len(self.classes_))} labellings"
        warnings.warn(
            f"{(~converged).sum()} of {len(converged)} searches were ended by {words}; their labels are the "
            "best found, not proven optimal",
            ConvergenceWarning,
            stacklevel=level_of_caller(),
        )

    def _explanation(self, fields: Fields, X: Any, num_features: int) -> Explanation:
        """The explanation of a validated instance, see :func:`explained`."""
        return explained(fields, self.predict_decoding, self._rules(), self.binding_rules, X, num_features)

    def _fields(self, X: Any, reference: ArrayLike | None = None) -> Fields:
        """What :meth:`explain` takes apart, of one validated instance; labels alone, or their probabilities.

        Raises:
            ValueError: see :meth:`explain`.
        """
        check_label_matrices(self)
        if self.can_explain(X):
            return fields_of(self, reference)
        return AnswerFields(self, self._effects, X, reference)

    def _effects(self, rows: np.ndarray) -> np.ndarray:
        """What the features of rows matter to, (instances, labels)."""
        # Probabilities of networks of many labels would be sampled.
        energies = self.energies(rows)
        if isinstance(energies[0], DirectedEnergy):
            directed = cast(list[DirectedEnergy], energies)
            return np.mean([energy.unary.cpu().numpy() for energy in directed], 0)
        return self.predict_proba(rows) if self.capabilities.has_probabilities else self.predict(rows)

    def _objective_of_held(self, X: Any) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
        """(rows of X, the labels at which they are held) → their objective of :meth:`decode`."""
        X = canonical(X) if sparse.issparse(X) else X

        def objective_of(rows: np.ndarray, held: np.ndarray) -> np.ndarray:
            some = X if len(rows) == num_instances(X) else some_instances(X, rows)
            return self.decode(some, known=held).objective.cpu().numpy()

        return objective_of

    def _loss_of(
        self,
        objective_of: Callable[[np.ndarray, np.ndarray], np.ndarray],
        known: np.ndarray,
        best: np.ndarray,
    ) -> np.ndarray:
        """By how much the objective of what is known differs from the ``best``, infinite if impossible."""
        rules, losses = self._rules(), np.full(len(known), np.inf)
        if rules is None:
            return np.abs(objective_of(np.arange(len(known)), known) - best)
        # Of one label that is held there are but two values.
        held, which = np.unique(known, axis=0, return_inverse=True, equal_nan=True)
        possible = np.array([rules.leaves_any(each) for each in held])
        rows = possible[which.ravel()].nonzero()[0]
        if len(rows):
            losses[rows] = np.abs(objective_of(rows, known[rows]) - best[rows])
        return losses

    def _class_codes(self) -> Tensor | None:
        """The label vectors to choose among, (classes, 1, labels), where not every vector is a class."""
        if not hasattr(self, "n_features_in_"):
            check_is_fitted(self)
        if self.binarizer_ is None or len(self.classes_) == 2:
            return None
        return torch.from_numpy(self.binarizer_.transform(self.classes_)[:, None, :]).to(self._device)
