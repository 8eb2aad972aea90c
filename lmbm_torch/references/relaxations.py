"""Reference programmes for :mod:`lmbm_torch.inference.relaxations.lp_relaxation`, over the local polytope.

Source: large_margin_boltzmann_machines_2009, problem 3.4, relaxed. The log-potentials are parameters of the
programme: cvxpy compiles one programme for all examples whose couplings are between the same pairs of labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lmbm_torch.checks import check_positive
from lmbm_torch.energies.pairwise import PairwiseEnergy
from lmbm_torch.extras import naming_extras
from lmbm_torch.inference.relaxations.lp_layer import LocalPolytope
from lmbm_torch.shapes import Float

with naming_extras():
    import cvxpy as cp
    import numpy as np

__all__ = []


@dataclass(frozen=True)
class Relaxation:
    """A convex programme for all energies that couple the same pairs of labels.

    Args:
        polytope: the local polytope, with the programme's variables and parameters.
        problem: the programme; its value is the maximum of the relaxed score, or the minimum of the relaxed
            loss.
        pairs: the coupled pairs.
    """

    polytope: LocalPolytope
    problem: cp.Problem
    pairs: tuple[tuple[int, int], ...]

    def solve(self, unary: np.ndarray, pairwise: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the optimum for the log-potentials of one example, and the relaxed labels in [0, 1]."""
        self.polytope.unary.value = unary
        self.polytope.weights.value = np.array([pairwise[pair] for pair in self.pairs])
        value = self.problem.solve(solver=cp.CLARABEL)
        return float(np.asarray(value)), np.asarray(self.polytope.labels.value)


def score_relaxation(num_labels: int, pairs: Sequence[tuple[int, int]]) -> Relaxation:
    """Build the programme that maximises the score, without the energy's constant, over the local polytope.

    Args:
        num_labels: the number of labels.
        pairs: the coupled pairs, (i, j) with i < j.

    Examples:
        >>> import torch
        >>> from lmbm_torch import PairwiseEnergy
        >>> from lmbm_torch.references.relaxations import relax, score_relaxation
        >>> energy = PairwiseEnergy(torch.tensor([[1.0, -1.0]]), torch.tensor([[0.0, 0.5], [0.5, 0.0]]))
        >>> values, labels = relax(score_relaxation(2, ((0, 1),)), energy)
        >>> values.round(decimals=6), labels.round(decimals=6).abs()
        (tensor([1.5000], dtype=torch.float64), tensor([[1., 0.]], dtype=torch.float64))
    """
    polytope = LocalPolytope(num_labels, pairs)
    problem = cp.Problem(cp.Maximize(polytope.score), polytope.constraints)
    return Relaxation(polytope, problem, tuple(pairs))


def hinge_relaxation(num_labels: int, pairs: Sequence[tuple[int, int]], margin: float) -> Relaxation:
    """Build the programme min Σ_i [margin − m_i]_+ over the local polytope, with local margins m_i.

    Args:
        num_labels: the number of labels.
        pairs: the coupled pairs, (i, j) with i < j.
        margin: γ > 0, in units of the local fields.

    Raises:
        ValueError: the margin is not a finite number above 0.

    Examples:
        >>> import torch
        >>> from lmbm_torch import PairwiseEnergy
        >>> from lmbm_torch.references.relaxations import hinge_relaxation, relax
        >>> energy = PairwiseEnergy(torch.tensor([[2.0, 0.5]]), torch.zeros(2, 2))
        >>> relax(hinge_relaxation(2, ((0, 1),), 1.0), energy)[0].round(decimals=6)
        tensor([0.5000], dtype=torch.float64)
    """
    check_positive("margin", margin)
    polytope = LocalPolytope(num_labels, pairs)
    losses = cp.pos(margin - polytope.margins)
    problem = cp.Problem(cp.Minimize(cp.sum(losses)), polytope.constraints)
    return Relaxation(polytope, problem, tuple(pairs))


def relax(
    relaxation: Relaxation, energy: PairwiseEnergy
) -> tuple[Float[Tensor, " batch"], Float[Tensor, "batch labels"]]:
    """Return the optimal value for each example, without the energy's constant, and the relaxed labels.

    Both are in float64 on the CPU.

    Args:
        relaxation: a programme for the energy's number of labels, which includes all coupled pairs.
        energy: a Boltzmann machine.

    Raises:
        ValueError: the energy has NaN or infinity, couplings are not symmetric, or the energy couples a pair
            that the programme does not have.

    Examples:
        >>> import torch
        >>> from lmbm_torch import PairwiseEnergy
        >>> from lmbm_torch.references.relaxations import relax, score_relaxation
        >>> energy = PairwiseEnergy(torch.tensor([[1.0, -2.0]]), torch.zeros(2, 2))
        >>> relax(score_relaxation(2, ((0, 1),)), energy)[0].round(decimals=6)
        tensor([3.], dtype=torch.float64)
    """
    energy.check_values()
    unary = energy.unary.detach().double().cpu().numpy()
    pairwise = energy.pairwise.detach().double().cpu().expand(len(unary), -1, -1).numpy()
    missing = {(int(i), int(j)) for i, j in np.argwhere(np.triu((pairwise != 0).any(0)))}
    missing -= set(relaxation.pairs)
    if missing:
        raise ValueError(
            f"energy: expected couplings only of the relaxation's pairs, got {sorted(missing)[:5]}"
        )
    found = [relaxation.solve(*weights) for weights in zip(unary, pairwise, strict=True)]
    values, labels = zip(*found, strict=True)
    return torch.tensor(values, device="cpu").double(), torch.tensor(np.array(labels), device="cpu")
