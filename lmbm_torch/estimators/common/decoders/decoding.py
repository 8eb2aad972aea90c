"""Classifiers that predict by decoding: the best label vector, or the class with the best label vector."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Callable, Sequence
from copy import copy
from importlib import import_module
from types import ModuleType
from typing import Any, Generic, Self, TypeVar, cast

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from lmbm_torch import constraints as rules_of
from lmbm_torch.calibration.scales import Calibration
from lmbm_torch.checks import check_count, level_of_caller
from lmbm_torch.data.rows import num_instances, some_instances
from lmbm_torch.data.tensors import to_tensor
from lmbm_torch.energies import DirectedEnergy, Energy
from lmbm_torch.estimators.common.base import Rows, StructuredClassifier
from lmbm_torch.estimators.common.calls import answer_call
from lmbm_torch.estimators.common.decoders.distributions import (
    EXPECTED,
    AllowedDistribution,
    Distribution,
    MachineMixture,
    NetworkMixture,
    hinge_losses,
    max_labellings,
)
from lmbm_torch.estimators.common.settings import check_parameters
from lmbm_torch.estimators.common.targets import known_tensor, label_tensor, with_rows
from lmbm_torch.estimators.common.under_rules import Rules, explained
from lmbm_torch.estimators.explain.contributions import (
    AnswerFields,
    Fields,
    are_taken_apart,
    check_label_matrices,
    fields_of,
)
from lmbm_torch.estimators.explain.explanations import Explanation, without_names
from lmbm_torch.inference.common.results import BipartiteMarginals, Decoding, Marginals
from lmbm_torch.protocol import Capabilities
from lmbm_torch.solvers.networks.problems import Features

AnEnergy = TypeVar("AnEnergy", bound=Energy)


ROUTINES = {
    "exact": "enumeration.exact",
    "integer_program": "relaxations.integer_program",
    "lp_relaxation": "relaxations.lp_relaxation",
}


def routine(name: str) -> ModuleType:
    """Import the inference module of a decoder in ``ROUTINES``.

    Raises:
        ValueError: the name is unknown, because the parameter was changed after ``fit``.
    """
    if name not in ROUTINES:
        raise ValueError(f"decoder: expected one of {tuple(ROUTINES)} or 'auto', got {name!r}")
    # Import the module only when needed, because some modules need an external solver.
    return import_module(f"lmbm_torch.inference.{ROUTINES[name]}")


def several(top_k: int, decoder: Any, able: tuple[str, ...]) -> dict[str, Any]:
    """Check ``top_k`` and return the keyword argument for a decoding function; no argument for 1.

    Raises:
        ValueError: ``top_k`` is not a positive integer, or is above 1 and ``decoder`` is not in ``able``.
    """
    check_count("top_k", top_k)
    if top_k > 1 and decoder not in able:
        raise ValueError(f"top_k: expected 1 with the decoder {decoder!r}, got {top_k}")
    return {} if top_k == 1 else {"top_k": top_k}


class DecodingClassifier(StructuredClassifier, Generic[AnEnergy]):
    """A classifier that predicts the best label vector, or the class whose label vector (code) is best.

    A subclass defines the energies of instances, their decoding and the capabilities. The subclass overrides
    ``_distribution``, or ``_code_losses`` for classes, if the defaults for large-margin models do not fit.
    Calibrated energies define the probabilities. Reports, servers and wrappers call only public methods.

    Attributes:
        model_: the model, on ``device``; in float64 if the estimator has no ``dtype``.
        calibration_: the :class:`~lmbm_torch.calibration.scales.Calibration`; None without calibration.
    """

    model_: Any
    calibration_: Calibration | None = None
    # "smallest" or "largest" if C was chosen by cross-validation and is at an end of the tried values.
    C_edge_: str | None = None

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities:
        """Return what the classifier can do (decode, search under rules, …); ``fit`` is not needed."""

    @property
    def trained(self) -> DecodingClassifier:
        """The classifier itself or, in a wrapper, the wrapped classifier."""
        return self

    def field_weights(self) -> np.ndarray | None:
        """Return the weights (labels, features) of each label's field; None unless the fields are linear."""
        trained = self.trained
        is_linear = trained.get_params(deep=False).get("kernel", "linear") == "linear"
        coef = getattr(trained, "coef_", None) if is_linear else None
        return None if coef is None else np.asarray(coef, np.float64)

    @abstractmethod
    def fit(self, X: Rows, y: Rows, sample_weight: ArrayLike | None = None) -> Self:
        """Train on X (instances, features), labels or classes, and sample weights (instances,)."""

    @answer_call
    def energy(self, X: Rows) -> AnEnergy:
        """Return the model's energy for instances (instances, features), dense or CSR."""
        return self._energy(self._validate_predict(X))

    def energies(self, X: Rows) -> list[AnEnergy]:
        """Return the energies for instances (instances, features): one for each member of an ensemble."""
        return [self.energy(X)]

    def calibrated(self, energies: Sequence[AnEnergy]) -> list[AnEnergy]:
        """Return calibrated energies, whose equally weighted mixture defines the probabilities."""
        if self.calibration_ is None:
            return list(energies)
        return [member for energy in energies for member in self.calibration_.apply_all(energy)]

    @answer_call
    def decode(
        self, X: Rows, known: ArrayLike | None = None, top_k: int = 1, constraints: Rules | None = None
    ) -> Decoding:
        """Return the best label sets of each instance by the classifier's objective, and whether proven best.

        Args:
            X: (instances, features), dense or CSR.
            known: (instances, labels), known labels in the values of ``fit``; NaN for labels to decode.
            top_k: number of label sets for each instance, best first.
            constraints: further rules, only for this call, as text or objects.

        Returns:
            The decoding; labels are indices into ``classes_``, see :meth:`label_values`.

        Raises:
            ValueError: the decoder does not support several label sets or known labels.
        """
        energy = self.energy(X)
        given = known_tensor(known, energy, self._label_classes)
        return self._decode_energy(energy, given, top_k, self._rules(constraints))

    def predict_decoding(self, X: Rows, known: ArrayLike | None = None) -> Decoding:
        """Return the labels of :meth:`predict` with the objective's values and whether proven best."""
        if self.capabilities.predicts_by_decode:
            return self.decode(X, known=known)
        return self._decode_expected(self.capabilities.objective, X, known)

    @answer_call
    def predict(self, X: Rows, known: ArrayLike | None = None) -> Any:
        """Predict labels (instances, labels), or classes (instances,) if ``fit`` was given classes.

        A ConvergenceWarning tells how many searches were ended by a limit; :meth:`predict_decoding` returns
        the status of each instance.

        Args:
            X: (instances, features), dense or CSR.
            known: known labels, see :meth:`decode`; None if ``fit`` was given classes.
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
        return self.label_values(decoding.labels.cpu().numpy())

    @answer_call
    def decision_function(self, X: Rows) -> np.ndarray:
        """Return the margin of each label, (instances, labels): positive if :meth:`decode` returns 1.

        The magnitude is the loss in the objective of :meth:`decode` if the label is fixed at the opposite
        value and the remaining labels are decoded again; infinite if rules forbid the opposite value. For
        classes the result is the negative loss of each class, (instances, classes); for two classes the
        margin of the second, (instances,).
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

    @answer_call
    def marginals(self, X: Rows) -> Marginals | BipartiteMarginals:
        """Return P(y_i = 1 | x); with ``constraints``, given that all rules are obeyed (then exactly).

        The result's status tells whether the marginals are exact, sampled (with a standard error), or
        approximations by mean field or belief propagation.

        Raises:
            ValueError: there are rules, or cliques of three or more labels, and too many labels for exact
                sums, see :func:`lmbm_torch.inference.log_partition`.
        """
        return self._restricted(self.calibrated(self.energies(X))).marginals()

    @answer_call
    @torch.no_grad()
    def log_prob(self, X: Rows, Y: ArrayLike) -> np.ndarray:
        """Return log P(Y | x) of whole label vectors, (instances,), given the ``constraints``.

        Args:
            X: (instances, features), dense or CSR.
            Y: (instances, labels), label vectors in the values of ``fit``.

        Raises:
            ValueError: labels have a wrong shape or values that ``fit`` had not; see also :meth:`marginals`.
        """
        energies = self.calibrated(self.energies(X))
        labels = label_tensor("Y", Y, energies[0], self._label_classes)
        return self._restricted(energies).log_prob(labels).cpu().numpy()

    @answer_call
    @torch.no_grad()
    def predict_proba(self, X: Rows) -> np.ndarray:
        """Return P(y_i = 1 | x), (instances, labels), see :meth:`marginals`; for classes P(class | x)."""
        codes = self._class_codes()
        if codes is not None:
            distribution = self._distribution(self.calibrated(self.energies(X)))
            return distribution.log_weights(codes).softmax(0).mT.cpu().numpy()
        probability = self.marginals(X).labels.cpu().numpy()
        if self.binarizer_ is None:
            return probability
        return np.hstack([1 - probability, probability])

    @answer_call
    def explain(self, X: Rows, *, reference: ArrayLike | None = None, num_features: int = 10) -> Explanation:
        """Explain the predicted labels of one instance.

        Args:
            X: (1, features), dense or CSR.
            reference: (features,), the values that replace left-out features, and the baseline of
                contributions; by default the training means, for a kernel the means of the support vectors.
            num_features: number of the most important features, set to the reference one at a time, to see
                which labels change.

        Returns:
            A mapping with a text and an HTML form (:mod:`~lmbm_torch.estimators.explain.explanations`). For
            each label the mapping has the field as a sum of contributions of features (for a kernel, of
            support vectors), if the model has only pairs of labels, otherwise the probability, if available;
            and the labels that change if the label is changed.

        Raises:
            ValueError: there are several instances; ``reference`` has not the shape (features,), or kernel
                values are precomputed; or the model predicts classes.
        """
        check_is_fitted(self)
        X = self._validate_predict(X)
        model = without_names(self)
        return model._explanation(model._fields(X, reference), X, num_features)

    @answer_call
    def can_explain(self, X: Rows) -> bool:
        """Return whether :meth:`explain` can write fields as sums of contributions, for instances like X."""
        return self.binarizer_ is None and are_taken_apart(self, X)

    def binding_rules(self, X: Rows) -> list[list[str]]:
        """Return for each instance the rules, as text, that a prediction without rules would break."""
        labels = self.with_rules(None).predict_decoding(X).labels.cpu().numpy()
        rules = self._rules()
        return [[] for _ in labels] if rules is None else rules.broken(labels)

    def with_feature_names(self, names: Sequence[str]) -> Self:
        """Return a copy that uses these feature names in explanations."""
        other = copy(self)
        other.names_of_features_ = tuple(names)
        return other

    def with_node_limit(self, node_limit: int | None) -> Self:
        """Return a copy with this limit on the number of search nodes; None for no limit.

        Raises:
            ValueError: the classifier has no parameter ``node_limit``.
        """
        if "node_limit" not in self.get_params(deep=False):
            raise ValueError(f"node_limit: expected none for {type(self).__name__}, which has no such limit")
        return copy(self).set_params(node_limit=node_limit)

    @torch.no_grad()
    def _energy(self, X: Features) -> AnEnergy:
        """Return the model's energy for instances that are already validated."""
        dtype = next(self.model_.parameters()).dtype
        return self.model_(to_tensor(self._inputs(X)).to(self._device, dtype))

    def _inputs(self, X: Features) -> Features:
        """Return the model's inputs for features X; subclasses with a kernel transform X."""
        return X

    @abstractmethod
    def _decode_energy(
        self,
        energy: AnEnergy,
        known: Tensor | None = None,
        top_k: int = 1,
        rules: rules_of.Constraints | None = None,
    ) -> Decoding:
        """Decode an energy to the ``top_k`` best label sets under rules, see :meth:`decode`."""

    def _decode_expected(self, measure: str, X: Rows, known: ArrayLike | None) -> Decoding:
        """Return the label sets with the largest expected value of a metric under the belief networks."""
        check_parameters(self)
        energies: Any = self.calibrated(self.energies(X))
        given = known_tensor(known, energies[0], self._label_classes)
        limits = self.capabilities.limits
        return NetworkMixture(energies, self._seed).decode(measure, given, self.rules, limits)

    def _distribution(self, energies: Sequence[AnEnergy]) -> Distribution:
        """Return the distribution of label vectors by calibrated energies, without rules."""
        if isinstance(energies[0], DirectedEnergy):
            return NetworkMixture(cast(list[DirectedEnergy], energies), self._seed)
        return MachineMixture(cast(list[Any], energies))

    def _code_losses(self, X: Rows, codes: Tensor) -> Tensor:
        """Return the losses (classes, instances) of the classes' label vectors (classes, 1, labels)."""
        return hinge_losses(self.energies(X), codes, self.capabilities.margin)

    def _restricted(self, energies: Sequence[AnEnergy]) -> Distribution | AllowedDistribution:
        """Return the distribution of label vectors, given that all rules are obeyed."""
        rules = self._rules()
        return self._distribution(energies) if rules is None else AllowedDistribution(energies, rules)

    def _warn_of_ends(self, converged: np.ndarray) -> None:
        """Warn if limits ended searches before the labels were proven best (``converged`` is False)."""
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
        return explained(self, fields, X, num_features)

    def _fields(self, X: Any, reference: ArrayLike | None = None) -> Fields:
        """Return the fields for :meth:`explain`; labels or probabilities if there are no additive fields.

        Raises:
            ValueError: see :meth:`explain`.
        """
        check_label_matrices(self)
        if self.can_explain(X):
            return fields_of(self, reference)
        return AnswerFields(self, self._effects, X, reference)

    def _effects(self, rows: np.ndarray) -> np.ndarray:
        """Return a score of each label, (instances, labels); changes of scores rank the features."""
        # Take fields for belief networks, because probabilities of many labels would be sampled.
        energies = self.energies(rows)
        if isinstance(energies[0], DirectedEnergy):
            directed = cast(list[DirectedEnergy], energies)
            return np.mean([energy.unary.cpu().numpy() for energy in directed], 0)
        if self.capabilities.has_probabilities:
            return self.predict_proba(rows)
        return self.predict_decoding(rows).labels.cpu().numpy()

    def _objective_of_held(self, X: Any) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
        """Return a function from rows of X and fixed labels to the objective of :meth:`decode`."""
        X = with_rows(X)

        def objective_of(rows: np.ndarray, held: np.ndarray) -> np.ndarray:
            some = X if len(rows) == num_instances(X) else some_instances(X, rows)
            return self.decode(some, known=self.label_values(held)).objective.cpu().numpy()

        return objective_of

    def _loss_of(
        self,
        objective_of: Callable[[np.ndarray, np.ndarray], np.ndarray],
        known: np.ndarray,
        best: np.ndarray,
    ) -> np.ndarray:
        """Return by how much fixed labels worsen the ``best`` objective; infinite if rules forbid them."""
        rules, losses = self._rules(), np.full(len(known), np.inf)
        if rules is None:
            return np.abs(objective_of(np.arange(len(known)), known) - best)
        # Check each different row of known labels only once, because many rows are equal.
        held, which = np.unique(known, axis=0, return_inverse=True, equal_nan=True)
        possible = np.array([rules.leaves_any(each) for each in held])
        rows = possible[which.ravel()].nonzero()[0]
        if len(rows):
            losses[rows] = np.abs(objective_of(rows, known[rows]) - best[rows])
        return losses

    def _class_codes(self) -> Tensor | None:
        """Return the classes' label vectors, (classes, 1, labels); None for label matrices or two classes."""
        if not hasattr(self, "n_features_in_"):
            check_is_fitted(self)
        if self.binarizer_ is None or len(self.classes_) == 2:
            return None
        return torch.from_numpy(self.binarizer_.transform(self.classes_)[:, None, :]).to(self._device)
