"""Large-margin sigmoid belief networks as a scikit-learn classifier."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar, Self, cast

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from lmbm_torch import constraints as rules_of
from lmbm_torch import inference
from lmbm_torch.energies import DirectedEnergy
from lmbm_torch.estimators import orderings
from lmbm_torch.estimators.base import Rows
from lmbm_torch.estimators.calibration import CalibratedMixin
from lmbm_torch.estimators.calls import all_or_nothing, of_label_columns, watched
from lmbm_torch.estimators.class_weights import CLASS_WEIGHT
from lmbm_torch.estimators.decoding import LocalHingeClassifier
from lmbm_torch.estimators.few_parents import FewParentsMixin
from lmbm_torch.estimators.kernels import KernelMixin
from lmbm_torch.estimators.network import NetworkClassifier
from lmbm_torch.estimators.partial_fit import PartialFitMixin
from lmbm_torch.estimators.paths import Path
from lmbm_torch.estimators.predictors import CompilingMixin
from lmbm_torch.estimators.settings import (
    CALIBRATE,
    COUNT,
    POSITIVE,
    RELATIVE_PENALTY,
    Constraints,
    StrOptions,
)
from lmbm_torch.estimators.shared_kernels import SharedKernel, Solved
from lmbm_torch.estimators.spreading import keep
from lmbm_torch.estimators.targets import known_tensor, predicted_sparse
from lmbm_torch.estimators.under_rules import Rules
from lmbm_torch.fitting import recipe
from lmbm_torch.fitting.dual import NETWORK_SOLVERS
from lmbm_torch.inference import branch_and_bound, routes
from lmbm_torch.inference.results import Decoding
from lmbm_torch.inference.routes import LIMITS
from lmbm_torch.losses.bounds import directed_threshold, error_bound
from lmbm_torch.models import SigmoidBeliefNetwork
from lmbm_torch.solvers.gram import Gram
from lmbm_torch.solvers.networks import kernel_dual_coordinate
from lmbm_torch.solvers.networks.problems import Features, feature_rows


class LMSBNClassifier(
    PartialFitMixin,
    CompilingMixin,
    FewParentsMixin,
    KernelMixin,
    CalibratedMixin,
    LocalHingeClassifier[DirectedEnergy],
    NetworkClassifier,
):
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
            prefers beyond them where that can be had, see :mod:`~lmbm_torch.estimators.parent_counts`.
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
            :mod:`~lmbm_torch.estimators.calibration`. The decoder ``"hinge"`` ignores it.
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
        calibration_: see :class:`~lmbm_torch.estimators.calibration.CalibratedMixin`.
        classes_: the classes; of label matrices (labels, 2), the two values of each label.
    """

    _accepted: ClassVar[Constraints] = {
        **NetworkClassifier._accepted,
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
        self._fit(X, y, sample_weight)
        return self

    def fit_along(self, path: Path, X: Rows, y: Rows, sample_weight: ArrayLike | None = None) -> Self:
        """:meth:`fit` from the solution of the last fit along this path: same instances, a smaller C."""
        path.known = self._fit(X, y, sample_weight, path.known, path)
        return self

    def _fit(self, X, y, sample_weight, known=None, path: Path | None = None) -> SharedKernel | None:
        """Fit; see :meth:`_fit_valid`."""
        X, labels, sample_weight = self._validate_fit(X, y, sample_weight, allow_missing=True)
        return self._fit_valid(X, labels, sample_weight, known, path or Path())

    def _fit_valid(
        self, X, labels, sample_weight, known: SharedKernel | None, path: Path
    ) -> SharedKernel | None:
        """Learn from valid data; with a kernel, what the next network with it and these instances can use.

        Args:
            known: what the last one has left.
            path: where the ordering comes from, and without a kernel the first duals.
        """
        self.max_parents_ = None
        # What partial_fit has learned is forgotten.
        self.stream_sums_, self.stream_visits_ = None, 0
        if self._has_few_parents(labels):
            self._fit_few_parents(X, labels, sample_weight, path)
            return None
        if self.kernel != "linear":
            if known is None:
                known = SharedKernel(self._resolve_kernel(X, sample_weight), self._gram(X))
            self.kernel_ = known.kernel
        elif self.parent_scale != 1:
            raise ValueError(f"parent_scale: expected 1 with the linear kernel, got {self.parent_scale!r}")
        seed = self._seed()
        # The default ordering is one and the same however often an unseeded fit is repeated.
        is_free = self.random_state is None and isinstance(self.ordering, str)
        folds = 0 if is_free and self.ordering in ("auto", "f_score") else seed
        if known is None:
            # As the solvers walk them, here and where workers keep them.
            inputs = feature_rows(self._scaled(X, sample_weight))
            kept = keep(inputs)
        else:
            inputs, kept = known.gram, None
            self._resolve_penalty(X, sample_weight)
        # With a kernel the network sees every label's kernel expansion.
        width = self.n_features_in_ if known is None else labels.shape[1]
        order = path.ordering
        if order is None:
            common: Any = {"C": self.C_, "sample_weight": sample_weight, "kept": kept}
            order = orderings.chosen(self.ordering, inputs, labels, seed=folds, **common)
        options: dict[str, Any] = {"start": partial(self._first_state, known=known, path=path), "seed": seed}
        if known is not None and known.template is not None:
            model, options["problems"] = known.template.in_order(order)
        else:
            model = SigmoidBeliefNetwork(width, labels.shape[1], order.tolist(), self.degree).double()
            weights = self._label_weights(labels, sample_weight)
            options |= {"parent_scale": self.parent_scale, "sample_weight": weights, "kept": kept}
        problems, state = self._train(model, inputs, labels, **options)
        path.C, path.state, path.ordering = self.C_, state, order
        network = problems.network(state.weights)
        completed = problems.complete(state.weights)
        if known is None:
            self._undo_scaling(model)
            self.coef_ = self._array(model.feature_weight)
            losses = completed.hinge(state.weights)
        else:
            self._keep_support(X, network.features)
            losses = completed.losses(state.fields)
            known = known.after(Solved(model, problems, state))
        self.ordering_ = problems.ordering
        self.intercept_, self.parent_coef_ = self._array(model.bias), network.parents
        self._report(state)
        self._finish(X, labels, sample_weight, float(losses.sum(1).mean()))
        return known

    def _finish(self, X, labels, sample_weight, mean_loss: float) -> None:
        """What a fitted network says of its errors, and its calibration."""
        self.mean_loss_ = mean_loss
        self.threshold_ = directed_threshold(self._hinge_margin)
        # The other rules may prefer a labelling of more loss than the truth's.
        is_hinge = self.decoder == "hinge" or self.binarizer_ is not None
        # No instance loses more at a smaller margin than at that of training.
        is_hinge &= self._hinge_margin <= self.margin
        # Instances whose labels break a rule are decoded wrongly at any loss.
        is_hinge &= self.constraints is None
        self.error_bound_ = error_bound(self.mean_loss_, self.threshold_) if is_hinge else 1.0
        settings = {"ordering": self.ordering_, "max_parents": self.max_parents_}
        self._fit_calibration(X, labels, sample_weight, **settings)

    @watched
    @of_label_columns
    def decode(
        self,
        X: Rows,
        known: ArrayLike | None = None,
        top_k: int = 1,
        constraints: Rules | None = None,
    ) -> Decoding:
        """The ``top_k`` labellings of least hinge loss, with objective, bound, nodes and certificate.

        Args:
            X: (instances, features), dense or CSR.
            known: (instances, labels) of {0, 1, NaN}: outputs that are given already.
            top_k: how many labellings, best first.
            constraints: further rules, for this call, as text or objects.
        """
        energy = self.energy(X)
        return self._decode_energy(energy, known_tensor(known, energy), top_k, self._rules(constraints))

    @property
    def _hinge_margin(self) -> float:
        """γ of decoding."""
        return self.margin if self.decoding_margin is None else self.decoding_margin

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

    def _decode_energy(
        self,
        energy: DirectedEnergy,
        known: Tensor | None = None,
        top_k: int = 1,
        constraints: rules_of.Constraints | None = None,
    ) -> Decoding:
        """:meth:`decode` of an energy, by the settings alone, fitted or not."""
        # With a cutoff the search may pass the best labelling over, which is what was asked for.
        search = partial(branch_and_bound.decode_hinge, cutoff=self.cutoff)
        decode = inference.decode_hinge if self.cutoff is None else search
        limits = {"top_k": top_k, "node_limit": self.node_limit, "constraints": constraints}
        return decode(energy, self._hinge_margin, known=known, **limits)

    def _first_state(self, problems: Any, known: SharedKernel | None, path: Path) -> Any:
        """Where the solver begins; None for at zero."""
        if known is not None and known.solutions:
            return kernel_dual_coordinate.start(problems, known.solutions)
        duals = path.duals(problems, self.C_)
        if duals is None or self.solver == "pegasos":
            return None
        return NETWORK_SOLVERS[self.solver].init(problems, duals)

    def _gram(self, X) -> Gram:
        if self.solver != "dual_coordinate":
            raise ValueError(f"solver: expected 'dual_coordinate' with a kernel, got {self.solver!r}")
        return self.kernel_.gram(X, int(self.cache_size * 2**20))

    def _keep_support(self, X, dual_coef: np.ndarray) -> None:
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
