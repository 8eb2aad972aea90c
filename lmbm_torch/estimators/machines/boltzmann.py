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
from lmbm_torch.estimators.common.calls import all_or_nothing, watched
from lmbm_torch.estimators.common.settings import (
    CALIBRATE,
    CLASS_WEIGHT,
    RELATIVE_PENALTY,
    SHARED,
    Constraints,
    StrOptions,
)
from lmbm_torch.estimators.decoders.calibration import calibrated, learned_calibration
from lmbm_torch.estimators.decoders.completion import learn_along
from lmbm_torch.estimators.decoders.decoding import DecodingClassifier, routine, several
from lmbm_torch.estimators.decoders.distributions import MachineMixture, hinge_losses
from lmbm_torch.fitting import recipe
from lmbm_torch.fitting.completion import observed_weights
from lmbm_torch.fitting.dual import MACHINE_SOLVERS, Path, dual_problem, fit_dual
from lmbm_torch.inference.results import Decoding
from lmbm_torch.inference.under_rules import constrained
from lmbm_torch.losses.bounds import error_bound, undirected_threshold
from lmbm_torch.losses.hinge import local_hinge
from lmbm_torch.models import BoltzmannMachine
from lmbm_torch.protocol import Capabilities
from lmbm_torch.solvers.networks.problems import Features


class LMBMClassifier(DecodingClassifier[PairwiseEnergy | CliqueEnergy]):
    """A large-margin Boltzmann machine (large_margin_boltzmann_machines_2009).

    Training minimises ½ Σ_j η_j w_j² + C Σ_l Σ_i [γ − m_il]_+, intercepts regularised like other weights,
    with η_j = ``coupling_penalty`` for weights of two or more labels and 1 for the others; prediction is the
    labelling of least hinge loss Σ_i [γ − m_i]_+ (problem 3.4), not the most probable one.

    Args:
        C: weight of the losses, U in the paper: a number, for features as they are; or ``"scale"`` or a
            multiple such as ``"0.3*scale"``, see :func:`~lmbm_torch.fitting.recipe.units`. Not with
            ``clique_features``, which may be tied to cliques without.
        coupling_penalty: η0 > 0, a number; or ``"scale"``: half of the weight of all losses together, C times
            the instances or their weights. Trained beside true neighbours, cheap couplings alone meet the
            margins, and labels are decoded by what their neighbours, decoded too, make of them; what a
            coupling can gain grows with the instances and with C. The paper's plain LMBM, its "η0 = 0", is 1
            here; its LMBMr is 5 and more.
        margin: γ.
        cliques: ``"pairwise"``, or sets of labels, or tied cliques, with ``groups`` and ``clique_features``;
            see :class:`~lmbm_torch.models.BoltzmannMachine`.
        decoder: ``"exact"`` (enumeration), ``"integer_program"``, ``"lp_relaxation"`` (rounded), or
            ``"auto"``: by the routine that :func:`lmbm_torch.inference.decode_hinge` chooses, with a proof
            but where a search of many labels meets its limit of nodes: ``decode(X).status`` tells.
        solver: ``"proximal_newton"``, or ``"dual_coordinate"``, the paper's: slower by far where labels are
            coupled, but it needs no matrix of instances.
        tol: relative duality gap at which training ends.
        max_iter: passes at which training ends even above ``tol``, with a ConvergenceWarning.
        class_weight: multiplies C for instances by their label: ``"balanced"`` (instances / (2 · instances
            with that value), label by label), weights by value {0: …, 1: …}, or a sequence of these, one a
            label.
        calibrate: whether to calibrate probabilities, see
            :mod:`~lmbm_torch.estimators.decoders.calibration`: by the likelihood of whole labellings for
            up to 18 labels; decoding ignores it.
        device: where predictions but for searches are computed, such as ``"cpu"`` or ``"cuda"``.
            It serves prediction alone: the dual solver trains on the CPU.
        verbose: 1 for a bar with the gap so far (needs rich), 0 for silence.
        random_state: of the coordinate solver's order of visits.
        constraints: rules that all answers obey, as text or objects (:mod:`lmbm_torch.constraints`), over the
            columns of ``y``. The training's margins ask what one label changed would cost, whether rules
            allow that or not: under ``exactly_one`` none is allowed, and nothing would be learned.

    Attributes:
        C_: the weight of the losses; feature_shift_, feature_scale_: (features,), training is on
            (X − shift) / scale; 0 and 1 for a number C.
        coupling_penalty_: η0.
        coef_: (labels, features); intercept_: (labels,).
        clique_coef_: one weight for each clique, or group of them.
        objective_: the value of the training objective; duality_gap_: relative to it.
        n_iter_: passes of the solver.
        mean_loss_: the mean hinge loss of the training instances, missing labels completed by the machine's
            own prediction, whose loss counts too.
        threshold_: T, the least loss of a training instance that is decoded wrongly (Remark 4.2); 0 says
            nothing.
        error_bound_: mean_loss_ / T, at most 1: no larger share of the training instances is decoded wrongly
            (Theorem 4.1), if exactly; with missing labels, wrong is what differs from the completed ones. 1
            for the rounded relaxation and for constraints, of which nothing is known.
        calibration_: the :class:`~lmbm_torch.calibration.scales.Calibration`; None without.
        classes_: the classes; of label matrices (labels, 2), the two values of each label.
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

    @watched
    @all_or_nothing
    def fit(self, X: Rows, y: Rows, sample_weight: ArrayLike | None = None) -> Self:
        """Learn from features (instances, features), dense or CSR, and labels (instances, labels).

        Args:
            X: finite features.
            y: {0, 1} and NaN (missing: its loss is left out, and its value for other labels is what the
                machine itself predicts, see :mod:`~lmbm_torch.estimators.decoders.completion`); or one class
                per instance.
            sample_weight: (instances,), multiplies C.

        Raises:
            ValueError: a setting or an input that is not as described; the message names it.
        """
        return self._fit_along(Path(), X, y, sample_weight)

    def _fit_along(self, path: Path, X: Rows, y: Rows, sample_weight: ArrayLike | None = None) -> Self:
        """:meth:`fit` from the solution of the last fit along this path: same instances, a smaller C."""
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
        """Learn from complete labels."""
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
        self._undo_scaling(model)
        self.clique_coef_ = state.weights.cliques
        self.coef_ = self._array(model.feature_weight)
        self.intercept_ = self._array(model.bias)
        self._report(state)
        self._bound_errors(X, labels)

    @property
    def capabilities(self) -> Capabilities:
        """See :class:`~lmbm_torch.protocol.Capabilities`."""
        return Capabilities(
            searches_under_rules=self.decoder == "auto",
            has_probabilities=True,
            restricts_probabilities=True,
            margin=self.margin,
        )

    def calibrated(
        self, energies: Sequence[PairwiseEnergy | CliqueEnergy]
    ) -> list[PairwiseEnergy | CliqueEnergy]:
        """The energies whose equal mixture gives the probabilities, two of each of a joint calibration."""
        return calibrated(self.calibration_, energies)

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
        """Note the training instances' mean loss and the bound on their errors that follows."""
        energy = self._energy(X)
        loss = local_hinge(energy, torch.from_numpy(labels).to(self._device), self.margin)
        self.mean_loss_ = loss.mean().item()
        self.threshold_ = undirected_threshold(energy, self.margin).min().item()
        # Instances whose labels break a rule are decoded wrongly at any loss.
        is_unknown = self.decoder == "lp_relaxation" or self.constraints is not None
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

    def _code_losses(self, X, codes: Tensor) -> Tensor:
        return hinge_losses(self.energies(X), codes, self.margin)

    def _distribution(self, energies: Sequence[PairwiseEnergy | CliqueEnergy]) -> MachineMixture:
        return MachineMixture(energies)


def _total(weights: np.ndarray | None, labels: np.ndarray) -> float:
    """The weight of all instances, where weights (instances, labels) count by their mean over labels."""
    if weights is None:
        return float(len(labels))
    return float((weights if weights.ndim == 1 else weights.mean(1)).sum())
