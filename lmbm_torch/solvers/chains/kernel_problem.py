"""Max-margin Markov networks of chains with a kernel: the factored dual, written with kernel values."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from lmbm_torch.checks import check_finite, check_positive, check_shape
from lmbm_torch.solvers.base import Certified, SolverState, at_most
from lmbm_torch.solvers.chains.problems import AllowedSteps, LabelledChains, best_labels
from lmbm_torch.solvers.gram import asymmetry

# Number of passes between two computations of the duality gap, which take as long as about ten passes.
PASSES_AT_ONCE = 10

limits = at_most(PASSES_AT_ONCE)


@dataclass(frozen=True, eq=False)
class Certificate(Certified):
    """The weights of given marginals, with the primal and the dual value.

    Args:
        scores: (positions, states), Σ_t' k(x_t, x_t') coef_t'.
        transition: the weights of the transitions, (states, states).
        primal: the primal objective at the weights.
        dual: the dual value of the marginals, never above the optimum.
    """

    scores: np.ndarray
    transition: np.ndarray
    primal: float
    dual: float


@dataclass(frozen=True, eq=False)
class ChainState(Certificate, SolverState):
    """Base class for the states of the solvers of :class:`ChainKernelProblem`.

    Args:
        num_iters: passes made so far, see :class:`~lmbm_torch.solvers.base.SolverState`.
    """

    num_iters: int


@dataclass(frozen=True)
class ChainKernelProblem(LabelledChains):
    """The factored dual of max_margin_markov_networks_survey_2003, Equation 41, on chains.

        max_μ Σ_x C_x Σ_t (1 − μ_t(truth_t)) − ½‖w‖²,  w = Σ_x C_x Σ_t (e_truth − μ_t) ⊗ φ(x_t), transitions,

    where μ are the node and edge marginals of a distribution over each chain's labellings. Edge marginals sum
    to the node marginals at both ends; (40) and (41) print only one of these two constraints, which would be
    a relaxation. Marginals sum to 1 here, not to C/n as in (41), and have the factor C_x. Inputs enter only
    by kernel values; transitions have explicit weights. A constant added to the kernel acts as a constant
    feature.

    Args:
        gram: (positions, positions), symmetric and positive semidefinite (not checked).
        labels: (positions,), the true state at each position.
        start: (chains + 1,), first position of each chain.
        num_states: the number of states.
        C: the weight of the losses in ½‖w‖² + Σ_x C_x hinge_x.
        sample_weight: (chains,), multiplies C.
        coupling_penalty: η > 0, multiplies the squares of the transitions.
        allowed: the allowed steps, which must include the true steps; None if all steps are allowed.

    Raises:
        ValueError: a shape is wrong; kernel values are not finite or not symmetric; a label is no state; a
            chain has no position; a setting is not above zero.
    """

    gram: np.ndarray
    labels: np.ndarray
    start: np.ndarray
    num_states: int
    C: float = 1.0
    sample_weight: np.ndarray | None = None
    coupling_penalty: float = 1.0
    allowed: AllowedSteps | None = None
    upper: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        gram = np.ascontiguousarray(self.gram, np.float64)
        check_shape("gram", gram, None, len(gram))
        check_finite("gram", gram)
        differences = asymmetry(torch.from_numpy(gram))
        if differences > 1e-9 * max(float(gram.max()), -float(gram.min())):
            raise ValueError(f"gram: expected a symmetric matrix, got differences of up to {differences}")
        check_positive("coupling_penalty", self.coupling_penalty)
        object.__setattr__(self, "gram", gram)
        self._check(len(gram))

    @property
    def has_single_positions(self) -> bool:
        """Return whether every chain has only one position, so that there are no transitions."""
        return len(self.labels) == len(self.upper)

    def check_unrestricted(self) -> None:
        """Raise ValueError if the problem forbids some steps; only :mod:`~.smo` takes such problems."""
        if self.allowed is not None:
            raise ValueError("problem: expected that all steps are allowed, got forbidden steps; use smo")

    def coef(self, nodes: np.ndarray) -> np.ndarray:
        """Return C_x (truth − μ), (positions, states), the coefficients of the kernel values."""
        return self.upper[self.chain][:, None] * (self.truth - nodes)

    def transition(self, pairs: np.ndarray) -> np.ndarray:
        """Return the weights of the transitions, (states, states).

        Args:
            pairs: (states, states), the weighted sum Σ_x C_x Σ_t of the edge marginals.
        """
        steps = self.step_starts
        seen = np.zeros((self.num_states, self.num_states))
        np.add.at(seen, (self.labels[steps], self.labels[steps + 1]), self.upper[self.chain[steps]])
        return (seen - pairs) / self.coupling_penalty

    def certify(self, nodes: np.ndarray, pairs: np.ndarray) -> Certificate:
        """Compute the primal and the dual value at given marginals from all kernel values.

        Args:
            nodes: the node marginals, (positions, states).
            pairs: (states, states), the weighted sum Σ_x C_x Σ_t of the edge marginals.
        """
        coef, transition = self.coef(nodes), self.transition(pairs)
        scores = self.gram @ coef if coef.any() else np.zeros_like(coef)
        square = np.vdot(coef, scores) + self.coupling_penalty * np.square(transition).sum()
        wrong = 1 - self.truth
        hinge = self._best(scores + wrong, transition).clip(0)
        dual = self.upper[self.chain] @ (nodes * wrong).sum(1) - 0.5 * square
        return Certificate(scores, transition, float(0.5 * square + self.upper @ hinge), float(dual))

    def _best(self, fields: np.ndarray, transition: np.ndarray) -> np.ndarray:
        """Return the score of the best labelling minus the score of the truth, (chains,)."""
        fields, transition = self.forbidding(fields, transition)
        if self.has_single_positions:
            # Use NumPy for single positions: compiling the dynamic programme would take longer.
            return fields.max(1) - fields[np.arange(len(fields)), self.labels]
        return best_labels(fields, transition, self.lengths, self.labels)[1]
