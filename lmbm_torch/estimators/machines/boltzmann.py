"""Large-margin Boltzmann machines as a scikit-learn classifier."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from lmbm_torch import constraints as rules_of
from lmbm_torch import inference
from lmbm_torch.energies import CliqueEnergy, PairwiseEnergy, TiedCliques
from lmbm_torch.estimators.common.base import Rows
from lmbm_torch.estimators.common.calls import fit_call
from lmbm_torch.estimators.common.decoders.calibration import learned_calibration
from lmbm_torch.estimators.common.decoders.completion import learn_along
from lmbm_torch.estimators.common.decoders.decoding import DecodingClassifier, routine, several
from lmbm_torch.estimators.common.settings import (
    CALIBRATE,
    CLASS_WEIGHT,
    RELATIVE_PENALTY,
    SHARED,
    Constraints,
    StrOptions,
)
from lmbm_torch.fitting import recipe
from lmbm_torch.fitting.completion import observed_weights
from lmbm_torch.fitting.dual import MACHINE_SOLVERS, Path, dual_problem, fit_dual
from lmbm_torch.inference.common.results import Decoding
from lmbm_torch.inference.under_rules import constrained
from lmbm_torch.losses.bounds import error_bound, undirected_threshold
from lmbm_torch.losses.structured import local_hinge
from lmbm_torch.models import BoltzmannMachine
from lmbm_torch.protocol import Capabilities
from lmbm_torch.solvers.networks.problems import Features


class LMBMClassifier(DecodingClassifier[PairwiseEnergy | CliqueEnergy]):
    """A large-margin Boltzmann machine (large_margin_boltzmann_machines_2009).

    Training minimises ½ Σ_j η_j w_j² + C Σ_l Σ_i [γ − m_il]_+, where m_il is the margin of label i in
    instance l. η_j is ``coupling_penalty`` for weights of two or more labels and 1 for other weights;
    intercepts are regularised, too. The prediction is the label set with the smallest hinge loss Σ_i [γ −
    m_i]_+ (problem 3.4), not the most probable label set.

    Args:
        C: weight of the losses, U in the paper: a number or a multiple of ``"scale"`` such as
            ``"0.3*scale"``, see :func:`~lmbm_torch.fitting.recipe.units`; a number with ``clique_features``.
        coupling_penalty: η0 > 0, a number or a multiple of ``"scale"``, which is half of the total weight of
            all losses (C times the number, or the weights, of the instances). Training uses the true values
            of neighbours, but prediction uses decoded values; with a small penalty, couplings would reach the
            margins only in training. The gain of a coupling in training grows with the instances and with C.
            The paper's plain LMBM, "η0 = 0", is 1; LMBMr is 5 and more.
        margin: the margin γ of the hinge losses.
        cliques: ``"pairwise"``, or sets of labels, or tied cliques, with ``groups`` and ``clique_features``;
            see :class:`~lmbm_torch.models.BoltzmannMachine`.
        decoder: ``"exact"`` (enumeration), ``"integer_program"``, ``"lp_relaxation"`` (rounded), or
            ``"auto"``: the routine that :func:`lmbm_torch.inference.decode_hinge` chooses. The result is
            proven unless a search over many labels reaches the node limit; see ``decode(X).status``.
        solver: ``"proximal_newton"``, or ``"dual_coordinate"``, the paper's solver, which is much slower with
            coupled labels, but needs no (instances, instances) matrix.
        tol: relative duality gap at which training ends.
        max_iter: passes at which training ends even above ``tol``, with a ConvergenceWarning.
        class_weight: see :class:`~lmbm_torch.estimators.LMSBNClassifier`.
        calibrate: whether to calibrate probabilities, see
            :mod:`~lmbm_torch.estimators.common.decoders.calibration`: by the likelihood of label sets for up
            to 18 labels. Predicted labels do not change.
        device: device of predictions except searches, such as ``"cuda"``; training is on the CPU.
        verbose: 1 for a progress bar with the duality gap (needs rich); 0 for no bar.
        random_state: seed for the order in which the coordinate solver visits instances.
        constraints: rules that all predictions obey, as text or objects (:mod:`lmbm_torch.constraints`).
            Training
            ignores rules: margins compare label sets that differ in a single label, and a rule such as
            ``exactly_one`` never allows both label sets.

    Attributes:
        C_: the weight of the losses.
        feature_shift_, feature_scale_: (features,), training takes (X − shift) / scale; 0, 1 if unscaled.
        coupling_penalty_: η0 as a number.
        coef_: (labels, features), weights of the features.
        intercept_: (labels,).
        clique_coef_: a weight for each clique, or group of cliques.
        objective_: the value of the training objective.
        duality_gap_: the duality gap relative to ``objective_``.
        n_iter_: number of passes of the solver.
        mean_loss_: the mean hinge loss of the training instances; missing labels are replaced by the
            machine's own predictions.
        threshold_: T, the smallest loss of a wrongly decoded training instance (Remark 4.2); 0 gives no
            bound.
        error_bound_: mean_loss_ / T, at most 1: an upper bound on the share of training instances that an
            exact decoder decodes wrongly (Theorem 4.1); missing labels are replaced as above. 1 if no bound
            is known: for ``"lp_relaxation"`` and with constraints.
        calibration_: the :class:`~lmbm_torch.calibration.scales.Calibration`; None without calibration.
        classes_: the classes; for label matrices (labels, 2), the two values of each label.

    Examples:
        >>> from lmbm_torch.estimators import LMBMClassifier
        >>> X, y = [[0.0], [1.0], [2.0], [3.0]], [[0, 0], [0, 1], [1, 1], [1, 1]]
        >>> LMBMClassifier(random_state=0).fit(X, y).predict([[2.5]])
        array([[1, 1]])
    """

    _accepted: ClassVar[Constraints] = {
        **SHARED,
        "C": RELATIVE_PENALTY,
        "calibrate": CALIBRATE,
        "class_weight": CLASS_WEIGHT,
        "coupling_penalty": RELATIVE_PENALTY,
        "cliques": [StrOptions({"pairwise"}), TiedCliques, "array-like"],
        "decoder": [StrOptions({"auto", "exact", "integer_program", "lp_relaxation"})],
        "solver": [StrOptions({*MACHINE_SOLVERS})],
    }

    cliques: TiedCliques | Sequence[Sequence[int]] | str

    def __init__(
        self,
        C: float | str = recipe.C,
        *,
        coupling_penalty: float | str = recipe.COUPLING_PENALTY,
        margin=1.0,
        cliques="pairwise",
        groups=None,
        clique_features=None,
        decoder="auto",
        solver="proximal_newton",
        tol=1e-3,
        max_iter=1000,
        class_weight=None,
        calibrate=False,
        device="cpu",
        verbose=0,
        random_state=None,
        constraints=None,
    ):
        self.C = C
        self.coupling_penalty = coupling_penalty
        self.margin = margin
        self.cliques = cliques
        self.groups = groups
        self.clique_features = clique_features
        self.decoder = decoder
        self.solver = solver
        self.tol = tol
        self.max_iter = max_iter
        self.class_weight = class_weight
        self.calibrate = calibrate
        self.device = device
        self.verbose = verbose
        self.random_state = random_state
        self.constraints = constraints

    @fit_call
    def fit(self, X: Rows, y: Rows, sample_weight: ArrayLike | None = None) -> Self:
        """Train on features (instances, features), dense or CSR, and labels (instances, labels).

        Args:
            X: finite features.
            y: labels in {0, 1}, or NaN for missing labels, which have no loss and are replaced by the
                machine's own predictions for other labels' losses
                (:mod:`~lmbm_torch.estimators.common.decoders.completion`). Or a class for each instance.
            sample_weight: (instances,), factors on C.

        Raises:
            ValueError: a parameter or input is invalid.
        """
        return self._fit_along(Path(), X, y, sample_weight)

    def _fit_along(self, path: Path, X: Rows, y: Rows, sample_weight: ArrayLike | None = None) -> Self:
        """Fit with a larger C than the last fit on the path, starting from the last solution."""
        X, labels, weight = self._validate_fit(X, y, sample_weight, allow_missing=True)
        if self.solver != "proximal_newton" and (self.class_weight is not None or np.isnan(labels).any()):
            raise ValueError(
                f"solver: expected 'proximal_newton' with class_weight or missing labels, got {self.solver!r}"
            )
        weights = self._label_weights(labels, weight)
        learn = partial(self._learn, X, weight, observed_weights(weights, labels), _total(weights, labels))
        learn_along(self, path, learn, X, labels, weight)
        self.calibration_ = learned_calibration(self, self.calibrate, X, labels, weight)
        return self

    def _learn(
        self,
        X: Features,
        weight: np.ndarray | None,
        label_weight: np.ndarray | None,
        total_weight: float,
        path: Path,
        labels: np.ndarray,
    ) -> None:
        """Train on complete labels, and set the fitted attributes."""
        with torch.device("cpu"):
            model = BoltzmannMachine(
                self.n_features_in_, labels.shape[1], self.cliques, self.groups, self.clique_features
            ).double()
        self._decoder(model.cliques.largest)
        seed = self._seed()
        if recipe.multiple(self.C) is not None and any(
            column is not None for column in model.cliques.columns
        ):
            raise ValueError(f"C: expected a number with clique_features, got {self.C!r}")
        inputs = self._scaled(X, weight)
        self.coupling_penalty_ = recipe.coupling_penalty(self.coupling_penalty, self.C_, total_weight)
        dual = dual_problem(
            model,
            inputs,
            labels,
            C=self.C_,
            margin=self.margin,
            coupling_penalty=self.coupling_penalty_,
            sample_weight=label_weight,
            solver=self.solver,
            seed=seed,
        )
        duals = path.duals(dual.problem, self.C_)
        start = None if duals is None else MACHINE_SOLVERS[self.solver].init(dual.problem, duals)
        with self._progress() as tell:
            state = fit_dual(dual, tol=self.tol, max_iter=self.max_iter, start=start, progress=tell)
        path.C, path.state = self.C_, state
        self.model_ = self._on_device(model)
        model.undo_scaling(self.feature_scale_, self.feature_shift_)
        self.clique_coef_ = state.weights.cliques
        self.coef_ = self._array(model.feature_weight)
        self.intercept_ = self._array(model.bias)
        self._report(state)
        self._bound_errors(X, labels)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            searches_under_rules=self.decoder == "auto",
            has_probabilities=True,
            restricts_probabilities=True,
            margin=self.margin,
        )

    def _decode_energy(
        self,
        energy: PairwiseEnergy | CliqueEnergy,
        known: Tensor | None = None,
        top_k: int = 1,
        rules: rules_of.Constraints | None = None,
    ) -> Decoding:
        decode = partial(self._decoder(self.model_.cliques.largest), margin=self.margin)
        if rules is None:
            return decode(energy, known=known, **several(top_k, self.decoder, ("auto", "exact")))
        if self.decoder == "auto":
            return decode(energy, known=known, top_k=top_k, constraints=rules)
        return constrained.decode_loss(energy, rules, decode, known=known, top_k=top_k)

    def _bound_errors(self, X, labels: np.ndarray) -> None:
        """Set ``mean_loss_``, ``threshold_`` and ``error_bound_`` from the training instances."""
        energy = self._energy(X)
        loss = local_hinge(energy, torch.from_numpy(labels).to(self._device), self.margin)
        self.mean_loss_ = loss.mean().item()
        self.threshold_ = undirected_threshold(energy, self.margin).min().item()
        # With rules there is no bound, because an instance whose true labels break rules is always an error.
        is_unknown = self.decoder == "lp_relaxation" or self.rules is not None
        self.error_bound_ = 1.0 if is_unknown else error_bound(self.mean_loss_, self.threshold_)

    def _decoder(self, largest_clique: int) -> Callable[..., Decoding]:
        name = self.decoder
        if name == "auto":
            return inference.decode_hinge
        if name != "exact" and largest_clique > 2:
            raise ValueError(
                f"decoder: expected 'exact' for cliques of {largest_clique} labels, got {name!r}"
            )
        return routine(name).decode_hinge


def _total(weights: np.ndarray | None, labels: np.ndarray) -> float:
    """Return the total weight of the instances; weights (instances, labels) are averaged over labels."""
    if weights is None:
        return float(len(labels))
    return float((weights if weights.ndim == 1 else weights.mean(1)).sum())
