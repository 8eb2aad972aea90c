"""Conditional restricted Boltzmann machines as a scikit-learn classifier."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.optimize import minimize
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from lmbm_torch.checks import check_count
from lmbm_torch.constraints import Constraints as LabelRules
from lmbm_torch.data.tensors import to_tensor
from lmbm_torch.energies import BipartiteEnergy
from lmbm_torch.estimators.common.base import Rows
from lmbm_torch.estimators.common.calls import answer_call, bar, fit_call
from lmbm_torch.estimators.common.decoders.decoding import DecodingClassifier
from lmbm_torch.estimators.common.settings import (
    NOT_NEGATIVE,
    RELATIVE_PENALTY,
    SHARED,
    Constraints,
    StrOptions,
)
from lmbm_torch.estimators.common.targets import known_tensor
from lmbm_torch.estimators.common.under_rules import Rules, decode_around, rules_over
from lmbm_torch.fitting import recipe
from lmbm_torch.fitting.recipe import merged
from lmbm_torch.inference import marginals
from lmbm_torch.inference.common.limits import LIMITS
from lmbm_torch.inference.common.results import BipartiteMarginals, Decoding, Marginals, rows_of
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.inference.messages import matrix_bp, modes
from lmbm_torch.inference.messages.matching import MatchedInference
from lmbm_torch.inference.messages.modes import marginal_modes
from lmbm_torch.kernels.threads import single_threaded
from lmbm_torch.losses import exact_negative_log_likelihood
from lmbm_torch.losses.latent import METHODS
from lmbm_torch.models import ConditionalRBM
from lmbm_torch.protocol import Capabilities
from lmbm_torch.solvers.networks.problems import Features

# Names of objectives, without "pcd": persistent contrastive divergence needs Gibbs chains kept between steps.
OBJECTIVES = ("mle", *(name for name in METHODS if name != "pcd"))

DTYPES = {"float64": torch.float64, "float32": torch.float32}
# Number of instances whose exact likelihoods are computed at once; limits memory.
INSTANCES_AT_ONCE = 1000

Loss = Callable[[BipartiteEnergy, Tensor], Tensor]
Batches = Callable[[np.ndarray, int], Iterator[tuple[Tensor, ...]]]
"""A function from row indices and a batch size to the features, labels and weights of each batch."""


@dataclass
class _Curve:
    """A list of the mean loss after each iteration, which also updates a progress bar."""

    max_iter: int
    tell: Callable[[float, str], None] | None
    losses: list[float] = field(default_factory=list)

    def note(self, loss: float) -> None:
        self.losses.append(float(loss))
        if self.tell is not None:
            done = len(self.losses)
            self.tell(done / self.max_iter, f"loss {loss:.4g}, {done} of at most {self.max_iter} iterations")


@dataclass(frozen=True)
class HiddenUnitDistribution:
    """The distribution P(y | x) of a conditional restricted Boltzmann machine, summed over hidden units.

    Args:
        energy: the energy of the model.
        inference: the approximate inference that was used in training, for marginals; None for exact sums.
        num_iters, tol: limits of belief propagation, by which the log partition function is approximated if
            there is ``inference``.
    """

    energy: BipartiteEnergy
    inference: MatchedInference | None
    num_iters: int
    tol: float

    def marginals(self, known: Tensor | None = None) -> BipartiteMarginals:
        """Return P(y_i = 1) and the hidden units' marginals, given ``known`` labels.

        Marginals are exact if training was exact maximum likelihood; they are by mean field if training used
        mean field, otherwise by the sum-product algorithm.
        """
        if self.inference is None:
            return exact.marginals(self.energy, known=known)
        return self.inference.marginals(self.energy, known)

    def log_prob(self, labels: Tensor) -> Tensor:
        """Return log P(labels): exact if training was exact, otherwise by Bethe's approximation."""
        if self.inference is None:
            log_partition = exact.log_partition(self.energy)
        else:
            found = matrix_bp.marginals(self.energy, num_iters=self.num_iters, tol=self.tol)
            log_partition = found.log_partition
        return -self.energy.free_energy(labels) - log_partition

    def log_weights(self, codes: Tensor) -> Tensor:
        """Return the negative free energies (classes, instances) of label vectors (classes, 1, labels)."""
        return -self.energy.free_energy(codes)


class ConditionalRBMClassifier(DecodingClassifier[BipartiteEnergy]):
    """A conditional restricted Boltzmann machine, in which hidden units couple the labels.

    The model is from belief_propagation_in_crbms_2017. Training minimises ½‖w‖² + C Σ_l loss_l; biases are
    regularised like other weights. The problem is not convex: solutions depend on the seed. Features
    should have similar scales, best with instances of unit norm. The exact likelihood sums over all states of
    the labels or of the hidden units, whichever are fewer, and is maximised by L-BFGS over all instances.
    Other objectives are minimised by Adam over batches, with a step size that falls to zero.

    Args:
        C: weight of the losses, a number or a multiple of ``"scale"`` such as ``"0.3*scale"``, see
            :func:`~lmbm_torch.fitting.recipe.units`.
        num_hidden: number of hidden units.
        objective: ``"mle"``: exact maximum likelihood; ``"mle_bp"``: maximum likelihood by belief
            propagation; ``"mle_mf"``: the same by mean field; ``"lssvm"``: the latent structural SVM;
            ``"mssvm"``: the marginal structural SVM; ``"cd"``: contrastive divergence with one step;
            ``"cd_percloss"``: CD-PercLoss with ten steps; or ``"auto"``: ``"mle"`` for at most 10 labels or
            10 hidden units, otherwise ``"mle_bp"``. See :data:`~lmbm_torch.losses.latent.METHODS`.
        decoder: ``"exact"``: the most probable label vector, by enumeration of at most 2^22 label vectors,
            also in the training of ``"mssvm"``; ``"matched"``: the same inference as in training, as in
            belief_propagation_in_crbms_2017 (section 6): the modes of the labels' marginals, which get the
            most single labels right, or the joint or marginal MAP for the structural SVMs; or ``"auto"``:
            ``"exact"`` for at most 16 labels (10 for ``"mssvm"``, never for ``"lssvm"``), otherwise
            ``"matched"``.
        num_iters: largest number of iterations of approximate inference.
        tol: change of messages or means at which the inference for an instance ends.
        max_iter: number of epochs of Adam, or largest number of iterations of L-BFGS.
        batch_size: number of instances in a batch of Adam.
        learning_rate: step size of Adam in the first epoch.
        init_std: standard deviation of the initial couplings and hidden weights.
        device: device of training and prediction, such as ``"cpu"`` or ``"cuda"``.
        dtype: type of numbers in training and prediction: ``"float64"``, ``"float32"``, or ``"auto"``:
            float64 on the CPU, float32 on a GPU, where float64 is several times to tens of times as slow.
        verbose: 1 for a progress bar with the loss (needs rich); 0 for no bar.
        random_state: seed for the initial weights, the order of the instances and Gibbs sampling.
        constraints: rules that all predictions obey, as text or objects (:mod:`lmbm_torch.constraints`);
            training ignores rules.

    Attributes:
        C_: the weight of the losses.
        feature_shift_, feature_scale_: (features,), training takes (X − shift) / scale; 0, 1 if unscaled.
        model_: the :class:`~lmbm_torch.models.ConditionalRBM`.
        objective_: the name of the objective that was minimised.
        inference_: the :class:`~lmbm_torch.inference.messages.matching.MatchedInference` of an approximate
            objective; None for the exact objective.
        loss_curve_: the mean loss of the instances during each epoch, or after each iteration.
        n_iter_: number of epochs or iterations.
        classes_: the classes; for label matrices (labels, 2), the two values of each label.

    Examples:
        >>> from lmbm_torch.estimators import ConditionalRBMClassifier
        >>> X, y = [[0.0], [1.0], [2.0], [3.0]], [[0, 0], [0, 1], [1, 1], [1, 1]]
        >>> ConditionalRBMClassifier(num_hidden=2, random_state=0).fit(X, y).predict([[2.5]])
        array([[1, 1]])
    """

    _accepted: ClassVar[Constraints] = {
        **SHARED,
        "C": RELATIVE_PENALTY,
        "objective": [StrOptions({"auto", *OBJECTIVES})],
        "decoder": [StrOptions({"auto", "exact", "matched"})],
        "tol": [NOT_NEGATIVE],
        "init_std": [NOT_NEGATIVE],
        "dtype": [StrOptions({"auto", *DTYPES})],
    }

    def __init__(
        self,
        C: float | str = recipe.C,
        *,
        num_hidden=8,
        objective="auto",
        decoder="auto",
        num_iters=10,
        tol=1e-3,
        max_iter=100,
        batch_size=50,
        learning_rate=0.02,
        init_std=0.1,
        device="cpu",
        dtype="auto",
        verbose=0,
        random_state=None,
        constraints=None,
    ):
        self.C = C
        self.num_hidden = num_hidden
        self.objective = objective
        self.decoder = decoder
        self.num_iters = num_iters
        self.tol = tol
        self.max_iter = max_iter
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.init_std = init_std
        self.device = device
        self.dtype = dtype
        self.verbose = verbose
        self.random_state = random_state
        self.constraints = constraints

    @fit_call
    def fit(self, X: Rows, y: Rows, sample_weight: ArrayLike | None = None) -> Self:
        """Train on features (instances, features), dense or CSR, and labels (instances, labels).

        Args:
            X: finite features.
            y: labels in {0, 1}, or NaN for missing labels. The likelihood treats a missing label like a
                hidden unit; hinge losses take the value that the model prefers. Or a class for each instance.
            sample_weight: (instances,), factors on C.

        Raises:
            ValueError: a parameter or input is invalid.
        """
        X, labels, weights = self._validate_fit(X, y, sample_weight, allow_missing=True)
        weights = np.ones(len(labels)) if weights is None else weights
        seed = self._seed()
        start = torch.Generator().manual_seed(seed)
        inputs, back = merged(self._scaled(X, weights))
        width: int = inputs.shape[1]  # pyright: ignore[reportOptionalSubscript]
        with torch.device("cpu"):
            model = ConditionalRBM(
                width, labels.shape[1], self.num_hidden, init_std=self.init_std, generator=start
            )
        self.model_ = model.to(self._device, self._dtype)
        self.objective_ = self.objective
        if self.objective == "auto":
            smaller = min(self.model_.num_labels, self.model_.num_hidden)
            self.objective_ = "mle" if smaller <= LIMITS.likelihood else "mle_bp"
        batches = partial(self._batches, inputs, labels, weights)
        with bar(type(self).__name__, self.verbose) as tell:
            curve = _Curve(self.max_iter, tell)
            if self.objective_ == "mle":
                self.inference_ = None
                self._maximise_likelihood(batches, weights, curve)
            else:
                self._descend(batches, weights, self._approximate_loss(seed), seed, curve)
        self.model_ = self._of_all_columns(back)
        self.model_.undo_scaling(self.feature_scale_, self.feature_shift_)
        self.loss_curve_ = np.array(curve.losses)
        self.model_.zero_grad()
        self.model_.requires_grad_(False)
        self.n_iter_ = len(self.loss_curve_)
        return self

    @answer_call
    def decode(
        self, X: Rows, known: ArrayLike | None = None, top_k: int = 1, constraints: Rules | None = None
    ) -> Decoding:
        """Return the label vector that ``decoder`` finds, with the objective and whether proven best.

        If each label is decoded by its marginal, the objective is the expected number of right labels given
        the known labels. With rules and at most 22 labels, marginals are exact, given that all rules hold.
        With more labels, marginals ignore the rules: the result is the label vector with the largest
        objective among all vectors that obey the rules, and the status is not exact.

        Args:
            X: (instances, features), dense or CSR.
            known: known labels (instances, labels) in {0, 1, NaN}.
            top_k: number of label sets, best first.
            constraints: further rules, only for this call, as text or objects.

        Raises:
            ValueError: ``top_k`` is above 1 for a joint or marginal MAP by message passing.
        """
        check_count("top_k", top_k)
        rules = self._rules(constraints)
        if self._decodes_modes and (rules is not None or top_k > 1):
            energy = self.energy(X)
            known = known_tensor(known, energy, self._label_classes)
            found = self._label_marginals(energy, rules, known)
            return modes.decode(found, known=known, top_k=top_k, constraints=rules)
        is_exact = self._decodes_exactly(self.model_.num_labels)
        if top_k > 1 and not is_exact:
            raise ValueError(
                f"top_k: expected 1, because messages find only one label set for {self.objective_!r}; "
                f"got {top_k} (decoder='exact' finds several, for at most {LIMITS.enumerable} labels)"
            )
        if rules is not None or top_k > 1:
            # Find several label sets by the search under rules, which fixes labels, even without any rules.
            rules = rules_over(self.label_names_) if rules is None else rules
            return decode_around(
                self.with_rules(None), X, rules, self._known_codes(known), top_k, values=self.label_values
            )
        energy = self.energy(X)
        return self._decode_energy(energy, known_tensor(known, energy, self._label_classes))

    @property
    def capabilities(self) -> Capabilities:
        is_fitted = hasattr(self, "model_")
        return Capabilities(
            objective="own",
            minimises=False,
            searches_under_rules=is_fitted and self._decodes_modes,
            has_probabilities=True,
            restricts_probabilities=True,
            inference=self.inference_ if is_fitted else None,
        )

    def _decode_energy(
        self,
        energy: BipartiteEnergy,
        known: Tensor | None = None,
        top_k: int = 1,
        rules: LabelRules | None = None,
    ) -> Decoding:
        """Decode an energy without rules."""
        if self._decodes_exactly(self.model_.num_labels):
            return exact.marginal_map(energy, known=known)
        if self.inference_ is None:
            return marginal_modes(energy, marginals=partial(exact.marginals, known=known))
        return self.inference_.decode(energy, known)

    @property
    def _decodes_modes(self) -> bool:
        """Return whether each label is decoded separately, by the larger marginal probability."""
        by_modes = self.inference_ is None or self.inference_.decodes_modes
        return by_modes and not self._decodes_exactly(self.model_.num_labels)

    def _distribution(self, energies: Sequence[BipartiteEnergy]) -> HiddenUnitDistribution:
        return HiddenUnitDistribution(energies[0], self.inference_, self.num_iters, self.tol)

    def _label_marginals(
        self, energy: BipartiteEnergy, rules: LabelRules | None, known: Tensor | None = None
    ) -> Marginals:
        """Return the marginals for :meth:`decode`; given that rules hold, if label sets can be enumerated."""
        is_ruled = rules is not None and len(rules.bounds) > 0
        # Decide by the number of all labels rather than unknown labels, so results do not depend on batches.
        if rules is not None and is_ruled and energy.num_visible <= LIMITS.enumerable:
            return marginals(energy, constraints=rules, known=known)
        found = self._distribution([energy]).marginals(known)
        status = replace(found.status, exact=found.status.exact & (not is_ruled))
        return Marginals(found.labels, found.log_partition, status)

    def _objective_of_held(self, X: Any) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
        if not self._decodes_modes:
            return super()._objective_of_held(X)
        energy, rules = self.energy(X), self._rules()
        # Compare label vectors with a fixed label by marginals in which the label is not fixed.
        found = self._label_marginals(energy, rules)

        def objective_of(rows: np.ndarray, held: np.ndarray) -> np.ndarray:
            some = rows_of(found, torch.from_numpy(rows).to(energy.device))
            labels = torch.from_numpy(held).to(energy.device, energy.dtype)
            return modes.decode(some, known=labels, constraints=rules).objective.cpu().numpy()

        return objective_of

    @property
    def _dtype(self) -> torch.dtype:
        if self.dtype == "auto":
            return torch.float64 if self._device.type == "cpu" else torch.float32
        return DTYPES[self.dtype]

    def _decodes_exactly(self, num_labels: int) -> bool:
        """Return whether decoding enumerates all label vectors."""
        if self.decoder != "auto":
            return self.decoder == "exact"
        most = {"lssvm": 0, "mssvm": LIMITS.likelihood}
        return num_labels <= most.get(self.objective_, LIMITS.hidden)

    def _approximate_loss(self, seed: int) -> Loss:
        """Return the loss function of an approximate objective; set the inference used for predictions."""
        method = METHODS[self.objective_]
        self.inference_ = MatchedInference(method.routine, self.num_iters, tol=self.tol)
        by_enumeration = self.objective_ == "mssvm" and self._decodes_exactly(self.model_.num_labels)
        loss: Any = partial(method.loss, inference=exact.marginal_map if by_enumeration else self.inference_)
        if method.num_steps is None:
            return loss
        generator = torch.Generator(self._device).manual_seed(seed)
        return partial(loss, num_steps=method.num_steps, generator=generator)

    def _maximise_likelihood(self, batches: Batches, weights: np.ndarray, curve: _Curve) -> None:
        """Minimise the exact objective by L-BFGS; add the mean loss after each iteration to the curve."""
        parameters, total = list(self.model_.parameters()), weights.sum()
        pieces = list(batches(np.arange(len(weights)), INSTANCES_AT_ONCE))

        def set_weights(flat: np.ndarray) -> None:
            vector_to_parameters(torch.tensor(flat, dtype=self._dtype, device=self._device), parameters)

        def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
            set_weights(flat)
            self.model_.zero_grad()
            value = 0.5 * float(flat @ flat)
            for features, labels, weight in pieces:
                loss = self.C_ * weight @ exact_negative_log_likelihood(self.model_(features), labels)
                loss.backward()
                value += loss.item()
            gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
            return value, flat + parameters_to_vector(gradients).double().cpu().numpy()

        def note(intermediate_result) -> None:
            flat = intermediate_result.x
            curve.note((intermediate_result.fun - 0.5 * flat @ flat) / (self.C_ * total))

        start = parameters_to_vector(parameters).detach().double().cpu().numpy()
        limits = {"maxiter": self.max_iter}
        # Use a single BLAS thread for SciPy's small products; torch keeps several threads.
        with single_threaded():
            found = minimize(objective, start, jac=True, method="L-BFGS-B", callback=note, options=limits)
        set_weights(found.x)

    @torch.no_grad()
    def _of_all_columns(self, back: Any) -> ConditionalRBM:
        """Convert a model of merged features, see ``merged``, to a model of all features."""
        learnt = self.model_
        with torch.device("cpu"):
            whole = ConditionalRBM(back.shape[1], learnt.num_labels, learnt.num_hidden, init_std=0.0)
        whole = whole.to(self._device, self._dtype)
        for name, weight in whole.named_parameters():
            value: Any = self._array(learnt.get_parameter(name))
            weight.copy_(torch.as_tensor(value @ back if name in learnt.OF_FEATURES else value, device="cpu"))
        return whole

    def _descend(self, batches: Batches, weights: np.ndarray, loss: Loss, seed: int, curve: _Curve) -> None:
        """Minimise the objective by Adam; add the mean loss of each epoch to the curve."""
        order, total = np.random.default_rng(seed), weights.sum()
        optimizer = torch.optim.Adam(self.model_.parameters(), lr=self.learning_rate)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.max_iter)
        for _ in range(self.max_iter):
            summed = 0.0
            for features, labels, weight in batches(order.permutation(len(weights)), self.batch_size):
                losses = weight * loss(self.model_(features), labels)
                flat, share = self.model_.weights(), len(weight) / len(weights)
                objective = (share * 0.5 * flat @ flat + self.C_ * losses.sum()) / (share * total)
                optimizer.zero_grad()
                objective.backward()
                optimizer.step()
                summed += losses.sum().item()
            scheduler.step()
            curve.note(summed / total)

    def _batches(
        self, X: Features, labels: np.ndarray, weights: np.ndarray, rows: np.ndarray, size: int
    ) -> Iterator[tuple[Tensor, ...]]:
        """Yield features, labels and weights of the instances ``rows``, ``size`` instances at a time."""
        for first in range(0, len(rows), size):
            some = rows[first : first + size]
            parts = to_tensor(X[some]), torch.from_numpy(labels[some]), torch.from_numpy(weights[some])
            yield tuple(part.to(self._device, self._dtype) for part in parts)

    def _code_losses(self, X, codes: Tensor) -> Tensor:
        return self.energy(X).free_energy(codes)
