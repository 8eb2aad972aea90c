"""Linear chains as classifiers of sequences: conditional random fields and max-margin Markov networks."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np

from lmbm_torch.constraints.transitions import SCHEMES
from lmbm_torch.energies import ChainEnergy
from lmbm_torch.estimators.chains.base import (
    ProbabilisticSequenceClassifier,
    Rows,
    SequenceClassifier,
    by_position,
    train_likelihood,
)
from lmbm_torch.estimators.chains.kernel_likelihood import fit_kernel
from lmbm_torch.estimators.chains.max_margin import row_scores, train_max_margin
from lmbm_torch.estimators.chains.tag_sets import Tags, label_rows, steps_of
from lmbm_torch.estimators.common.calls import fit_call
from lmbm_torch.estimators.common.settings import (
    KERNELS,
    RELATIVE_PENALTY,
    SHARED,
    Constraints,
    Number,
    StrOptions,
)
from lmbm_torch.fitting.recipe import merged
from lmbm_torch.solvers.chains.linear import LikelihoodProblem, PartialLikelihoodProblem
from lmbm_torch.solvers.networks.problems import Features

# Allowed values of ``constraints``: the name of a scheme of tags, pairs of classes, or None.
TRANSITIONS = [StrOptions(SCHEMES), "array-like", None]


class ChainCRF(ProbabilisticSequenceClassifier):
    """A linear-chain conditional random field (max_margin_markov_networks_survey_2003, section 4.2).

    Training minimises ½‖w‖² − C Σ log p(y | x) by L-BFGS; intercepts and transitions are regularised like
    other weights. Prediction is the most probable labelling.

    Args:
        C: weight of the losses, a number or a multiple of ``"scale"`` such as ``"0.3*scale"``, see
            :func:`~lmbm_torch.fitting.recipe.units`.
        c1: weight of ‖w‖₁ relative to the losses, as CRFsuite's c1; with c1 above 0 many weights become 0.
        c2: weight of ‖w‖² relative to the losses, as CRFsuite's c2; replaces ``C`` by C = 1 / (2 c2).
        kernel, gamma, kernel_degree, coef0: see :class:`ChainSVM`. All kernels but the linear kernel are
            trained in the dual (dual_optimization_conditional_models_2006), which suits up to some hundred
            sequences. ``c1`` must then be 0, and ``tol`` is a relative duality gap.
        min_freq: features of tokens that occur in fewer tokens are left out.
        all_possible_transitions: False to learn only transitions between classes that are neighbours
            somewhere in training; unseen transitions keep weight 0, and remain possible.
        constraints: a scheme of tags (``"BIO"``, ``"IOB1"``, ``"BIOES"``) or allowed pairs of classes, see
            :func:`~lmbm_torch.constraints.allowed_transitions`. Sequences that break the constraints have
            probability 0, in training and in predictions.
        tol: training ends if the norm of the gradient, relative to the norm at zero weights, and the relative
            gain of an iteration are at most ``tol``.
        max_iter: iterations after which training ends even above ``tol``, with a ConvergenceWarning.
        device: device of predictions except linear scores, such as ``"cpu"`` or ``"cuda"``.
        verbose: 1 for a progress bar with the gap (needs rich), 0 for none.

    Attributes:
        classes_: the classes; n_features_in_: the number of features of a position.
        C_: the weight of the losses; feature_shift_, feature_scale_: (features,), training is on (X − shift)
            / scale; 0 and 1 if C is a number.
        coef_: (classes, features), for the linear kernel; intercept_: (classes,).
        dual_coef_: (classes, positions), X_fit_: (positions, features); for nonlinear kernels.
        transition_: (classes, classes), scores from the row's class to the column's class.
        objective_: the value of the training objective; relative_gradient_: the norm of the gradient relative
            to the norm at zero weights; duality_gap_: an upper bound of the relative distance to the optimum,
            loose for a large C; n_iter_: number of iterations of L-BFGS.

    Examples:
        >>> from lmbm_torch.estimators import ChainCRF
        >>> import numpy as np
        >>> X, y = [np.array([[0.0], [1.0]]), np.array([[2.0], [3.0]])], [[0, 0], [1, 1]]
        >>> ChainCRF().fit(X, y).predict(X)
        [array([0, 0]), array([1, 1])]
    """

    _accepted: ClassVar[Constraints] = {
        **SHARED,
        "C": RELATIVE_PENALTY,
        "kernel": [StrOptions(KERNELS), callable],
        "c1": [Number(Real, 0, None, closed="left")],
        "c2": [Number(Real, 0, None, closed="neither"), None],
        "min_freq": [Number(Integral, 1, None, closed="left")],
        "all_possible_transitions": ["boolean"],
        "constraints": TRANSITIONS,
    }

    def __init__(
        self,
        C: float | str = 1.0,
        *,
        c1=0.0,
        c2=None,
        kernel="linear",
        gamma="scale",
        kernel_degree=3,
        coef0=1.0,
        min_freq=1,
        all_possible_transitions=True,
        constraints=None,
        tol=1e-3,
        max_iter=500,
        device="cpu",
        verbose=0,
    ):
        self.C = C
        self.c1 = c1
        self.c2 = c2
        self.kernel = kernel
        self.gamma = gamma
        self.kernel_degree = kernel_degree
        self.coef0 = coef0
        self.min_freq = min_freq
        self.all_possible_transitions = all_possible_transitions
        self.constraints = constraints
        self.tol = tol
        self.max_iter = max_iter
        self.device = device
        self.verbose = verbose

    @fit_call
    def fit(self, X, y, sample_weight=None):
        """Train on sequences (length, features) with a class for each position, (length,).

        A position's class may be unknown, None or NaN, or partly known, a set of possible classes. Training
        then maximises the total probability of all possible label sequences, which is not a concave problem;
        ``duality_gap_`` is NaN.

        Args:
            sample_weight: (sequences,), factors of C.

        Raises:
            ValueError: a parameter or input is invalid (the message names it), or constraints forbid classes.
        """
        if self.kernel != "linear":
            for name, usual in {"c1": 0, "constraints": None, "all_possible_transitions": True}.items():
                given = getattr(self, name)
                if isinstance(given, np.ndarray) or given != usual:
                    raise ValueError(f"{name}: expected {usual} with a kernel, got {given!r}")
            fit_kernel(self, X, y, sample_weight)
            return self
        rows = self._fit_rows(X)
        lengths = np.diff(rows.start)
        tags = Tags.of(label_rows(y, lengths.tolist()))
        if tags.mask is not None and not self.all_possible_transitions:
            raise ValueError("all_possible_transitions: expected True with partly known classes, got False")
        self.classes_ = tags.classes
        steps = steps_of(self.classes_, self.constraints)
        codes = tags.labelling(lengths, steps)
        weights = self._weights(sample_weight, rows.start[1:])
        scaled = self._scaled(rows.features, by_position(weights, rows.start))
        # Merge equal columns only without c1: such columns have equal weights at the least ‖w‖² only.
        inputs, back = merged(scaled) if self.c1 == 0 else (scaled, None)
        given: Any = (inputs, codes, rows.start, len(self.classes_), self.C_, weights, steps)
        problem = LikelihoodProblem(*given, learns_all_steps=self.all_possible_transitions)
        if tags.mask is not None:
            problem = PartialLikelihoodProblem(*given, allowed_labels=tags.mask)
        features, transition = train_likelihood(self, problem, absolute=self.c1 * self.C_)
        if tags.mask is not None:
            self.duality_gap_ = float("nan")
        coef = features[:, :-1] if back is None else features[:, :-1] @ back
        self.coef_, self.intercept_ = self._of_features(coef, features[:, -1])
        self.transition_ = transition.reshape(len(self.classes_), -1).copy()
        return self

    def _energy(self, rows: Rows) -> ChainEnergy:
        return self._chains(row_scores(self, rows.features), self.transition_, rows)

    @property
    def state_features_(self) -> dict[tuple[str, Any], float]:
        """The non-zero weights of features, by (feature name, class), as in sklearn-crfsuite."""
        names = getattr(self, "feature_names_in_", None)
        if names is None:
            names = [f"x{column}" for column in range(self.n_features_in_)]
        tags = self.classes_.tolist()
        return {
            (names[column], tags[label]): float(self.coef_[label, column])
            for label, column in zip(*np.nonzero(self.coef_), strict=True)
        }

    @property
    def transition_features_(self) -> dict[tuple[Any, Any], float]:
        """The non-zero weights of transitions, by (class, next class), as in sklearn-crfsuite."""
        tags = self.classes_.tolist()
        return {
            (tags[before], tags[after]): float(self.transition_[before, after])
            for before, after in zip(*np.nonzero(self.transition_), strict=True)
        }

    def _scaled(self, X: Features, sample_weight: np.ndarray | None) -> Features:
        if self.c2 is None:
            return super()._scaled(X, sample_weight)
        self.C_, self.feature_shift_, self.feature_scale_ = 1 / (2 * self.c2), 0.0, 1.0
        return X


class ChainSVM(SequenceClassifier):
    """A max-margin Markov network of chains (Taskar, Guestrin and Koller 2003), linear or with a kernel.

    Training minimises ½‖w‖² + C Σ max_y [Hamming(y_l, y) + score(x_l, y) − score(x_l, y_l)]
    (max_margin_markov_networks_survey_2003, Equation 37, whose C is n times this C). Intercepts and
    transitions are regularised like other weights. For the solvers see
    :func:`~lmbm_torch.estimators.chains.max_margin.train_max_margin`.

    Args:
        C: weight of the losses, a number or a multiple of ``"scale"`` such as ``"0.3*scale"``, see
            :func:`~lmbm_torch.fitting.recipe.units`; with a kernel relative to the mean of k(x, x).
        kernel: ``"linear"``, ``"poly"``, ``"rbf"``, or a function of two feature matrices that returns the
            kernel values; all but the linear kernel need memory for the values of all pairs of training
            positions.
        gamma, kernel_degree, coef0: see :class:`~lmbm_torch.estimators.LMSBNClassifier`.
        coupling_penalty: a factor of the squared transitions in ‖w‖².
        constraints: allowed pairs of classes, as in :class:`ChainCRF`.
        tol: relative duality gap at which training ends.
        max_iter: iterations after which training ends even above ``tol``, with a ConvergenceWarning.
        device: device of the kernel values of dense features and of predictions except linear scores, such as
            ``"cpu"`` or ``"cuda"``.
        verbose: 1 for a progress bar with the gap (needs rich), 0 for none.
        random_state: seed of the order in which the solver visits sequences.

    Attributes:
        classes_: the classes; n_features_in_: the number of features of a position.
        C_: the weight of the losses; feature_shift_, feature_scale_: (features,), training is on (X − shift)
            / scale; 0 and 1 if C is a number.
        transition_: (classes, classes), scores from the row's class to the column's class.
        intercept_: (classes,).
        coef_: (classes, features), for the linear kernel.
        dual_coef_: (classes, positions), X_fit_: (positions, features); for nonlinear kernels.
        objective_: the value of the training objective; duality_gap_: the duality gap relative to the
            objective; n_iter_: number of passes, or of iterations of L-BFGS.

    Examples:
        >>> from lmbm_torch.estimators import ChainSVM
        >>> import numpy as np
        >>> X, y = [np.array([[0.0], [1.0]]), np.array([[2.0], [3.0]])], [[0, 0], [1, 1]]
        >>> ChainSVM(random_state=0).fit(X, y).predict(X)
        [array([0, 0]), array([1, 1])]
    """

    _accepted: ClassVar[Constraints] = {
        **SHARED,
        "C": RELATIVE_PENALTY,
        "kernel": [StrOptions(KERNELS), callable],
        "constraints": TRANSITIONS,
    }

    def __init__(
        self,
        C: float | str = 1.0,
        *,
        kernel="linear",
        gamma="scale",
        kernel_degree=3,
        coef0=1.0,
        coupling_penalty=1.0,
        constraints=None,
        tol=1e-3,
        max_iter=1000,
        device="cpu",
        verbose=0,
        random_state=None,
    ):
        self.C = C
        self.kernel = kernel
        self.gamma = gamma
        self.kernel_degree = kernel_degree
        self.coef0 = coef0
        self.coupling_penalty = coupling_penalty
        self.constraints = constraints
        self.tol = tol
        self.max_iter = max_iter
        self.device = device
        self.verbose = verbose
        self.random_state = random_state

    @fit_call
    def fit(self, X, y, sample_weight=None):
        """Train on sequences (length, features) with a class for each position, (length,).

        Args:
            sample_weight: (sequences,), factors of C.

        Raises:
            ValueError: a parameter or input is invalid (the message names it), or constraints forbid classes.
        """
        rows, codes = self._validate_fit(X, y)
        weights = self._weights(sample_weight, rows.start[1:])
        options: dict[str, Any] = {"coupling_penalty": self.coupling_penalty, "sample_weight": weights}
        steps = steps_of(self.classes_, self.constraints)
        if steps is not None:
            Tags(self.classes_, codes, None).labelling(np.diff(rows.start), steps)
            options["allowed"] = steps
        self.transition_ = train_max_margin(self, rows.features, codes, rows.start, **options)
        return self

    def _energy(self, rows: Rows) -> ChainEnergy:
        return self._chains(row_scores(self, rows.features), self.transition_, rows)
