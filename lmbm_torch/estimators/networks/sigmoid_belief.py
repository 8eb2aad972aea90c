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
from lmbm_torch.estimators.common.calls import all_or_nothing, of_label_columns, watched
from lmbm_torch.estimators.common.kernels import Kernel, relative_penalty
from lmbm_torch.estimators.common.settings import (
    CALIBRATE,
    CLASS_WEIGHT,
    COUNT,
    POSITIVE,
    RELATIVE_PENALTY,
    SHARED,
    Constraints,
    StrOptions,
    check_parameters,
)
from lmbm_torch.estimators.common.targets import (
    is_sparse_and_binary,
    known_tensor,
    predicted_sparse,
    sparse_label_matrix,
)
from lmbm_torch.estimators.decoders.calibration import calibrated, learned_calibration
from lmbm_torch.estimators.decoders.decoding import DecodingClassifier
from lmbm_torch.estimators.decoders.distributions import DECODERS, NetworkMixture, hinge_losses
from lmbm_torch.estimators.networks.few_parents import FewParentsTrainer
from lmbm_torch.estimators.networks.network_training import (
    DenseTrainer,
    KernelTrainer,
    NetworkSettings,
    SharedKernel,
    Trained,
)
from lmbm_torch.estimators.networks.predictors import NetworkPredictor
from lmbm_torch.estimators.networks.streams import StreamTrainer, labels_of_call
from lmbm_torch.fitting import recipe
from lmbm_torch.fitting.dual import NETWORK_SOLVERS, Path
from lmbm_torch.fitting.recipe import Units
from lmbm_torch.inference import routes
from lmbm_torch.inference.results import Decoding
from lmbm_torch.inference.routes import LIMITS
from lmbm_torch.inference.search import branch_and_bound
from lmbm_torch.inference.search.branch_and_bound import HingeSearch
from lmbm_torch.losses.bounds import directed_threshold, error_bound
from lmbm_torch.protocol import Capabilities
from lmbm_torch.solvers.networks.problems import Features

# Labels beyond which "auto" chooses parents.
MANY_LABELS = 128


def _is_linear(estimator: LMSBNClassifier) -> bool:
    """Raise AttributeError, as scikit-learn's estimators that cannot learn so do, unless it is."""
    if estimator.kernel != "linear":
        raise AttributeError(f"partial_fit: expected kernel='linear', got {estimator.kernel!r}")
    return True


class LMSBNClassifier(DecodingClassifier[DirectedEnergy]):
    """A large-margin sigmoid belief network, linear or with a kernel, decoded exactly (lmbm_and_lmsbn_2010).

    Training minimises ½‖w‖² + C Σ_l Σ_i [γ − m_il]_+, intercepts regularised like other weights; prediction
    is the labelling of least hinge loss Σ_i [γ − m_i]_+, found by branch and bound and proven.

    Args:
        C: weight of the losses: a number, for features as they are; or ``"scale"`` or a multiple such as
            ``"0.3*scale"``, see :func:`~lmbm_torch.fitting.recipe.units`; of a kernel relative to
            the mean of k(x, x), where one with a name sees features in those units.
        kernel: ``"linear"``, ``"rbf"``, ``"poly"``, ``"precomputed"`` (X holds the values with the training
            instances), or a function of two sets of features that returns their matrix of values. All but the
            linear one are solved in the dual, for the joint kernel k(x, x') + 1 + c ⟨s_pa, s'_pa⟩.
        gamma: of ``rbf`` and ``poly``; 1/(2σ²) for a bandwidth σ. ``"scale"`` is 1 / (features · variance of
            all entries of X), ``"auto"`` 1 / features, as in scikit-learn's support vector machines.
        kernel_degree, coef0: of ``poly``, (gamma ⟨x, x'⟩ + coef0)^kernel_degree.
        parent_scale: c; 1 with the linear kernel, where the scale of the features serves.
        ordering: ``"f_score"`` (labels that independent classifiers predict best first), ``"frequency"``
            (those of most instances), ``"index"``, ``"random"``, or a permutation whose entry t is the label
            at position t; ``"auto"``: ``"frequency"`` where parents are chosen, else ``"f_score"``.
        degree: size of the largest cliques of labels; 1 makes the labels independent, 2 gives each label all
            labels before it as parents.
        max_parents: at most so many labels before it are each label's parents, chosen by the dual's gradient,
            see :mod:`~lmbm_torch.solvers.networks.chosen_parents`; linear kernel, degree 2, dual coordinate
            descent and no missing labels only. Blocks of labels are learned wherever joblib's active backend
            says. None for all; ``"auto"`` for all up to 128 labels, and for as many as cross-validation
            prefers beyond them where that can be had, see :mod:`~lmbm_torch.estimators.networks.few_parents`.
        margin: γ.
        decoding_margin: γ of decoding, None for ``margin``. Smaller ones come closer to what a chain answers
            label by label, which of hundreds of rare labels finds more.
        solver: ``"dual_coordinate"``, ``"exponentiated_gradient"`` or ``"pegasos"``.
        tol: relative duality gap at which training ends.
        max_iter: passes at which training ends even above ``tol``, with a ConvergenceWarning.
        cutoff: S, give up labellings that cost S right branches or more.
        node_limit: end an instance's search after so many nodes, a tenth of a second to a second for the
            default; None for never, which can last for hours with a thousand labels. ``predict`` warns of
            such an end.
        decoder: what :meth:`predict` optimises: ``"hinge"``, the papers' least hinge loss; or the expectation
            under the labels' joint distribution of ``"exact_match"`` (the most probable labelling),
            ``"hamming"``, ``"f1"`` or ``"jaccard"``. Of label matrices only: classes are decoded among
            themselves, by the hinge loss.
        sparse_output: whether :meth:`predict` returns label matrices in {0, 1} as CSR, made of some rows at a
            time.
        class_weight: multiplies C for instances by their label: ``"balanced"`` (instances / (2 · instances
            with that value), label by label), weights by value {0: …, 1: …}, or a sequence of these, one a
            label.
        calibrate: whether to calibrate probabilities, of labels and of whole labellings, see
            :mod:`~lmbm_torch.estimators.decoders.calibration`. The decoder ``"hinge"`` ignores it.
        cache_size: MiB in which the kernel values of all pairs are kept in training, where they fit.
        device: where predictions but for searches are computed, such as ``"cpu"`` or ``"cuda"``.
            It serves prediction alone: the dual solver trains on the CPU.
        verbose: 1 for a bar with the gap so far (needs rich), 0 for silence.
        random_state: of the solver's order of visits, the random ordering, folds and samples.
        constraints: rules that all answers obey, as text or objects (:mod:`lmbm_torch.constraints`), over the
            columns of ``y``; training looks at none, for each label has a problem of its own.

    Attributes:
        ordering_: (labels,).
        C_: the weight of the losses; feature_shift_, feature_scale_: (features,), training is on
            (X − shift) / scale; 0 and 1 for a number C.
        coef_: (labels, features), of the linear kernel.
        dual_coef_: (labels, support vectors), of any other: α_lk s_lk.
        support_: (support vectors,), the training instances that any label needs; support_vectors_: their
            features, not for ``precomputed``.
        intercept_: (labels,).
        parent_coef_: (labels, labels), row i the weights of label i's parents; max_parents_: so many at most,
            None where all labels before it are.
        objective_: the value of the training objective; duality_gap_: relative to it, of all labels together.
        n_iter_: passes of the solver.
        mean_loss_: the mean hinge loss of the training instances, missing labels completed by the network's
            own prediction, whose loss counts too.
        threshold_: T = γ of decoding, the least loss of an instance that is decoded wrongly (Remark 6).
        error_bound_: mean_loss_ / T, at most 1: no larger share of the training instances is decoded wrongly
            (Theorem 4) by the hinge decoder, whose searches end by themselves; with missing labels, wrong is
            what differs from the completed labels. 1 for the other decoders, for constraints and for a larger
            margin of decoding than of training, of which nothing is known.
        calibration_: the :class:`~lmbm_torch.calibration.scales.Calibration`; None without.
        kernel_: the kernel, with gamma as resolved.
        classes_: the classes; of label matrices (labels, 2), the two values of each label.
    """

    _accepted: ClassVar[Constraints] = {
        **SHARED,
        "decoder": [StrOptions({*DECODERS})],
        "C": RELATIVE_PENALTY,
        "ordering": [StrOptions({"auto", "f_score", "frequency", "index", "random"}), "array-like"],
        "max_parents": [StrOptions({"auto"}), COUNT, None],
        "sparse_output": ["boolean"],
        "solver": [StrOptions({*NETWORK_SOLVERS})],
        "calibrate": CALIBRATE,
        "decoding_margin": [POSITIVE, None],
        "class_weight": CLASS_WEIGHT,
        "cutoff": [POSITIVE, None],
        "cache_size": [POSITIVE],
    }
    # What partial_fit has learned: see :class:`~lmbm_torch.estimators.networks.streams.StreamTrainer`.
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

    @watched
    @all_or_nothing
    def fit(self, X: Rows, y: Rows, sample_weight: ArrayLike | None = None) -> Self:
        """Learn from features (instances, features), dense or CSR, and labels (instances, labels).

        Args:
            X: finite features.
            y: {0, 1} and NaN (missing: its loss is left out, and its value for other labels is imputed by
                its own prediction); or one class per instance.
            sample_weight: (instances,), multiplies C.

        Raises:
            ValueError: a setting or an input that is not as described; the message names it.
        """
        return self._fit_along(Path(), X, y, sample_weight)

    @available_if(_is_linear)
    @all_or_nothing
    def partial_fit(
        self,
        X: Rows,
        y: Any,
        classes: Sequence[Any] | np.ndarray | None = None,
        sample_weight: ArrayLike | None = None,
        *,
        epoch_size: int | None = None,
    ) -> Self:
        """One pass of Pegasos over these instances, behind those of all calls since the first or ``fit``.

        Thirty passes over the same instances come within 1 to 4 % of the objective that ``fit`` minimises
        (measured on 600 digits); ``solver``, ``tol`` and ``max_iter`` play no part. The first call
        decides on the ordering (``"auto"`` is ``"index"`` here) and on the units that ``C`` counts in. Every
        label has all labels before it as parents.
        ``mean_loss_`` and ``error_bound_`` speak of the last call's instances.

        Args:
            X: (instances, features), dense or CSR, as many features as at the first call.
            y: (instances, labels) in {0, 1}, or one class per instance.
            classes: at the first call all classes, by default those of an earlier ``fit``, or the names of
                the labels of a matrix (optional).
            sample_weight: (instances,), multiplies C.
            epoch_size: at the first call the instances of an epoch, whose losses C weighs; by default those
                of the first call. Mini-batches need it: C would otherwise count one of them alone.

        Raises:
            AttributeError: another kernel than the linear one.
            ValueError: missing labels, ``max_parents``, ``class_weight`` or ``calibrate``, other classes or
                widths than at the first call.
        """
        self._check_settings()
        if self.max_parents not in ("auto", None):
            raise ValueError(f"max_parents: expected 'auto' or None for partial_fit, got {self.max_parents}")
        if self.class_weight is not None or self.calibrate:
            raise ValueError(
                "class_weight, calibrate: expected none for partial_fit, which sees no whole data"
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
        self._take(trained)
        self._finish(X, labels, weights)
        return self

    def _fit_along(self, path: Path, X: Rows, y: Rows, sample_weight: ArrayLike | None = None) -> Self:
        """:meth:`fit` from the solution of the last fit along this path: same instances, a smaller C."""
        path.known = self._fit_valid(*self._validate_fit(X, y, sample_weight, allow_missing=True), path)
        return self

    def _fit_valid(
        self, X: Features, labels: Any, sample_weight: np.ndarray | None, path: Path
    ) -> SharedKernel | None:
        """Learn from valid data; with a kernel, what the next network with it and these instances can use.

        Args:
            path: where the ordering comes from, and without a kernel the first duals; with one what the last
                network has left.
        """
        # What partial_fit has learned is forgotten.
        self._stream_sums, self._stream_visits = None, 0
        if self._has_few_parents(labels):
            inputs = self._scaled(X, sample_weight)
            weights = self._label_weights_of(labels, sample_weight)
            few = FewParentsTrainer(self._settings, cast("int | str", self.max_parents))
            trained = few.train(inputs, labels, sample_weight, weights, path)
        elif self.kernel == "linear":
            if self.parent_scale != 1:
                raise ValueError(
                    f"parent_scale: expected 1 with the linear kernel, got {self.parent_scale!r}"
                )
            inputs = self._scaled(X, sample_weight)
            weights = self._label_weights(labels, sample_weight)
            trained = DenseTrainer(self._settings).train(inputs, labels, sample_weight, weights, path)
        else:
            known = self._shared_kernel(X, sample_weight) if path.known is None else path.known
            self.kernel_ = known.kernel
            self.feature_shift_, self.feature_scale_ = self.kernel_.shift, self.kernel_.scale
            self.C_ = relative_penalty(self.C, self.kernel_, X, sample_weight)
            weights = None if known.template else self._label_weights(labels, sample_weight)
            trainer = KernelTrainer(self._settings, self.parent_scale)
            trained = trainer.train(known, labels, sample_weight, weights, path)
            self._keep_support(X, cast(np.ndarray, trained.dual_coef))
        self._take(trained)
        self.objective_, self.duality_gap_ = trained.objective, trained.gap
        self._warn_unless_reached(trained.gap)
        self._finish(X, labels, sample_weight)
        return trained.shared

    @property
    def _settings(self) -> NetworkSettings:
        return NetworkSettings(
            C=self.C_,
            margin=self.margin,
            degree=self.degree,
            solver=self.solver,
            ordering=self.ordering,
            tol=self.tol,
            max_iter=self.max_iter,
            draw_seed=self._seed,
            is_seeded=self.random_state is not None,
            name=type(self).__name__,
            verbose=self.verbose,
        )

    def _take(self, trained: Trained) -> None:
        """Make what was trained the fitted network."""
        self.model_ = self._on_device(trained.model)
        self.ordering_, self.max_parents_ = trained.ordering, trained.max_parents
        if self.kernel == "linear":
            self._undo_scaling(self.model_)
            self.coef_ = self._array(self.model_.feature_weight)
        self.intercept_, self.parent_coef_ = self._array(self.model_.bias), trained.parents
        self.n_iter_, self.mean_loss_ = trained.num_iters, trained.mean_loss

    def _finish(self, X: Features, labels: Any, sample_weight: np.ndarray | None) -> None:
        """Note what the fitted network says of its errors, and its calibration."""
        self.threshold_ = directed_threshold(self._hinge_margin)
        # The other rules may prefer a labelling of more loss than the truth's.
        is_hinge = self.decoder == "hinge" or self.binarizer_ is not None
        # No instance loses more at a smaller margin than at that of training.
        is_hinge &= self._hinge_margin <= self.margin
        # Instances whose labels break a rule are decoded wrongly at any loss.
        is_hinge &= self.constraints is None
        self.error_bound_ = error_bound(self.mean_loss_, self.threshold_) if is_hinge else 1.0
        if self.calibrate:
            settings = {"ordering": self.ordering_, "max_parents": self.max_parents_}
            found = learned_calibration(self, self.calibrate, X, labels, sample_weight, **settings)
        else:
            found = None
        self.calibration_ = found

    @property
    def capabilities(self) -> Capabilities:
        """See :class:`~lmbm_torch.protocol.Capabilities`."""
        return network_capabilities(self.decoder, self._hinge_margin, {"node_limit": self.node_limit})

    def calibrated(self, energies: Sequence[DirectedEnergy]) -> list[DirectedEnergy]:
        """The energies whose equal mixture gives the probabilities, two of each of a joint calibration."""
        return calibrated(self.calibration_, energies)

    @watched
    @of_label_columns
    def predict(self, X: Rows, known: ArrayLike | None = None) -> Any:
        """Labels (instances, labels) in {0, 1}, or classes where ``fit`` was given classes.

        Warns of searches that were ended before their proof; :meth:`predict_decoding` says which.

        Args:
            X: (instances, features), dense or CSR.
            known: (instances, labels) of {0, 1, NaN}: outputs that are given already; label matrices only.
        """
        if not hasattr(self, "model_"):
            check_is_fitted(self)
        if self.sparse_output and self.binarizer_ is None:
            return predicted_sparse(self._predict, X, known, self.classes_)
        return self._predict(X, known)

    def predict_decoding(self, X: Rows, known: ArrayLike | None = None) -> Decoding:
        """The labels of :meth:`predict` for label matrices; their objective is what ``decoder`` names."""
        if self.decoder == "hinge":
            return self.decode(X, known=known)
        return decode_expected(self, self.decoder, X, known)

    def compile_predictor(self) -> NetworkPredictor:
        """The fitted decoder as a few NumPy arrays, which a server can keep or pickle.

        Raises:
            ValueError: a kernel, another decoder than the hinge, constraints, classes instead of label
                matrices, another device than the CPU, or no compiled search.
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
        found = self._predictor().decode_checked(X)
        rows = np.flatnonzero(~found.converged)
        if len(rows) and self._has_tree:
            again = self._decode_energy(self._energy(X[rows]))
            found.labels[rows], found.converged[rows] = again.labels, again.status.converged
        self._warn_of_ends(found.converged)
        return self._values(found.labels)

    def _why_not_compiled(self) -> str:
        """The requirements of a compiled predictor that are not met; none if it can be had."""
        if self.kernel != "linear":
            return f"kernel='linear', got {self.kernel!r}"
        if self.decoder != "hinge":
            return f"decoder='hinge', got {self.decoder!r}"
        if self.constraints is not None:
            return f"constraints=None, got {self.constraints!r}"
        if self.binarizer_ is not None:
            return "an estimator that was fitted to label matrices, got one fitted to classes"
        if self.device not in ("cpu", torch.device("cpu")):
            return f"device='cpu', got {self.device!r}"
        return "" if HingeSearch.is_compiled() else "numba to be installed"

    def _predictor(self) -> NetworkPredictor:
        """The decoder, which shares the memory of the model's weights of features."""
        limits = {"cutoff": self.cutoff, "node_limit": self.node_limit}
        names = cast("tuple[str, ...]", self.label_names_)
        return NetworkPredictor.of(self.model_, names, margin=self._hinge_margin, **limits)

    @property
    def _has_tree(self) -> bool:
        """Whether what a search leaves open has a proof by a junction tree."""
        if self.cutoff is not None or len(self.intercept_) <= LIMITS.narrow:
            return False
        # Seen at once, where an energy takes longer than a row's search.
        if np.count_nonzero(self.parent_coef_, axis=1).max() > LIMITS.treewidth:
            return False
        couplings = self._energy(np.zeros((1, self.n_features_in_)))
        return routes.is_narrow(couplings, "decode_hinge")

    @property
    def _hinge_margin(self) -> float:
        """γ of decoding."""
        return self.margin if self.decoding_margin is None else self.decoding_margin

    def _decode_energy(
        self,
        energy: DirectedEnergy,
        known: Tensor | None = None,
        top_k: int = 1,
        rules: rules_of.Constraints | None = None,
    ) -> Decoding:
        """:meth:`decode` of an energy, by the settings alone, fitted or not."""
        # With a cutoff the search may pass the best labelling over, which is what was asked for.
        search = partial(branch_and_bound.decode_hinge, cutoff=self.cutoff)
        decode = inference.decode_hinge if self.cutoff is None else search
        limits = {"top_k": top_k, "node_limit": self.node_limit, "constraints": rules}
        return decode(energy, self._hinge_margin, known=known, **limits)

    def _distribution(self, energies: Sequence[DirectedEnergy]) -> NetworkMixture:
        return NetworkMixture(energies, self._seed)

    def _code_losses(self, X: Rows, codes: Tensor) -> Tensor:
        return hinge_losses(self.energies(X), codes, self._hinge_margin)

    def _has_few_parents(self, labels: Any) -> bool:
        """Whether each label sees a few parents that are chosen for it, not all labels before it.

        Args:
            labels: (instances, labels), dense or sparse.

        Raises:
            ValueError: a number of parents with settings or labels that need all of them.
        """
        if self.max_parents is None:
            return False
        reasons = {
            "the linear kernel": self.kernel == "linear",
            "degree=2": self.degree == 2,
            "solver='dual_coordinate'": self.solver == "dual_coordinate",
            "no missing labels": sparse.issparse(labels) or not np.isnan(labels).any(),
        }
        unmet = [reason for reason, is_met in reasons.items() if not is_met]
        if self.max_parents == "auto":
            return not unmet and labels.shape[1] > MANY_LABELS
        if unmet:
            raise ValueError(f"max_parents: expected None without {unmet[0]}, got {self.max_parents}")
        return True

    def _label_weights_of(self, labels: Any, sample_weight: np.ndarray | None) -> np.ndarray | None:
        """See ``_label_weights``, of labels that may be sparse."""
        is_read = self.class_weight is not None and sparse.issparse(labels)
        return self._label_weights(labels.toarray() if is_read else labels, sample_weight)

    def _encode(self, y: Any) -> Any:
        """Sparse label matrices in {0, 1} stay sparse where parents are chosen."""
        if not is_sparse_and_binary(y) or not self._has_few_parents(y):
            return super()._encode(y)
        labels = sparse_label_matrix(y)
        width: int = labels.shape[1]  # pyright: ignore[reportOptionalSubscript]
        self.classes_ = np.tile([0, 1], (width, 1))
        self._note_labels(width)
        return labels

    def _shared_kernel(self, X: Features, sample_weight: np.ndarray | None) -> SharedKernel:
        """The kernel, and its values between instances (instances, features)."""
        kernel = Kernel.of(self, X, sample_weight)
        if self.solver != "dual_coordinate":
            raise ValueError(f"solver: expected 'dual_coordinate' with a kernel, got {self.solver!r}")
        return SharedKernel(kernel, kernel.gram(X, int(self.cache_size * 2**20)))

    def _keep_support(self, X: Features, dual_coef: np.ndarray) -> None:
        """Keep the instances that any label needs; one where none is needed."""
        self.support_ = np.flatnonzero(dual_coef.any(0)) if dual_coef.any() else np.array([0])
        self.support_vectors_ = None if self.kernel_.is_precomputed else X[self.support_]
        self.dual_coef_ = np.ascontiguousarray(dual_coef[:, self.support_])

    def _inputs(self, X: Features) -> Features:
        """The features, or with a kernel Σ_j dual_coef_kj k(x, support_vector_j), (instances, labels)."""
        if self.kernel == "linear":
            return X
        rows = X[:, self.support_] if self.kernel_.is_precomputed else X
        return self.kernel_.expand(rows, self.support_vectors_, self.dual_coef_)


def unfitted_network(base: LMSBNClassifier | None, **settings: Any) -> LMSBNClassifier:
    """Return a network to fit like the ``base`` of a classifier of several fits, with other ``settings``.

    Args:
        base: None for ``LMSBNClassifier()``.
    """
    # Their rules are those of the whole.
    return unfitted(base or LMSBNClassifier()).set_params(constraints=None, **settings)


def network_capabilities(decoder: str, margin: float, limits: dict[str, Any]) -> Capabilities:
    """Return what a classifier of belief networks can do, whose search has rules inside."""
    return Capabilities(
        objective=decoder,
        predicts_by_decode=decoder == "hinge",
        searches_under_rules=True,
        has_probabilities=True,
        restricts_probabilities=True,
        margin=margin,
        limits=limits,
    )


def decode_expected(
    classifier: DecodingClassifier[DirectedEnergy], measure: str, X: Rows, known: ArrayLike | None
) -> Decoding:
    """Return the labels of largest expected measure under the networks of a fitted classifier.

    Args:
        known: (instances, labels) of {0, 1, NaN}: outputs that are given already.
    """
    check_parameters(classifier)
    energies = classifier.calibrated(classifier.energies(X))
    given, limits = known_tensor(known, energies[0]), classifier.capabilities.limits
    return NetworkMixture(energies, classifier._seed).decode(measure, given, classifier.rules, limits)
