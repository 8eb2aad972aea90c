"""Training of a linear head in the dual, to a certified gap, under Lightning's loops and checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from scipy import sparse

from lmbm_torch.checks import check_positive
from lmbm_torch.data.batches import Batch
from lmbm_torch.data.dataset import Features
from lmbm_torch.data.tensors import to_features
from lmbm_torch.losses import local_hinge
from lmbm_torch.models import SigmoidBeliefNetwork
from lmbm_torch.solvers import dual_coordinate
from lmbm_torch.solvers.base import SolverState
from lmbm_torch.solvers.label_problems import LabelProblems
from lmbm_torch.training.structured import StructuredModule

OTHER_ROUTE = "; lmbm_torch.training.gradient.GradientModule (training=gradient) can"


class DualModule(StructuredModule):
    """Minimises ½‖w‖² + C Σ_l Σ_i [γ − m_il]_+ by dual coordinate descent on features computed once.

    At the start of a fit it takes ``encoder(x)`` of all training instances, in evaluation mode and without
    gradients; sparse features stay sparse. One epoch is then one round of
    :func:`~lmbm_torch.solvers.dual_coordinate.update`, made with the epoch's first batch, so that a trainer
    with ``limit_train_batches=1`` draws no batch in vain. Logged are ``train/objective`` (the primal),
    ``train/dual`` and ``train/gap``, the relative duality gap, on which ``EarlyStopping`` with the
    ``stopping_threshold`` ``tol`` ends the training. Duals and the number of passes are in the checkpoint,
    from which training goes on exactly.

    Args:
        model: its encoder, if any, has no parameters to train.
        tol: labels whose relative gap is at most this are done.
        seed: of the order in which instances are visited.
        kwargs: ``C``, ``decoder``, ``label_names`` and ``scaling`` of :class:`StructuredModule`.

    Raises:
        ValueError: an encoder to train; later also more than one process, or missing labels.
    """

    def __init__(
        self,
        model: SigmoidBeliefNetwork,
        *,
        margin: float = 1.0,
        tol: float = 1e-3,
        seed: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(model, partial(local_hinge, margin=margin), margin=margin, **kwargs)
        check_positive("tol", tol)
        trainable = sum(weight.numel() for weight in model.encoder.parameters() if weight.requires_grad)
        if trainable:
            raise ValueError(
                "model: expected an encoder without parameters to train (see requires_grad_), since the dual "
                f"solver takes features as they are, got {trainable}{OTHER_ROUTE}"
            )
        self.tol = tol
        self.seed = seed
        self.automatic_optimization = False

    def setup(self, stage: str) -> None:
        """Refuse several processes, whose duals would have to be kept in step."""
        if stage == "fit" and self.trainer.world_size > 1:
            raise ValueError(
                f"trainer: expected one process, since the dual solver does not share duals, got "
                f"{self.trainer.world_size}{OTHER_ROUTE}"
            )

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Set up the label problems over the whole training set."""
        self.trainer.fit_loop.setup_data()
        features, labels = self._training_set()
        missing = int(np.isnan(labels).sum())
        if missing:
            raise ValueError(
                f"labels: expected none missing, since one epoch works on all labels at once, got {missing} "
                f"NaN{OTHER_ROUTE}"
            )
        model = self.model
        assert isinstance(model, SigmoidBeliefNetwork)
        problems = LabelProblems.from_labels(
            features,
            labels,
            ordering=model.ordering.cpu().numpy(),
            parents=model.degree > 1,
            cliques=model.cliques,
            C=self.C,
            margin=self.margin,
        )
        return DualCoordinateDescent(model, problems, self.tol, self.seed)

    def training_step(self, batch: Batch, batch_idx: int) -> None:
        """With the first batch of an epoch, one round over all instances; with the others nothing."""
        if batch_idx > 0:
            return
        optimizer: Any = self.optimizers()
        optimizer.step()
        state: SolverState = optimizer.solver_state
        self.log_dict(
            {
                "train/objective": float(state.primal.sum()),
                "train/dual": float(state.dual.sum()),
                "train/gap": state.gap,
            },
            on_step=False,
            on_epoch=True,
            prog_bar=True,
            batch_size=1,
        )

    def _report(self) -> dict[str, float]:
        optimizer: Any = self.optimizers()
        return {**super()._report(), "fit/gap": optimizer.solver_state.gap}

    @torch.no_grad()
    def _training_set(self) -> tuple[Features, np.ndarray]:
        """encoder(x) and labels of all training instances, in the order of their index."""
        was_training = self.model.training
        self.model.eval()
        features, labels, index = [], [], []
        for batch in self.trainer.train_dataloader:  # pyright: ignore[reportGeneralTypeIssues, reportOptionalIterable]
            features.append(to_features(self.model.features(batch.features.to(self.device)).cpu()))
            labels.append(batch.labels.numpy())
            index.append(batch.index.numpy())
        self.model.train(was_training)
        stack = sparse.vstack if sparse.issparse(features[0]) else np.vstack
        order = np.argsort(np.concatenate(index))
        return stack(features)[order], np.vstack(labels)[order]  # pyright: ignore[reportIndexIssue]


class DualCoordinateDescent(torch.optim.Optimizer):
    """Rounds of dual coordinate descent as an optimizer, so that Lightning counts and checkpoints them.

    Its state is that of the solver; after every step the model has the weights that the duals make.

    Args:
        model: whose head is assigned to.
        problems: over the model's features, in its ordering and with its cliques.
        tol: labels whose relative gap is at most this are left alone.
        seed: of the order in which instances are visited.
    """

    def __init__(self, model: SigmoidBeliefNetwork, problems: LabelProblems, tol: float, seed: int) -> None:
        super().__init__(model.parameters(), {})
        self.model = model
        self.problems = problems
        self.tol = tol
        self.seed = seed
        self.solver_state = dual_coordinate.init(problems)

    def step(self, closure: Callable[[], Any] | None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """One round over all instances."""
        if closure is not None:
            closure()
        state = dual_coordinate.update(self.problems, self.solver_state, tol=self.tol, seed=self.seed)
        self._take(state.dual_coef, state.num_passes)

    def state_dict(self) -> dict[str, Any]:
        """Duals and the number of passes: everything else follows from them."""
        state = self.solver_state
        return {"dual_coef": torch.from_numpy(state.dual_coef), "num_passes": state.num_passes}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from duals of the same problems.

        Raises:
            ValueError: duals of the wrong shape or outside their box.
        """
        self._take(state_dict["dual_coef"].numpy(), state_dict["num_passes"])

    def _take(self, dual_coef: np.ndarray, num_passes: int) -> None:
        # Computed afresh from the duals, so that a resumed run has the same weights to the last bit.
        self.solver_state = replace(dual_coordinate.init(self.problems, dual_coef), num_passes=num_passes)
        weights = self.problems.network(self.solver_state.weights)
        self.model.assign(*(torch.from_numpy(np.ascontiguousarray(part)) for part in weights))
