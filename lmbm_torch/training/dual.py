"""Lightning module for training a linear head in the dual, to a certified duality gap."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch

from lmbm_torch.calibration.scales import Calibration, fitted_scales
from lmbm_torch.checks import check_positive
from lmbm_torch.data.batches import Batch
from lmbm_torch.data.features import Features
from lmbm_torch.data.tensors import to_features, to_tensor
from lmbm_torch.extras import naming_extras
from lmbm_torch.fitting import recipe
from lmbm_torch.fitting.completion import completed_labels, learn_along, observed_weights
from lmbm_torch.fitting.dual import DualProblem, dual_problem, fit_dual
from lmbm_torch.inference import decode_hinge
from lmbm_torch.losses import local_hinge
from lmbm_torch.models import BoltzmannMachine, SigmoidBeliefNetwork
from lmbm_torch.solvers.networks.problems import following_stage, next_stage
from lmbm_torch.training.structured import StructuredModule

with naming_extras():
    from scipy import sparse

# Largest number of passes in the training of a fold.
MAX_ITER = 1000
OTHER_ROUTE = "; lmbm_torch.training.gradient.GradientModule (training=gradient) can"


CALIBRATIONS = "scale", "labels", "joint"
"""Names of the methods for calibrating probabilities, see :class:`DualModule`."""


class DualModule(StructuredModule):
    """A training module for ½ Σ_j η_j w_j² + C Σ_l Σ_i [γ − m_il]_+ by dual ascent on fixed features.

    At the start of a fit ``encoder(x)`` of all training instances is computed, in evaluation mode and without
    gradients; sparse features stay sparse. An epoch is a round of the model's solver,
    :func:`~lmbm_torch.solvers.networks.dual_coordinate.update` for a belief network and
    :func:`~lmbm_torch.solvers.machines.proximal_newton.update` for a Boltzmann machine. The round is made at
    the first batch of the epoch; a trainer with ``limit_train_batches=1`` draws no further batches. The
    module logs ``train/objective`` (the primal value), ``train/dual`` and ``train/gap``, the relative duality
    gap; ``EarlyStopping`` with ``stopping_threshold=tol`` ends the training by this gap. Checkpoints hold the
    dual variables and the number of passes, so training resumes exactly.

    Training uses features scaled as C requires; the model's final weights apply to unscaled features. For a
    Boltzmann machine, the trained model completes missing labels, and is trained again, see
    :mod:`lmbm_torch.fitting.completion`.

    Args:
        model: the model to train; its encoder, if any, must have no parameters to train.
        C: the weight of the losses, see :func:`~lmbm_torch.fitting.recipe.units`.
        coupling_penalty: the penalty η_j on weights of cliques of two or more labels, see
            :func:`~lmbm_torch.fitting.recipe.coupling_penalty`; 1 for a belief network.
        tol: the relative gap at which the problem, or the problem of a label, is solved.
        seed: the seed of the order of instances, and of the folds for the calibration.
        calibrate: whether to calibrate probabilities after the training by models of five folds, at five
            times the work. ``"labels"`` calibrates each label (:mod:`lmbm_torch.calibration.scales`).
            ``True`` also calibrates the probabilities of whole label sets if computable: for belief networks,
            and for Boltzmann machines of at most 22 labels, if some instance has no missing label.
            ``"joint"`` is like ``True``, but raises an error if not computable; ``"scale"`` fits a common
            scale for all labels.
        kwargs: ``decoder`` and ``label_names``, see :class:`StructuredModule`.

    Raises:
        ValueError: the encoder has parameters to train; the coupling penalty of a belief network is not 1;
            training has more than one process.
    """

    model: SigmoidBeliefNetwork | BoltzmannMachine

    def __init__(
        self,
        model: SigmoidBeliefNetwork | BoltzmannMachine,
        *,
        C: float | str = recipe.C,
        margin: float = 1.0,
        coupling_penalty: float | str = 1.0,
        tol: float = 1e-3,
        seed: int = 0,
        calibrate: bool | str = True,
        **kwargs: Any,
    ) -> None:
        recipe.check_relative("C", C)
        weight = float(recipe.multiple(C) or C)
        super().__init__(model, partial(local_hinge, margin=margin), C=weight, margin=margin, **kwargs)
        check_positive("tol", tol)
        recipe.check_relative("coupling_penalty", coupling_penalty)
        if not isinstance(calibrate, bool) and calibrate not in CALIBRATIONS:
            raise ValueError(f"calibrate: expected true, false or one of {CALIBRATIONS}, got {calibrate!r}")
        if isinstance(model, SigmoidBeliefNetwork) and coupling_penalty != 1:
            raise ValueError(
                "coupling_penalty: expected 1, since the dual solver of belief networks takes no other, got "
                f"{coupling_penalty}{OTHER_ROUTE}"
            )
        trainable = sum(weight.numel() for weight in model.encoder.parameters() if weight.requires_grad)
        if trainable:
            raise ValueError(
                "model: expected an encoder without parameters to train (see requires_grad_), since the dual "
                f"solver takes features as they are, got {trainable}{OTHER_ROUTE}"
            )
        # Keep the argument C, which may be "scale"; ``self.C`` is a number.
        self.penalty_of_losses = C
        self.coupling_penalty = coupling_penalty
        self.tol = tol
        self.seed = seed
        self.calibrate = calibrate
        self.automatic_optimization = False
        self._has_completed = False

    def setup(self, stage: str) -> None:
        """Check before a fit that the run has a single process."""
        if stage == "fit":
            self.check_processes(self.trainer.world_size)

    def check_processes(self, count: int) -> None:
        """Raise ValueError for several processes, which would have to exchange their dual variables."""
        if count > 1:
            raise ValueError(
                f"trainer: expected one process, since the dual solver does not run on several, got "
                f"{count}{OTHER_ROUTE}"
            )

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Build the dual problem of the whole training set, and return the solver as an optimizer."""
        self.trainer.fit_loop.setup_data()
        features, labels = self._training_set()
        self._has_completed = self._completes(labels)
        part = _Part(self, self.model, features, labels)
        if not self._has_completed:
            return DualAscent(self.model, part.problem(labels), self.tol)
        complete = completed_labels(part.inputs, labels, C=self.C, seed=self.seed)
        return CompletingAscent(self.model, part, complete, self.tol)

    def training_step(self, batch: Batch, batch_idx: int) -> None:
        """Make a round over all instances at the first batch of an epoch; do nothing at later batches."""
        if batch_idx > 0:
            return
        optimizer: Any = self.optimizers()
        optimizer.step()
        state = optimizer.solver_state
        primal, dual = float(np.sum(state.primal)), float(np.sum(state.dual))
        values = {"train/objective": primal, "train/dual": dual, "train/gap": optimizer.gap}
        self.log_means(values, batch_size=1, prog_bar=True)

    def on_fit_end(self) -> None:
        """Log the report of the fit, and calibrate probabilities."""
        super().on_fit_end()
        self.calibration = self._calibration() if self.calibrate else None

    @torch.no_grad()
    def _calibration(self) -> Calibration | None:
        """Fit scales on the predictions for each fold by a model trained on the other folds."""
        features, labels = self._training_set()
        if len(labels) < 2:
            return None
        model, held_out = deepcopy(self.model), []
        for train, others in recipe.calibration_folds(len(labels), self.seed):
            _Part(self, model, features[train], labels[train]).fit()
            energy = model.energy(to_tensor(features[others]).to(self.device))
            held_out.append((energy, torch.from_numpy(labels[others]).to(self.device)))
        with torch.enable_grad():
            return fitted_scales(self.calibrate, held_out, lambda energy: self.decoder(energy).labels)

    def report(self) -> dict[str, float]:
        """Return the report of :class:`StructuredModule`, and the relative duality gap.

        For a Boltzmann machine with missing labels, report only the objective of the completed labels.
        """
        optimizer: Any = self.optimizers()
        state = optimizer.solver_state
        # Report the solver's objective, in which features are scaled as C requires.
        own = {"fit/objective": float(np.sum(state.primal)), "fit/gap": state.gap}
        return own if self._has_completed else {**super().report(), **own}

    def _completes(self, labels: np.ndarray) -> bool:
        return isinstance(self.model, BoltzmannMachine) and bool(np.isnan(labels).any())

    @torch.no_grad()
    def _training_set(self) -> tuple[Features, np.ndarray]:
        """Return encoder(x) and labels of all training instances, in the order of the index."""
        features, labels, index = [], [], []
        for batch in self.training_batches():
            features.append(to_features(self.model.features(batch.features).cpu()))
            labels.append(batch.labels.cpu().numpy())
            index.append(batch.index.cpu().numpy())
        stack = sparse.vstack if sparse.issparse(features[0]) else np.vstack
        order = np.argsort(np.concatenate(index))
        return stack(features)[order], np.vstack(labels)[order]  # pyright: ignore[reportIndexIssue]


@dataclass(frozen=True, eq=False)
class _Part:
    """A subset of the training instances, on which a module's model is trained.

    Args:
        module: the training module, whose settings are used.
        model: the model to train.
        features: (instances, features), the output of the encoder.
        labels: (instances, labels) in {0, 1}, NaN where missing.
    """

    module: DualModule
    model: SigmoidBeliefNetwork | BoltzmannMachine
    features: Features
    labels: np.ndarray

    @cached_property
    def units(self) -> recipe.Units:
        """Return C as a number, with the scaling of the features."""
        return recipe.units(self.module.penalty_of_losses, self.features)

    @cached_property
    def inputs(self) -> Features:
        """Return the features, scaled as C requires."""
        return self.units.scaled(self.features)

    def problem(self, labels: np.ndarray) -> DualProblem:
        """Return the dual problem for labels (complete for a Boltzmann machine) and scaled features."""
        module, count = self.module, len(labels)
        weights = observed_weights(None, self.labels) if isinstance(self.model, BoltzmannMachine) else None
        dual = dual_problem(
            self.model,
            self.inputs,
            labels,
            C=self.units.C,
            sample_weight=weights,
            coupling_penalty=recipe.coupling_penalty(module.coupling_penalty, self.units.C, count),
            margin=module.margin,
            seed=module.seed,
        )

        def assign(weights: Any) -> None:
            dual.assign(weights)
            with torch.no_grad():
                self.model.undo_scaling(self.units.scale, self.units.shift)

        return replace(dual, assign=assign)

    def fit(self) -> None:
        """Train the model until the gap is at most the module's ``tol``."""
        limits: dict[str, Any] = {"tol": self.module.tol, "max_iter": MAX_ITER}
        if not self.module._completes(self.labels):
            fit_dual(self.problem(self.labels), **limits)
            return
        learn_along(
            self.inputs,
            self.labels,
            lambda complete: fit_dual(self.problem(complete), **limits),
            self.predicted,
            C=self.units.C,
            seed=self.module.seed,
        )

    @torch.no_grad()
    def predicted(self, rows: np.ndarray) -> np.ndarray:
        """Return the predicted labels of the instances ``rows``, (rows, labels), given the known labels."""
        device = self.module.device
        energy = self.model.energy(to_tensor(self.features[rows]).to(device))
        known = torch.from_numpy(self.labels[rows]).to(device)
        found = decode_hinge(energy, self.module.margin, known=known)
        return found.labels.cpu().numpy()


class DualAscent(torch.optim.Optimizer):
    """A dual solver as a torch optimizer, to let Lightning count the rounds and save the duals.

    After every step the model has the weights that belong to the dual variables.

    Args:
        model: the model that gets the solution of the problem.
        problem: the problem over the model's features.
        tol: the relative gap at which the problem of a label is solved.
    """

    def __init__(
        self, model: SigmoidBeliefNetwork | BoltzmannMachine, problem: DualProblem, tol: float
    ) -> None:
        super().__init__(model.parameters(), {})
        self.problem = problem
        self.tol = tol
        self.solver_state = problem.init()
        self.stages_done = 0

    @property
    def gap(self) -> float:
        """Return the relative duality gap; before the last stage, at least the largest gap of a label."""
        state = self.solver_state
        waits = following_stage(self.problem.problem, state) is not None if self._has_stages else False
        return max(state.gap, float(state.gaps.max())) if waits else state.gap

    @property
    def _has_stages(self) -> bool:
        return getattr(self.solver_state, "stage", None) is not None

    def step(self, closure: Callable[[], Any] | None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Make a round over all instances.

        When a label with missing values is solved, the values are predicted, and later labels start.
        """
        if closure is not None:
            closure()
        state = self.problem.update(self.solver_state, self.tol)
        self._take(state.dual_coef, state.num_iters)
        if self._has_stages and self.solver_state.solved(self.tol):
            self._complete_stage()

    def state_dict(self) -> dict[str, Any]:
        """Return dual variables and the number of passes, which determine all other values."""
        state = self.solver_state
        duals = {"dual_coef": torch.from_numpy(state.dual_coef), "num_iters": state.num_iters}
        return {**duals, "stages_done": self.stages_done}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume from dual variables of the same problem.

        Raises:
            ValueError: dual variables have a wrong shape, or are outside of the bounds.
        """
        self._take(state_dict["dual_coef"].numpy(), state_dict["num_iters"])
        for _ in range(state_dict["stages_done"]):
            self._complete_stage()

    def _take(self, dual_coef: np.ndarray, num_iters: int) -> None:
        # Compute weights from the dual variables, so that a resumed run has exactly the same weights.
        stage = {"stage": self.solver_state.stage} if self._has_stages else {}
        self.solver_state = replace(self.problem.init(dual_coef), num_iters=num_iters, **stage)
        self.problem.assign(self.solver_state.weights)

    def _complete_stage(self) -> None:
        """Predict the missing values of the last trained label, and start the training of the next labels."""
        completed, state = next_stage(self.problem.problem, self.solver_state)
        if completed is None:
            return
        self.problem = replace(self.problem, problem=completed)
        self.solver_state = state
        self.stages_done += 1
        self.problem.assign(state.weights)


class CompletingAscent(DualAscent):
    """A dual solver for labels with missing values, which the trained model completes until none changes.

    Args:
        part: instances with some missing labels.
        complete: (instances, labels), the first completed labels.
    """

    def __init__(
        self, model: SigmoidBeliefNetwork | BoltzmannMachine, part: _Part, complete: np.ndarray, tol: float
    ) -> None:
        super().__init__(model, part.problem(complete), tol)
        self.part, self.complete, self.rounds = part, complete, 1

    def step(self, closure: Callable[[], Any] | None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Make a round over all instances; once the gap is small, complete the labels again and restart."""
        super().step(closure)
        if self.solver_state.gap > self.tol or self.rounds == recipe.ROUNDS:
            return
        rows = np.flatnonzero(np.isnan(self.part.labels).any(1))
        again = self.complete.copy()
        again[rows] = self.part.predicted(rows)
        if (again != self.complete).any():
            self._begin(again, self.rounds + 1)
            self.solver_state = replace(self.problem.init(), num_iters=self.solver_state.num_iters)

    def state_dict(self) -> dict[str, Any]:
        """Return the dual variables, the number of passes, and the completed labels."""
        return {**super().state_dict(), "complete": torch.from_numpy(self.complete), "rounds": self.rounds}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume from stored dual variables and completed labels."""
        self._begin(state_dict["complete"].numpy(), state_dict["rounds"])
        super().load_state_dict(state_dict)

    def _begin(self, complete: np.ndarray, rounds: int) -> None:
        self.problem, self.complete, self.rounds = self.part.problem(complete), complete, rounds
