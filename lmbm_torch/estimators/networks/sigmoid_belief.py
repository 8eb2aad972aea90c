"""Large-margin sigmoid belief networks as a scikit-learn classifier."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Self, cast

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy import sparse
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from lmbm_torch import constraints as rules_of
from lmbm_torch import inference
from lmbm_torch.checks import check_shape
from lmbm_torch.energies import DirectedEnergy
from lmbm_torch.estimators.common.base import Rows, unfitted
from lmbm_torch.estimators.common.calls import answer_call, fit_call
from lmbm_torch.estimators.common.decoders.calibration import learned_calibration
from lmbm_torch.estimators.common.decoders.decoding import DecodingClassifier
from lmbm_torch.estimators.common.decoders.distributions import DECODERS
from lmbm_torch.estimators.common.kernels import Kernel, relative_penalty
from lmbm_torch.estimators.common.settings import (
    CALIBRATE,
    CLASS_WEIGHT,
    COUNT,
    POSITIVE,
    RELATIVE_PENALTY,
    SHARED,
    Constraints,
    HasMethods,
    StrOptions,
    check_parameters,
)
from lmbm_torch.estimators.common.targets import predicted_sparse
from lmbm_torch.estimators.networks.network_training import (
    NetworkSettings,
    SharedKernel,
    StreamTrainer,
    Trained,
    labels_of_call,
    train_few_parents,
    train_kernel,
    train_linear,
)
from lmbm_torch.estimators.networks.orderings import parent_matrix, topological
from lmbm_torch.estimators.networks.predictors import NetworkPredictor
from lmbm_torch.fitting import recipe
from lmbm_torch.fitting.dual import NETWORK_SOLVERS, Path
from lmbm_torch.fitting.recipe import Units
from lmbm_torch.inference.common.limits import LIMITS
from lmbm_torch.inference.common.results import Decoding
from lmbm_torch.inference.graphs.elimination import is_narrow
from lmbm_torch.inference.search import branch_and_bound
from lmbm_torch.losses.bounds import directed_threshold, error_bound
from lmbm_torch.protocol import Capabilities
from lmbm_torch.solvers.networks.problems import Features


def _is_linear(estimator: LMSBNClassifier) -> bool:
    """Check that the kernel is linear, and raise AttributeError otherwise, as scikit-learn does."""
    if estimator.kernel != "linear":
        raise AttributeError(f"partial_fit: expected kernel='linear', got {estimator.kernel!r}")
    return True


class LMSBNClassifier(DecodingClassifier[DirectedEnergy]):
    """A large-margin sigmoid belief network, linear or with a kernel, decoded exactly (lmbm_and_lmsbn_2010).

    This is a classifier chain of support vector machines, trained to a certified duality gap and decoded
    jointly instead of greedily. Training minimises ½‖w‖² + C Σ_l Σ_i [γ − m_il]_+ for instances l and labels
    i; intercepts are regularised, too. Predicted is the label set with the least Σ_i [γ − m_i]_+, proven
    best.

    Args:
        C: weight of the losses, a number or a multiple of ``"scale"`` such as ``"0.3*scale"``, see
            :func:`~lmbm_torch.fitting.recipe.units`; with a kernel relative to the mean of k(x, x).
        kernel: ``"linear"``, ``"rbf"``, ``"poly"``, ``"precomputed"`` (X holds the kernel values with the
            training instances), or a function of two feature matrices that returns the kernel values. All but
            ``"linear"`` are trained with the joint kernel k(x, x') + 1 + c ⟨s_pa, s'_pa⟩ of features and
            parents.
        gamma: parameter of ``"rbf"`` and ``"poly"``, 1/(2σ²) for a bandwidth σ; ``"scale"`` is 1 / (number of
            features · variance of all entries of X), ``"auto"`` is 1 / number of features.
        kernel_degree, coef0: parameters of ``"poly"``, (gamma ⟨x, x'⟩ + coef0)^kernel_degree.
        parent_scale: c in the joint kernel; 1 with the linear kernel.
        ordering: order of the labels: ``"f_score"`` (labels that independent classifiers predict best come
            first), ``"frequency"`` (frequent labels first), ``"index"``, ``"random"``, a permutation whose
            entry t is the label at position t, or ``"auto"``: ``"frequency"`` if parents are chosen,
            otherwise ``"f_score"``.
        degree: size of the largest cliques of labels; 1 for independent labels, 2 for all earlier labels as
            parents.
        max_parents: largest number of parents of a label, chosen by the gradient of the dual, see
            :mod:`~lmbm_torch.solvers.networks.chosen_parents`; only for the linear kernel, degree 2, dual
            coordinate descent and no missing labels. Workers of joblib's active backend train blocks of
            labels. None for all earlier labels; ``"auto"`` for all if there are up to 128 labels, otherwise
            for a number chosen by cross-validation, where possible.
        parents: a given directed acyclic graph: a matrix (labels, labels), 1 where the label of the row has
            the label of the column as parent; {label: parents}; or a ``networkx.DiGraph`` with edges from
            parents to children. Labels are column names or numbers. Only with degree 2 and without a number
            ``max_parents``; ``ordering`` is ``"auto"`` or a permutation with parents first.
        margin: the margin γ of the hinge losses.
        decoding_margin: the margin in decoding, None for ``margin``. With smaller margins, decoding resembles
            the label-by-label prediction of a chain, which finds more of hundreds of rare labels.
        solver: ``"dual_coordinate"``, ``"exponentiated_gradient"`` or ``"pegasos"``.
        tol: relative duality gap at which training ends.
        max_iter: passes at which training ends even above ``tol``, with a ConvergenceWarning.
        cutoff: ignore label sets with a loss of at least ``cutoff`` times the decoding margin; None for none.
        node_limit: number of nodes at which a search ends without proof, by default after 0.1 to 1 s; None
            for no limit, which can take hours for a thousand labels. ``predict`` warns of searches without
            proof.
        decoder: what :meth:`predict` optimises: ``"hinge"`` for the least hinge loss, as in the papers; or
            the expected value, under the joint distribution, of ``"exact_match"`` (the most probable label
            set), ``"hamming"``, ``"f1"`` or ``"jaccard"``. Classes are always decoded by the hinge loss.
        sparse_output: whether :meth:`predict` returns label matrices in {0, 1} as CSR, computed in batches.
        class_weight: multiplies C for instances by their label: ``"balanced"`` (instances / (2 · instances
            with the value), for each label), weights by value {0: …, 1: …}, or a sequence with a setting for
            each label.
        calibrate: whether to calibrate probabilities, of labels and of label sets, see
            :mod:`~lmbm_torch.estimators.common.decoders.calibration`. The decoder ``"hinge"`` is not
            affected.
        cache_size: memory in MiB of the kernel values of all pairs, kept in training if they fit.
        device: device of predictions except searches, such as ``"cpu"`` or ``"cuda"``; the dual solver trains
            on the CPU.
        verbose: 1 for a progress bar with the gap (needs rich), 0 for none.
        random_state: seed of the order in which the solver visits instances, of random label orders, folds
            and samples.
        constraints: rules that all predictions obey, as text or objects (:mod:`lmbm_torch.constraints`);
            training ignores rules, because labels are trained separately.

    Attributes:
        ordering_: (labels,), the label at each position of the order.
        C_: the weight of the losses; feature_shift_, feature_scale_: (features,), training is on (X − shift)
            / scale; 0 and 1 if C is a number.
        coef_: (labels, features), weights of the features; only with the linear kernel.
        dual_coef_: (labels, support vectors), coefficients of the kernel values; only with other kernels.
        support_: (support vectors,), the training instances with a non-zero dual of some label;
            support_vectors_: their features, None for ``"precomputed"``.
        intercept_: (labels,), the intercepts.
        parents_: (labels, labels), True for each label's given parents, by row; None without a graph.
        parent_coef_: (labels, labels), row i the weights of label i's parents; max_parents_: largest number
            of parents, None if all earlier labels are parents.
        objective_: the value of the training objective; duality_gap_: the duality gap relative to it.
        n_iter_: number of passes of the solver.
        mean_loss_: the mean hinge loss of the training instances, including the loss of missing labels, which
            are replaced by the network's own prediction.
        threshold_: T, the decoding margin: the least loss of a wrongly decoded instance (Remark 6).
        error_bound_: mean_loss_ / T, at most 1: an upper bound on the share of training instances that the
            hinge decoder gets wrong (Theorem 4), if no limit ends a search; missing labels are replaced as
            above. 1, if no bound is known: for other decoders, with constraints, and for a larger margin in
            decoding than in training.
        calibration_: the :class:`~lmbm_torch.calibration.scales.Calibration`; None if not calibrated.
        kernel_: the kernel, with the value of gamma.
        classes_: the classes; for label matrices (labels, 2), the two values of each label.

    Examples:
        >>> from lmbm_torch.estimators import LMSBNClassifier
        >>> X, y = [[0.0], [1.0], [2.0], [3.0]], [[0, 0], [0, 1], [1, 1], [1, 1]]
        >>> LMSBNClassifier(random_state=0).fit(X, y).predict([[2.5]])
        array([[1, 1]])
    """

    _accepted: ClassVar[Constraints] = {
        **SHARED,
        "decoder": [StrOptions({*DECODERS})],
        "C": RELATIVE_PENALTY,
        "ordering": [StrOptions({"auto", "f_score", "frequency", "index", "random"}), "array-like"],
        "max_parents": [StrOptions({"auto"}), COUNT, None],
        "parents": [dict, HasMethods({"is_directed"}), "array-like", None],
        "sparse_output": ["boolean"],
        "solver": [StrOptions({*NETWORK_SOLVERS})],
        "calibrate": CALIBRATE,
        "decoding_margin": [POSITIVE, None],
        "class_weight": CLASS_WEIGHT,
        "cutoff": [POSITIVE, None],
        "cache_size": [POSITIVE],
    }
    # State between calls of ``partial_fit``: sums of weights by Pegasos; None before the first call.
    _stream_sums: np.ndarray | None = None
    _stream_visits: int = 0
    _stream_epoch: int = 0
    _stream_seed: int = 0

    def __init__(
        self,
        C: float | str = recipe.C,
        *,
        kernel="linear",
        gamma="scale",
        kernel_degree=3,
        coef0=1.0,
        parent_scale=1.0,
        ordering="auto",
        degree=2,
        max_parents: int | str | None = "auto",
        parents=None,
        margin=1.0,
        decoding_margin=None,
        solver="dual_coordinate",
        tol=1e-3,
        max_iter=1000,
        cutoff=None,
        node_limit=LIMITS.network_nodes,
        decoder="hinge",
        sparse_output=False,
        class_weight=None,
        calibrate: bool | str = False,
        cache_size=512,
        device="cpu",
        verbose=0,
        random_state=None,
        constraints=None,
    ):
        self.C = C
        self.kernel = kernel
        self.gamma = gamma
        self.kernel_degree = kernel_degree
        self.coef0 = coef0
        self.parent_scale = parent_scale
        self.ordering = ordering
        self.degree = degree
        self.max_parents = max_parents
        self.parents = parents
        self.margin = margin
        self.decoding_margin = decoding_margin
        self.solver = solver
        self.tol = tol
        self.max_iter = max_iter
        self.cutoff = cutoff
        self.node_limit = node_limit
        self.decoder = decoder
        self.sparse_output = sparse_output
        self.class_weight = class_weight
        self.calibrate = calibrate
        self.cache_size = cache_size
        self.device = device
        self.verbose = verbose
        self.random_state = random_state
        self.constraints = constraints

    @fit_call
    def fit(self, X: Rows, y: Rows, sample_weight: ArrayLike | None = None) -> Self:
        """Train on features (instances, features), dense or CSR, and labels (instances, labels).

        Args:
            X: finite features.
            y: labels in {0, 1} and NaN (missing: the label has no loss, and is replaced by its prediction as
                a parent of later labels), or a class for each instance.
            sample_weight: (instances,), factors of C.

        Raises:
            ValueError: a parameter or input is invalid; the message names it.
        """
        self._fit_valid(*self._validate_fit(X, y, sample_weight, allow_missing=True), Path())
        return self

    @available_if(_is_linear)
    @fit_call
    def partial_fit(
        self,
        X: Rows,
        y: Any,
        classes: Sequence[Any] | np.ndarray | None = None,
        sample_weight: ArrayLike | None = None,
        *,
        epoch_size: int | None = None,
    ) -> Self:
        """Train further by a pass of Pegasos over these instances; after ``fit``, training starts anew.

        Thirty passes over 600 digits come within 1 % of the minimal objective of ``fit``. One pass over a
        million rows leaves as many wrong labels as ``fit`` on the same rows
        (``scripts/bench/long_streams.py``). ``solver``, ``tol`` and ``max_iter`` are not used. The first call
        sets the order of labels (``"auto"`` means ``"index"``) and the units of features. Every label has all
        earlier labels as parents. ``mean_loss_`` and ``error_bound_`` refer to the rows of the last call.

        Args:
            X: (instances, features), dense or CSR, with the number of features of the first call.
            y: (instances, labels) in {0, 1}, or a class for each instance.
            classes: in the first call, all classes (by default the classes of an earlier ``fit``); for a
                label matrix, the names of the labels (optional).
            sample_weight: (instances,), factors of C.
            epoch_size: in the first call, the number of training instances that C refers to; by default the
                number of instances of the first call. Set the size if calls have small batches.

        Raises:
            AttributeError: the kernel is not linear.
            ValueError: labels are missing, ``max_parents``, ``class_weight`` or ``calibrate`` is set, or
                classes or numbers of features or labels differ from the first call.
        """
        check_parameters(self)
        if self.max_parents not in ("auto", None):
            raise ValueError(f"max_parents: expected 'auto' or None for partial_fit, got {self.max_parents}")
        if self.parents is not None:
            raise ValueError("parents: expected None for partial_fit, got a graph")
        self.parents_ = None
        if self.class_weight is not None or self.calibrate:
            raise ValueError(
                "class_weight, calibrate: expected no values for partial_fit, which never has all instances"
            )
        is_first = self._stream_sums is None
        X = self._features(X, reset=is_first)
        labels = labels_of_call(self, y, classes, is_first=is_first)
        check_shape("y", labels, cast(Any, X).shape[0], None)
        weights = self._weights(sample_weight, X)
        if is_first:
            self.feature_means_ = np.asarray(X.mean(0, dtype=np.float64)).ravel()
            inputs = self._scaled(X, weights)
            trainer = StreamTrainer.begun(self._settings, inputs, labels, weights, epoch_size)
        else:
            inputs = Units(self.C_, self.feature_shift_, self.feature_scale_).scaled(X)
            trainer = StreamTrainer(
                settings=self._settings,
                ordering=self.ordering_,
                epoch_size=self._stream_epoch,
                seed=self._stream_seed,
                visits=self._stream_visits,
                sums=self._stream_sums,
            )
        trainer, trained = trainer.train(inputs, labels, weights)
        self._stream_sums, self._stream_visits = trainer.sums, trainer.visits
        self._stream_epoch, self._stream_seed = trainer.epoch_size, trainer.seed
        self._take(trained, X, labels, weights)
        return self

    def _fit_along(self, path: Path, X: Rows, y: Rows, sample_weight: ArrayLike | None = None) -> Self:
        """Fit to the same instances as the last fit on the path, with a larger C, from its solution."""
        path.known = self._fit_valid(*self._validate_fit(X, y, sample_weight, allow_missing=True), path)
        return self

    def _fit_valid(
        self, X: Features, labels: Any, sample_weight: np.ndarray | None, path: Path
    ) -> SharedKernel | None:
        """Train on validated data; with a kernel, return what the next network with the kernel can reuse.

        Args:
            path: holds the order of labels, the duals and, with a kernel, the shared data of an earlier fit.
        """
        # Forget the state of ``partial_fit``, which will start anew.
        self._stream_sums, self._stream_visits = None, 0
        self.parents_ = self._given_parents(labels.shape[1])
        has_few_parents = self._has_few_parents(labels)
        if self.kernel == "linear":
            if self.parent_scale != 1 and not has_few_parents:
                raise ValueError(
                    f"parent_scale: expected 1 with the linear kernel, got {self.parent_scale!r}"
                )
            inputs = self._scaled(X, sample_weight)
            data = inputs, labels, sample_weight, self._label_weights(labels, sample_weight), path
            if has_few_parents:
                trained = train_few_parents(self._settings, *data, self.max_parents)
            else:
                trained = train_linear(self._settings, *data)
        else:
            known = self._shared_kernel(X, sample_weight) if path.known is None else path.known
            self.kernel_ = known.kernel
            self.feature_shift_, self.feature_scale_ = self.kernel_.shift, self.kernel_.scale
            self.C_ = relative_penalty(self.C, self.kernel_, X, sample_weight)
            weights = None if known.template else self._label_weights(labels, sample_weight)
            data = known, labels, sample_weight, weights
            trained = train_kernel(self._settings, *data, path, self.parent_scale)
            # Keep the instances with a non-zero dual of some label; at least one instance.
            duals = cast(np.ndarray, trained.dual_coef)
            self.support_ = np.flatnonzero(duals.any(0)) if duals.any() else np.array([0])
            self.support_vectors_ = None if self.kernel_.is_precomputed else X[self.support_]
            self.dual_coef_ = np.ascontiguousarray(duals[:, self.support_])
        self.objective_, self.duality_gap_ = trained.objective, trained.gap
        self._warn_unless_reached(trained.gap)
        self._take(trained, X, labels, sample_weight)
        return trained.shared

    def stored_parts(self) -> dict[str, Any]:
        """Return settings and fitted attributes to save, by name; a given graph is saved as a matrix."""
        parts = super().stored_parts()
        parents = None if self.parents is None else self.parents_
        return {**parts, "settings": {**parts["settings"], "parents": parents}}

    def _given_parents(self, num_labels: int) -> np.ndarray | None:
        """Return the given graph as a matrix (labels, labels), True for parents; None without a graph."""
        if self.parents is None:
            return None
        if self.degree != 2:
            raise ValueError(f"degree: expected 2 with parents, got {self.degree}")
        if isinstance(self.ordering, str) and self.ordering != "auto":
            raise ValueError(
                f"ordering: expected 'auto' or a permutation with parents, got {self.ordering!r}"
            )
        return parent_matrix(self.parents, num_labels, self.label_names_)

    @property
    def _settings(self) -> NetworkSettings:
        is_given = self.parents_ is not None and isinstance(self.ordering, str)
        return NetworkSettings(
            C=self.C_,
            margin=self.margin,
            degree=self.degree,
            solver=self.solver,
            ordering=topological(cast(np.ndarray, self.parents_)) if is_given else self.ordering,
            parents=self.parents_,
            tol=self.tol,
            max_iter=self.max_iter,
            draw_seed=self._seed,
            is_seeded=self.random_state is not None,
            name=type(self).__name__,
            verbose=self.verbose,
        )

    def _take(self, trained: Trained, X: Features, labels: Any, sample_weight: np.ndarray | None) -> None:
        """Set the fitted attributes from the results of training, and calibrate if required."""
        self.model_ = self._on_device(trained.model)
        self.ordering_, self.max_parents_ = trained.ordering, trained.max_parents
        if self.kernel == "linear":
            self.model_.undo_scaling(self.feature_scale_, self.feature_shift_)
            self.coef_ = self._array(self.model_.feature_weight)
        self.intercept_, self.parent_coef_ = self._array(self.model_.bias), trained.parents
        self.n_iter_, self.mean_loss_ = trained.num_iters, trained.mean_loss
        self.threshold_ = directed_threshold(self._hinge_margin)
        # The bound holds only for the hinge decoder: others may prefer label sets of larger hinge loss.
        is_hinge = self.decoder == "hinge" or self.binarizer_ is not None
        # The bound needs a decoding margin up to the training margin, because losses grow with the margin.
        is_hinge &= self._hinge_margin <= self.margin
        # The bound needs no rules, because rules may forbid the true labels even if their loss is small.
        is_hinge &= self._rules() is None
        self.error_bound_ = error_bound(self.mean_loss_, self.threshold_) if is_hinge else 1.0
        if self.calibrate:
            settings = {"ordering": self.ordering_, "max_parents": self.max_parents_}
            found = learned_calibration(self, self.calibrate, X, labels, sample_weight, **settings)
        else:
            found = None
        self.calibration_ = found

    @property
    def capabilities(self) -> Capabilities:
        return network_capabilities(self.decoder, self._hinge_margin, {"node_limit": self.node_limit})

    @answer_call
    def predict(self, X: Rows, known: ArrayLike | None = None) -> Any:
        if not hasattr(self, "model_"):
            check_is_fitted(self)
        if self.sparse_output and self.binarizer_ is None:
            return predicted_sparse(self._predict, X, known, self.classes_)
        return self._predict(X, known)

    def compile_predictor(self) -> NetworkPredictor:
        """Return the fitted decoder as NumPy arrays, for a server.

        Raises:
            ValueError: the kernel is not linear, the decoder is not ``"hinge"``, there are constraints, the
                classifier was fitted to classes, or the device is not the CPU.
        """
        check_is_fitted(self)
        if reason := self._why_not_compiled():
            raise ValueError(f"compile_predictor: expected {reason}")
        predictor = self._predictor()
        return replace(predictor, weight=predictor.weight.copy(), bias=predictor.bias.copy())

    def _predict(self, X: Rows, known: ArrayLike | None) -> np.ndarray:
        if known is not None or sparse.issparse(X) or self._why_not_compiled():
            return super().predict(X, known)
        X = cast(np.ndarray, self._validate_predict(X))
        # X can be sparse only now, because validation converts data frames with sparse columns.
        if sparse.issparse(X):
            return super().predict(X, known)
        found = self._predictor().decode_checked(X)
        rows = np.flatnonzero(~found.converged)
        if len(rows) and self._has_tree:
            again = self._decode_energy(self._energy(X[rows]))
            found.labels[rows], found.converged[rows] = again.labels, again.status.converged
        self._warn_of_ends(found.converged)
        return self.label_values(found.labels)

    def _why_not_compiled(self) -> str:
        """Return the first requirement for a compiled predictor that is not met; an empty text if none."""
        if self.kernel != "linear":
            return f"kernel='linear', got {self.kernel!r}"
        if self.decoder != "hinge":
            return f"decoder='hinge', got {self.decoder!r}"
        if self.rules is not None:
            return f"no rules, got {self.rules.texts}"
        if self.binarizer_ is not None:
            return "an estimator that was fitted to label matrices, got one fitted to classes"
        return "" if self.device in ("cpu", torch.device("cpu")) else f"device='cpu', got {self.device!r}"

    def _predictor(self) -> NetworkPredictor:
        """Return the compiled decoder, whose feature weights are shared rather than copied."""
        limits = {"cutoff": self.cutoff, "node_limit": self.node_limit}
        names = cast("tuple[str, ...]", self.label_names_)
        return NetworkPredictor.of(self.model_, names, margin=self._hinge_margin, **limits)

    @property
    def _has_tree(self) -> bool:
        """Return whether a junction tree can decode instances for which a search reached its limit."""
        if self.cutoff is not None or len(self.intercept_) <= LIMITS.narrow:
            return False
        # Test the number of parents first: it is faster than to compute an energy for the exact test.
        if np.count_nonzero(self.parent_coef_, axis=1).max() > LIMITS.treewidth:
            return False
        couplings = self._energy(np.zeros((1, self.n_features_in_)))
        return is_narrow(couplings)

    @property
    def _hinge_margin(self) -> float:
        """Return the margin γ of the hinge losses in decoding."""
        return self.margin if self.decoding_margin is None else self.decoding_margin

    def _decode_energy(
        self,
        energy: DirectedEnergy,
        known: Tensor | None = None,
        top_k: int = 1,
        rules: rules_of.Constraints | None = None,
    ) -> Decoding:
        """Decode an energy with the estimator's parameters; no fitted attribute is used."""
        # With a cutoff only branch and bound is used, because the best label set may be ignored.
        search = partial(branch_and_bound.decode_hinge, cutoff=self.cutoff)
        decode = inference.decode_hinge if self.cutoff is None else search
        limits = {"top_k": top_k, "node_limit": self.node_limit, "constraints": rules}
        return decode(energy, self._hinge_margin, known=known, **limits)

    def _has_few_parents(self, labels: Any) -> bool:
        """Return whether each label has few chosen parents instead of all earlier labels.

        Args:
            labels: (instances, labels), dense or sparse.

        Raises:
            ValueError: ``max_parents`` is a number, but another parameter or missing labels exclude it.
        """
        if self.max_parents is None or (self.parents is not None and self.max_parents == "auto"):
            return False
        reasons = {
            "the linear kernel": self.kernel == "linear",
            "degree=2": self.degree == 2,
            "parents=None": self.parents is None,
            "solver='dual_coordinate'": self.solver == "dual_coordinate",
            "no missing labels": sparse.issparse(labels) or not np.isnan(labels).any(),
        }
        unmet = [reason for reason, is_met in reasons.items() if not is_met]
        if self.max_parents == "auto":
            return not unmet and labels.shape[1] > recipe.MANY_LABELS
        if unmet:
            raise ValueError(
                f"max_parents: expected None, since other values need {unmet[0]}, got {self.max_parents}"
            )
        return True

    def _keeps_sparse(self, y: Any) -> bool:
        return self._has_few_parents(y)

    def _shared_kernel(self, X: Features, sample_weight: np.ndarray | None) -> SharedKernel:
        """Return the kernel for X (instances, features), with the kernel values of all pairs of instances."""
        kernel = Kernel.of(self, X, sample_weight)
        if self.solver != "dual_coordinate":
            raise ValueError(
                f"solver: expected 'dual_coordinate' with a kernel, got {self.solver!r}: Pegasos has no dual "
                "for a gap, and exponentiated gradient needs all kernel values for each step"
            )
        return SharedKernel(kernel, kernel.gram(X, int(self.cache_size * 2**20)))

    def _inputs(self, X: Features) -> Features:
        """Return X, or with a kernel the inputs Σ_j dual_coef_kj k(x, support_vector_j) for each label k."""
        if self.kernel == "linear":
            return X
        rows = X[:, self.support_] if self.kernel_.is_precomputed else X
        return self.kernel_.expand(rows, self.support_vectors_, self.dual_coef_)


def unfitted_network(base: LMSBNClassifier | None, **settings: Any) -> LMSBNClassifier:
    """Return an unfitted belief network with the parameters of ``base``, changed by ``settings``.

    Args:
        base: a belief network; None for ``LMSBNClassifier()``.
    """
    # Drop the network's rules, because the classifier that holds the network applies them.
    return unfitted(base or LMSBNClassifier()).set_params(constraints=None, **settings)


def network_capabilities(decoder: str, margin: float, limits: dict[str, Any]) -> Capabilities:
    """Return the capabilities of a classifier made of belief networks, whose search supports rules."""
    return Capabilities(
        objective=decoder,
        predicts_by_decode=decoder == "hinge",
        searches_under_rules=True,
        has_probabilities=True,
        restricts_probabilities=True,
        margin=margin,
        limits=limits,
    )
