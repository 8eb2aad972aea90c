"""Training problems of chains with scores linear in features: likelihoods, and margins of long chains."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from lmbm_torch.checks import check_positive, check_shape
from lmbm_torch.kernels.installed import kernels
from lmbm_torch.kernels.threads import share
from lmbm_torch.solvers.base import TINY
from lmbm_torch.solvers.chains.problems import FORBIDDEN, AllowedSteps, LabelledChains, best_labels
from lmbm_torch.solvers.networks.problems import Features, feature_rows
from lmbm_torch.solvers.structural.linear import Curvature, LinearOutputs
from lmbm_torch.solvers.structural.smoothing import MarginProblem

# Number of blocks into which the chains are split for threads; blocks have about equally many positions.
BLOCKS = 8


def likelihoods(
    scores: np.ndarray, transition: np.ndarray, start: np.ndarray, labels: np.ndarray, upper: np.ndarray
) -> tuple[float, np.ndarray, np.ndarray]:
    """Return Σ_x C_x (log Σ_y exp score(y) − score(y_x)), with gradients in scores and transitions.

    Args:
        scores: (positions, states), ``FORBIDDEN`` for labels that are not allowed.
        transition: (states, states), ``FORBIDDEN`` for steps that are not allowed.
        start: (chains + 1,), first position of each chain.
        labels: (positions,), allowed labels.
        upper: (chains,), C_x.
    """
    backend = kernels("dual.chains")
    # Split into a fixed number of blocks, so that the round-off of sums does not depend on the threads.
    ends = np.searchsorted(start, np.linspace(0, len(scores), BLOCKS + 1))
    losses, errors = np.zeros(BLOCKS), np.empty_like(scores)
    pairs = np.zeros((BLOCKS, *transition.shape))

    def compute(block: int) -> None:
        first, end = ends[block : block + 2]
        within = start[first : end + 1]
        losses[block] = backend.loss_and_gradient(
            scores, transition, within, labels, upper[first:end], errors, pairs[block]
        )

    share(range(BLOCKS), compute)
    return float(losses.sum()), errors, pairs.sum(0)


@dataclass(frozen=True, eq=False)
class LinearChains(LabelledChains, LinearOutputs):
    """Labelled chains with score(x, y) = Σ_t ⟨w_{y_t}, x_t⟩ + b_{y_t} + Σ_t v_{y_t, y_{t+1}}.

    Args:
        features: (positions, features), float32 or float64, dense or CSR, chain after chain.
        labels: (positions,), the true state at each position.
        start: (chains + 1,), first position of each chain.
        num_states: the number of states.
        C: the weight of the losses.
        sample_weight: (chains,), multiplies C.
        allowed: the allowed steps, which must include the true steps; None if all steps are allowed.

    Raises:
        ValueError: a shape is wrong; a label is no state; a value is not finite; C is not above zero.
        TypeError: features are neither float32 nor float64.
    """

    features: Features
    labels: np.ndarray
    start: np.ndarray
    num_states: int
    C: float = 1.0
    sample_weight: np.ndarray | None = None
    allowed: AllowedSteps | None = None
    upper: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "features", feature_rows(self.features))
        self._check(self.features.shape[0])  # pyright: ignore[reportOptionalSubscript]

    @property
    def num_outputs(self) -> int:
        return self.num_states

    @property
    def num_couplings(self) -> int:
        return self.num_states**2

    def transition(self, flat: np.ndarray) -> np.ndarray:
        """Return the couplings as a matrix (states, states)."""
        return self.couplings(flat).reshape(self.num_states, -1)

    def losses(self, scores: np.ndarray, transition: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """Return Σ_x C_x (log Σ_y exp score(y) − score(y_x)), with gradients in scores and transitions."""
        return likelihoods(*self.forbidding(scores, transition), self.start, self.labels, self.upper)

    def curvature_of(self, errors: np.ndarray, pairs: np.ndarray, coupling_penalty: float = 1.0) -> Curvature:
        """Estimate the Hessian of ½‖w‖² plus the losses from the gradients in scores and transitions.

        The estimate treats positions as independent, and assumes that all transitions are equally uncertain.
        """
        variances = np.abs(errors)
        variances -= variances * (variances / np.maximum(self._position_weights, TINY)[:, None])
        in_doubt = variances.sum() / max(self._position_weights.sum(), TINY)
        expected = np.maximum(pairs + self._true_pairs, 0.0)
        return self.curvature(variances, coupling_penalty + 2.0 * in_doubt * expected)

    @cached_property
    def _position_weights(self) -> np.ndarray:
        """Return for each position the weight C_x of the chain, (positions,)."""
        return np.repeat(self.upper, self.lengths)

    @cached_property
    def _true_pairs(self) -> np.ndarray:
        """Return the weighted number of transitions in the labels, (states, states)."""
        steps, counts = self.step_starts, np.zeros((self.num_states, self.num_states))
        np.add.at(counts, (self.labels[steps], self.labels[steps + 1]), self._position_weights[steps])
        return counts


@dataclass(frozen=True, eq=False)
class LikelihoodProblem(LinearChains):
    """min_w ½‖w‖² − Σ_x C_x log p(y_x | x), p ∝ exp(score), see :class:`LinearChains`.

    Source: max_margin_markov_networks_survey_2003, Equation 12; biases and transitions are regularised like
    all weights.

    Args:
        learns_all_steps: if False, transitions that never occur in the labels keep the weight 0.
    """

    learns_all_steps: bool = True

    def value_and_gradient(self, flat: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the objective and the gradient at the weights ``flat``."""
        loss, errors, pairs = self.losses(self.scores(flat), self.transition(flat))
        if not self.learns_all_steps:
            pairs = pairs * (self._true_pairs > 0)
        gradient = self.by_weights(errors, pairs)
        gradient += flat
        return 0.5 * float(flat @ flat) + loss, gradient

    def curvature_at(self, flat: np.ndarray) -> Curvature:
        """Estimate the objective's Hessian at the weights ``flat``."""
        return self.curvature_of(*self.losses(self.scores(flat), self.transition(flat))[1:])


@dataclass(frozen=True, eq=False)
class PartialLikelihoodProblem(LikelihoodProblem):
    """min_w ½‖w‖² − Σ_x C_x log p(labels of x are allowed | x): the likelihood of partly labelled chains.

    The loss is log Σ_y exp(score(y)) minus the same log-sum over the allowed labellings; it is not convex.
    Arguments: as :class:`LinearChains`, with an allowed labelling as ``labels``, and:

    Args:
        allowed_labels: (positions, states), true for each allowed label of a position.

    Raises:
        ValueError: see :class:`LinearChains`; ``allowed_labels`` has another shape.
    """

    allowed_labels: np.ndarray = None  # pyright: ignore[reportAssignmentType]  # behind fields with defaults

    def __post_init__(self) -> None:
        super().__post_init__()
        check_shape("allowed_labels", self.allowed_labels, len(self.labels), self.num_states)

    def losses(self, scores: np.ndarray, transition: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """Return the losses, with gradients in scores and transitions."""
        scores, transition = self.forbidding(scores, transition)
        loss, errors, pairs = likelihoods(scores, transition, self.start, self.labels, self.upper)
        # Recompute only chains with several allowed labellings: for others, the score is subtracted already.
        are_open, rows = self._open
        some = np.where(self.allowed_labels[rows], scores[rows], FORBIDDEN)
        start = np.concatenate([[0], self.lengths[are_open].cumsum()])
        within = likelihoods(some, transition, start, self.labels[rows], self.upper[are_open])
        errors[rows] -= within[1]
        return loss - within[0], errors, pairs - within[2]

    @cached_property
    def _open(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the chains with several allowed labellings, and the positions of these chains."""
        are_open = np.add.reduceat(self.allowed_labels.sum(1) > 1, self.start[:-1]) > 0
        return np.flatnonzero(are_open), np.flatnonzero(np.repeat(are_open, self.lengths))


@dataclass(frozen=True, eq=False)
class ChainMargins(LinearChains, MarginProblem):
    """min_w ½‖w‖² + Σ_x C_x max_y [Hamming(y_x, y) + score(x, y) − score(x, y_x)], see :class:`LinearChains`.

    The problem is for :mod:`~lmbm_torch.solvers.structural.smoothing`. Besides the arguments of
    :class:`LinearChains`:

    Args:
        coupling_penalty: η > 0, multiplies the squares of the transitions.

    Raises:
        ValueError: see :class:`LinearChains`; the penalty is not above zero.
    """

    coupling_penalty: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("coupling_penalty", self.coupling_penalty)

    def losses_at(self, flat: np.ndarray, temperature: float) -> tuple[float, np.ndarray, np.ndarray]:
        """Return the smoothed losses, see :meth:`MarginProblem.losses_at`."""
        return self.losses(self._augmented(self.scores(flat), 1 / temperature), self.transition(flat))

    def hinges(self, flat: np.ndarray) -> float:
        """Return the hinges, see :meth:`MarginProblem.hinges`."""
        scores = self._augmented(self.scores(flat), 1.0)
        scores, transition = self.forbidding(scores, self.transition(flat))
        _, hinges = best_labels(scores, transition, self.lengths, self.labels)
        return float(self.upper @ np.maximum(hinges, 0.0))

    def expected_loss(self, errors: np.ndarray) -> float:
        """Return the expected loss, see :meth:`MarginProblem.expected_loss`."""
        # At a true label, the gradient is −C (1 − marginal), so minus the sum is the expected Hamming loss.
        return -float(errors[np.arange(len(errors)), self.labels].sum())

    def curvature_at(self, flat: np.ndarray, temperature: float) -> Curvature:
        """Estimate the Hessian, see :meth:`MarginProblem.curvature_at`."""
        _, errors, pairs = self.losses_at(flat, temperature)
        return self.curvature_of(errors, pairs, self.coupling_penalty)

    def _augmented(self, scores: np.ndarray, loss: float) -> np.ndarray:
        """Return scores (positions, states) with ``loss`` added for each wrong label."""
        augmented = scores + loss
        augmented[np.arange(len(scores)), self.labels] -= loss
        return augmented
