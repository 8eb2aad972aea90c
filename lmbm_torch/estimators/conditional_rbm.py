"""Conditional restricted Boltzmann machines as a scikit-learn classifier."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from sklearn.utils import check_random_state
from torch import Tensor

from lmbm_torch.checks import check_count, check_labels, check_positive, check_shape
from lmbm_torch.data.tensors import to_tensor
from lmbm_torch.energies import BipartiteEnergy
from lmbm_torch.estimators.base import available_device, label_matrix
from lmbm_torch.estimators.decoded import DecodedClassifier
from lmbm_torch.inference import matrix_bp, mean_field
from lmbm_torch.inference.matching import MatchedInference, Routine
from lmbm_torch.inference.results import BipartiteMarginals, Decoding
from lmbm_torch.losses import (
    bethe_negative_log_likelihood,
    contrastive_divergence,
    joint_structured_hinge,
    marginal_structured_hinge,
    mean_field_negative_log_likelihood,
)
from lmbm_torch.models import ConditionalRBM

# The loss of each objective, what it calls its inference, and the inference for it and for prediction.
OBJECTIVES: dict[str, tuple[Callable[..., Tensor], str | None, Routine]] = {
    "bethe": (bethe_negative_log_likelihood, "marginals", matrix_bp.marginals),
    "mean_field": (mean_field_negative_log_likelihood, "marginals", mean_field.marginals),
    "joint_hinge": (joint_structured_hinge, "max_marginals", matrix_bp.max_marginals),
    "marginal_hinge": (marginal_structured_hinge, "decoder", matrix_bp.marginal_map),
    "contrastive": (contrastive_divergence, None, mean_field.marginals),
}
COMPLETE = ("joint_hinge", "marginal_hinge")


class ConditionalRBMClassifier(DecodedClassifier):
    """Labels that depend on each other through hidden units (belief_propagation_in_crbms_2017).

    Training minimises ½‖w‖² + C Σ_l loss_l, biases regularised like other weights, by Adam over batches with
    a step that falls to zero; the problem is not convex, and another seed ends elsewhere. Prediction uses the
    inference of the training, with as many iterations.

    Args:
        C: weight of the losses.
        num_hidden: units.
        objective: ``"bethe"``, maximum likelihood by belief propagation, predicting the marginals' modes;
            ``"mean_field"``, the same by mean field; ``"joint_hinge"``, the latent structural SVM, predicting
            the joint MAP; ``"marginal_hinge"``, the marginal one, predicting the MAP with the hidden units
            summed out; or ``"contrastive"``, contrastive divergence of one step, predicting by mean field.
        num_iters: of inference, at most.
        tol: change of messages or means at which an instance's inference ends.
        max_iter: epochs.
        batch_size: instances.
        learning_rate: of Adam in the first epoch.
        init_std: standard deviation of couplings and hidden weights at the start.
        device: where training and prediction are computed, such as ``"cpu"`` or ``"cuda"``.
        random_state: of the start, the order of the instances and of Gibbs sampling.

    Attributes:
        model_: the :class:`~lmbm_torch.models.ConditionalRBM`.
        inference_: the :class:`~lmbm_torch.inference.matching.MatchedInference`.
        loss_curve_: the mean loss of the instances in each epoch, while learning.
        n_iter_: epochs.
        classes_: the classes; a list of one [0, 1] per label for label matrices.
    """

    def __init__(
        self,
        C=1.0,
        *,
        num_hidden=32,
        objective="bethe",
        num_iters=10,
        tol=1e-3,
        max_iter=100,
        batch_size=50,
        learning_rate=0.02,
        init_std=0.1,
        device="cpu",
        random_state=None,
    ):
        self.C = C
        self.num_hidden = num_hidden
        self.objective = objective
        self.num_iters = num_iters
        self.tol = tol
        self.max_iter = max_iter
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.init_std = init_std
        self.device = device
        self.random_state = random_state

    def fit(self, X, y, sample_weight=None):
        """Learn from features (instances, features), dense or CSR, and labels (instances, labels).

        Args:
            X: finite features.
            y: {0, 1}, and NaN for a missing label, which counts as hidden, except with the hinges; or one
                class per instance.
            sample_weight: (instances,), multiplies C.

        Raises:
            ValueError: a setting or an input that is not as described; the message names it.
        """
        for name in ("C", "learning_rate"):
            check_positive(name, getattr(self, name))
        for name in ("num_hidden", "num_iters", "max_iter", "batch_size"):
            check_count(name, getattr(self, name))
        if self.objective not in OBJECTIVES:
            raise ValueError(f"objective: expected one of {[*OBJECTIVES]}, got {self.objective!r}")
        device = available_device(self.device)
        X, labels, sample_weight = self._validate_fit(X, y, sample_weight)
        check_labels("y", labels, allow_missing=self.objective not in COMPLETE)
        seed = int(check_random_state(self.random_state).randint(2**31))
        generator = torch.Generator(device).manual_seed(seed)
        model = ConditionalRBM(
            to_tensor(X[:1]).shape[1],
            labels.shape[1],
            self.num_hidden,
            init_std=self.init_std,
            generator=torch.Generator().manual_seed(seed),
        )
        self.model_ = model.to(device, torch.float64)
        loss, asks, routine = OBJECTIVES[self.objective]
        self.inference_ = MatchedInference(routine, self.num_iters, tol=self.tol)
        settings: dict[str, Any] = {"generator": generator} if asks is None else {asks: self.inference_}
        weights = np.ones(len(labels)) if sample_weight is None else sample_weight
        self._train(X, labels, weights, partial(loss, **settings), np.random.default_rng(seed))
        self.model_.requires_grad_(False)
        self.n_iter_ = self.max_iter
        return self

    def decode(self, X, known=None) -> Decoding:
        """Labels by the inference of the training, with what is known of them.

        Args:
            X: (instances, features), dense or CSR.
            known: (instances, labels) of {0, 1, NaN}: outputs that are given already.
        """
        energy = self.energy(X)
        if known is not None:
            known = self._labels("known", known, energy, allow_missing=True)
        return self.inference_.decode(energy, known)

    def marginals(self, X) -> BipartiteMarginals:
        """P(y_i = 1 | x) and the hidden units', by mean field where it trained, else by sum-product."""
        by_mean_field = self.inference_.routine is mean_field.marginals
        routine = mean_field.marginals if by_mean_field else matrix_bp.marginals
        return routine(self.energy(X), num_iters=self.num_iters, tol=self.tol)

    def log_prob(self, X, Y):
        """log P(Y | x) of whole label vectors, (instances,), by Bethe's approximation of its constant.

        Args:
            X: (instances, features), dense or CSR.
            Y: (instances, labels) in {0, 1}.
        """
        energy = self.energy(X)
        labels = self._labels("Y", Y, energy, allow_missing=False)
        found = matrix_bp.marginals(energy, num_iters=self.num_iters, tol=self.tol)
        return (-energy.free_energy(labels) - found.log_partition).cpu().numpy()

    def energy(self, X) -> BipartiteEnergy:
        """The machine's energy for instances (instances, features)."""
        features = to_tensor(self._validate_predict(X))
        return self.model_(features.to(self.device, torch.float64))

    def _train(
        self,
        X,
        labels: np.ndarray,
        weights: np.ndarray,
        loss: Callable[[BipartiteEnergy, Tensor], Tensor],
        order: np.random.Generator,
    ) -> None:
        total, curve = weights.sum(), []
        optimizer = torch.optim.Adam(self.model_.parameters(), lr=self.learning_rate)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.max_iter)
        for _ in range(self.max_iter):
            summed = 0.0
            for rows in self._batches(len(labels), order):
                features = to_tensor(X[rows]).to(self.device, torch.float64)
                weight = torch.from_numpy(weights[rows]).to(self.device)
                losses = weight * loss(self.model_(features), torch.from_numpy(labels[rows]).to(self.device))
                flat = self.model_.weights()
                share = len(rows) / len(labels)
                objective = (share * 0.5 * flat @ flat + self.C * losses.sum()) / (share * total)
                optimizer.zero_grad()
                objective.backward()
                optimizer.step()
                summed += losses.sum().item()
            scheduler.step()
            curve.append(summed / total)
        self.loss_curve_ = np.array(curve)

    def _batches(self, num_instances: int, order: np.random.Generator) -> Iterator[np.ndarray]:
        rows = order.permutation(num_instances)
        return (rows[first : first + self.batch_size] for first in range(0, num_instances, self.batch_size))

    def _labels(self, name: str, labels, energy: BipartiteEnergy, *, allow_missing: bool) -> Tensor:
        """Labels as a tensor beside the energy; refuses another shape or other values."""
        labels = label_matrix(name, labels, allow_missing=allow_missing)
        check_shape(name, labels, energy.batch_size, energy.num_visible)
        return torch.from_numpy(labels).to(energy.device)

    def _code_losses(self, X, codes: Tensor) -> Tensor:
        return self.energy(X).free_energy(codes)

    def _code_log_prob(self, X, codes: Tensor) -> Tensor:
        return -self.energy(X).free_energy(codes)

    def _label_probability(self, X) -> np.ndarray:
        return self.marginals(X).visible.cpu().numpy()

    @property
    def _device(self) -> torch.device:
        return torch.device(self.device)
