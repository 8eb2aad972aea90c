"""Classifiers that decode label vectors: predictions of labels, or of classes by their codes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from copy import copy
from importlib import import_module
from types import ModuleType
from typing import Any, Generic, Self, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy import sparse
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from lmbm_torch.checks import check_count
from lmbm_torch.data.tensors import to_tensor
from lmbm_torch.estimators.allowed_distribution import AllowedDistribution
from lmbm_torch.estimators.base import Rows, StructuredClassifier
from lmbm_torch.estimators.calls import of_label_columns, watched
from lmbm_torch.estimators.contributions import Fields, are_taken_apart, fields_of
from lmbm_torch.estimators.explained_answers import AnswerFields, check_label_matrices
from lmbm_torch.estimators.explanations import Explanation, without_names
from lmbm_torch.estimators.label_blocks import can_spread, fit_blocks
from lmbm_torch.estimators.protocol import Capabilities
from lmbm_torch.estimators.rows import num_instances, some_instances
from lmbm_torch.estimators.spreading import Kept
from lmbm_torch.estimators.under_rules import Rules
from lmbm_torch.fitting.dual import dual_problem, fit_dual, kernel_problem
from lmbm_torch.inference.results import BipartiteMarginals, Decoding, Marginals
from lmbm_torch.solvers.networks.kernel_problems import KernelLabelProblems
from lmbm_torch.solvers.networks.problems import Features, canonical

AnEnergy = TypeVar("AnEnergy")


ROUTINES = ("exact", "integer_program", "lp_relaxation")


def routine(name: str) -> ModuleType:
    """The inference module of a decoder in ``ROUTINES``.

    Raises:
        ValueError: another one, which was set after ``fit``.
    """
    if name not in ROUTINES:
        raise ValueError(f"decoder: expected one of {ROUTINES} or 'auto', got {name!r}")
    # Imported here: enumeration does without the solvers behind the others.
    return import_module(f"lmbm_torch.inference.{name}")


def several(top_k: int, decoder: Any, able: tuple[str, ...]) -> dict[str, Any]:
    """The argument ``top_k`` of a routine that is to find several labellings; none for one.

    Raises:
        ValueError: no count, or several by a ``decoder`` that is not ``able`` to find them.
    """
    check_count("top_k", top_k)
    if top_k > 1 and decoder not in able:
        raise ValueError(f"top_k: expected 1 with the decoder {decoder!r}, got {top_k}")
    return {} if top_k == 1 else {"top_k": top_k}


class DecodingClassifier(StructuredClassifier):
    """A classifier whose prediction is the best of all label vectors, or of those that stand for a class.

    The methods without underscore are all that reports, servers and wrappers ask of it.
    """

    @property
    def capabilities(self) -> Capabilities:
        """What the classifier can do, fitted or not."""
        return Capabilities()

    @abstractmethod
    def energies(self, X: Rows) -> list[Any]:
        """The energies of the members for instances (instances, features), one of a single model."""

    def calibrated(self, energies: Sequence[Any]) -> list[Any]:
        """The energies whose equal mixture gives the probabilities, from those of :meth:`energies`."""
        return list(energies)

    def can_explain(self, X: Rows) -> bool:
        """Whether :meth:`explain` takes instances like X (instances, features) apart."""
        return False

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

    @abstractmethod
    def decode(
        self, X: Rows, known: ArrayLike | None = None, top_k: int = 1, constraints: Rules | None = None
    ) -> Decoding:
        """The best labelling for each instance, with its certificate.

        Args:
            X: (instances, features), dense or CSR.
            known: (instances, labels) of {0, 1, NaN}: outputs that are given already.
            top_k: how many labellings, best first.
            constraints: further rules, for this call, as text or objects.
        """

    def predict_decoding(self, X, known=None) -> Decoding:
        """The labels of :meth:`predict` for label matrices, with their objective and certificate."""
        return self.decode(X, known=known)

    def explain(self, X: Rows, *, reference: ArrayLike | None = None, num_features: int = 10) -> Explanation:
        """Why one instance has its labels, as far as other answers tell.

        Args:
            X: (1, features), dense or CSR.
            reference: (features,), where a feature is left out; by default the training means.
            num_features: how many of the features that matter most are set to their reference, one at a time,
                to see which labels change.

        Returns:
            Of each label its probability, where there is one, and what else would change with it; see
            :class:`~lmbm_torch.estimators.explanations.Explanation`.

        Raises:
            ValueError: more or fewer instances than one, a reference of another shape, a model of classes.
        """
        check_is_fitted(self)
        X = self._validate_predict(X)
        model: Any = without_names(self)
        return model._explanation(model.fields(X, reference), X, num_features)

    def fields(self, X: Any, reference: ArrayLike | None = None) -> Fields:
        """What :meth:`explain` takes apart, of one validated instance; labels alone, or their probabilities.

        Raises:
            ValueError: see :meth:`explain`.
        """
        return AnswerFields(self, self._effects, X, reference)

    def _effects(self, rows: np.ndarray) -> np.ndarray:
        """What the features of rows matter to, (instances, labels)."""
        model: Any = self
        return model.predict_proba(rows) if hasattr(model, "predict_proba") else self.predict(rows)

    @abstractmethod
    def _code_losses(self, X, codes: Tensor) -> Tensor:
        """The loss to minimise, (classes, instances), of label vectors (classes, 1, labels)."""

    @watched
    @of_label_columns
    def predict(self, X: Rows, known: ArrayLike | None = None) -> np.ndarray:
        """Labels (instances, labels) in {0, 1}, or classes where ``fit`` was given classes.

        Args:
            X: (instances, features), dense or CSR.
            known: (instances, labels) of {0, 1, NaN}: outputs that are given already; label matrices only.
        """
        codes = self._class_codes()
        if known is not None and self.binarizer_ is not None:
            raise ValueError("known: expected None, because fit was given classes, not label matrices")
        if codes is None:
            labels = self.decode(X, known=known).labels.cpu().numpy()
            return self._values(labels) if self.binarizer_ is None else self.classes_[labels[:, 0]]
        return self.classes_[self._code_losses(X, codes).argmin(0).cpu().numpy()]

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
        check_is_fitted(self)
        if self.binarizer_ is None or len(self.classes_) == 2:
            return None
        return torch.from_numpy(self.binarizer_.transform(self.classes_)[:, None, :]).to(self._device)


class ProbabilisticClassifier(DecodingClassifier):
    """A decoding classifier that also has probabilities."""

    def _distributions(self, X: Rows) -> list[Any]:
        """The energies whose equal mixture is P(y | x), rules aside."""
        return self.calibrated(self.energies(X))

    def _allowed(self, X: Rows) -> AllowedDistribution | None:
        """P(y | x) given that the rules are obeyed; None where there are none."""
        rules = self._rules()
        return None if rules is None else AllowedDistribution(self._distributions(X), rules)

    @abstractmethod
    def _code_log_prob(self, X, codes: Tensor) -> Tensor:
        """log P(code | x), (classes, instances), up to a constant."""

    @abstractmethod
    def marginals(self, X) -> Marginals | BipartiteMarginals:
        """The labels' marginal probabilities, P(y_i = 1 | x)."""

    @watched
    @of_label_columns
    @torch.no_grad()
    def predict_proba(self, X: Rows) -> np.ndarray:
        """P(y_i = 1 | x), (instances, labels), those of :meth:`marginals`; or P(class | x), exactly."""
        codes = self._class_codes()
        if codes is not None:
            return self._code_log_prob(X, codes).softmax(0).mT.cpu().numpy()
        probability = self.marginals(X).labels.cpu().numpy()
        if self.binarizer_ is None:
            return probability
        return np.hstack([1 - probability, probability])


class ModelClassifier(DecodingClassifier, Generic[AnEnergy]):
    """A decoding classifier with a single model, and the model's energy.

    Attributes:
        model_: the model, on ``device``; in float64 where the estimator has no ``dtype``.
    """

    model_: Any

    def energy(self, X) -> AnEnergy:
        """The model's energy for instances (instances, features), dense or CSR."""
        return self._energy(self._validate_predict(X))

    def energies(self, X: Rows) -> list[AnEnergy]:
        """The model's energy, alone in a list."""
        return [self.energy(X)]

    def explain(self, X: Rows, *, reference: ArrayLike | None = None, num_features: int = 10) -> Explanation:
        """Why one instance has its labels; only models of pairs of labels have parts of their fields.

        Args:
            X: (1, features), dense or CSR.
            reference: (features,), relative to which features contribute; by default the training means; of
                a kernel the means of the support vectors.
            num_features: how many of the features that matter most (contribute most or, of a kernel, change a
                field most) are set to their reference, one at a time, to see which labels change.

        Returns:
            Of each label its field, which is the sum of the contributions (of features or, of a kernel, of
            support vectors, by their rows), and what else would change with it; a mapping, a text and HTML
            (:mod:`~lmbm_torch.estimators.explanations`).

        Raises:
            ValueError: more or fewer instances than one, a reference of another shape or of precomputed
                kernel values, or a model of classes.
        """
        return super().explain(X, reference=reference, num_features=num_features)

    def fields(self, X: Any, reference: ArrayLike | None = None) -> Fields:
        """What :meth:`explain` takes apart, of one validated instance.

        Raises:
            ValueError: see :meth:`explain`.
        """
        check_label_matrices(self)
        return fields_of(self, reference) if self.can_explain(X) else super().fields(X, reference)

    def can_explain(self, X: Rows) -> bool:
        """Whether :meth:`explain` takes instances like X (instances, features) apart."""
        return self.binarizer_ is None and are_taken_apart(self, X)

    @torch.no_grad()
    def _energy(self, X: Features) -> AnEnergy:
        """The energy of validated instances, which have lost the column names of a data frame."""
        dtype = next(self.model_.parameters()).dtype
        return self.model_(to_tensor(self._inputs(X)).to(self._device, dtype))

    def _inputs(self, X: Features) -> Features:
        """The model's inputs."""
        return X


class LocalHingeClassifier(ModelClassifier[AnEnergy]):
    """A classifier whose model minimises ½‖w‖² + C Σ_l Σ_i [γ − m_il]_+, in the dual."""

    margin: float
    solver: str

    def _train(
        self,
        model: Any,
        inputs: Any,
        labels: np.ndarray,
        *,
        start: Callable[[Any], Any] | None = None,
        kept: Kept | None = None,
        problems: KernelLabelProblems | None = None,
        **options: Any,
    ) -> tuple[Any, Any]:
        """Train the model; its problem, and the solver's last state.

        Args:
            inputs, options: see :func:`~lmbm_torch.fitting.dual.dual_problem`.
            start: the solver's first state for the problem.
            kept: the inputs, where workers keep them.
            problems: of a kernel, where they are known.
        """
        if problems is None:
            options |= {"C": self.C_, "margin": self.margin, "solver": self.solver}
            dual = dual_problem(model, inputs, labels, **options)
        else:
            dual = kernel_problem(model, problems, options["seed"])
        first = None if start is None else start(dual.problem)
        with self._progress() as progress:
            limits = {"tol": self.tol, "max_iter": self.max_iter, "start": first}
            if can_spread(dual):
                state = fit_blocks(dual, kept=kept, **limits)
            else:
                state = fit_dual(dual, progress=progress, **limits)
        # To ask whether it is there takes a tenth of the time of a move.
        is_there = next(model.parameters()).device == self._device
        self.model_ = model if is_there else model.to(self._device)
        return dual.problem, state
