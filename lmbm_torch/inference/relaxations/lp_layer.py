"""Relaxed labels as a differentiable function of log-potentials: a quadratic programme through cvxpylayers.

The relaxation of :mod:`lmbm_torch.inference.relaxations.lp_relaxation` jumps between vertices of the local
polytope as weights change: the gradient is zero or undefined. A strongly concave term makes the maximiser
unique and Lipschitz continuous, and differentiable almost everywhere:

    max over the local polytope of  score(s, t) − temperature/2 Σ_i s_i² − pair_temperature/2 Σ_ij t_ij²

with the labels' spins s in [−1, 1] and the pairs' products t. Without the last term the programme is
SparseMAP (:mod:`lmbm_torch.inference.relaxations.sparse_map`) over the local polytope instead of labellings,
as in Niculae and Martins, "LP-SparseMAP", ICML 2020. The layer runs on the CPU in float64, one conic
programme for each example: for small models and comparisons, not for inner loops (64 examples of 14 labels
take some seconds).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import combinations

import numpy as np
import torch

from lmbm_torch.checks import check_not_negative, check_positive
from lmbm_torch.energies.first_order import first_order
from lmbm_torch.energies.pairwise import PairwiseEnergy
from lmbm_torch.extras import naming_extras
from lmbm_torch.shapes import Float

with naming_extras():
    import cvxpy as cp
    from cvxpylayers.torch.cvxpylayer import CvxpyLayer

__all__ = ["relaxed_labels"]

# The solver turns squares into cones, so x is accurate to the square root of the tolerance: at the default,
# 1e-8, labels were off by 1e-5, at 1e-10 by 1e-6, and gradients by less.
ACCURACY = dict.fromkeys(("tol_gap_abs", "tol_gap_rel", "tol_feas"), 1e-10)


def relaxed_labels(
    energy: PairwiseEnergy, *, temperature: float = 0.1, pair_temperature: float = 0.1
) -> Float[torch.Tensor, "batch labels"]:
    """Return the labels in [0, 1] of the regularised relaxation; gradients flow to the energy's tensors.

    Every pair of labels has a product, coupled or not, so zero couplings have gradients, too.

    Args:
        energy: a Boltzmann machine.
        temperature: > 0, of the labels' term, in units of the score: smaller values are closer to the linear
            programme, with more zero gradients.
        pair_temperature: ≥ 0, of the products' term; at 0 products need not be unique, and the gradient is
            then that of one choice.

    Raises:
        ValueError: NaN or infinity in the energy, or couplings that are not symmetric; a temperature that is
            not a finite number above 0, or a pair temperature below 0.
        diffcp.SolverError: the solver gave up.
    """
    energy.check_values()
    check_positive("temperature", temperature)
    check_not_negative("pair_temperature", pair_temperature)
    energy = first_order(energy, "lp_layer.relaxed_labels")
    labels = energy.num_labels
    if labels == 1:
        # Without pairs there is a closed form; cvxpylayers would miss the pairs' parameter.
        return ((energy.unary / temperature + 1) / 2).clamp(0, 1)
    first, second = torch.triu_indices(labels, labels, 1, device=energy.device)
    both = energy.pairwise[..., first, second] + energy.pairwise[..., second, first]
    unary, weights = energy.unary.double().cpu(), both.double().cpu() / 2
    layer = _layer(labels, float(temperature), float(pair_temperature))
    (relaxed,) = layer(unary, weights.expand(len(unary), -1))
    # An interior point may be past a bound by the solver's tolerance.
    return relaxed.clamp(0, 1).to(energy.device, energy.dtype)


class LocalPolytope:
    """Variables, constraints, and margins of labels as affine functions of the variables and the weights.

    y holds the marginals of labels, z the marginals P(y_i = 1, y_j = 1) of coupled pairs, consistent with y:

        0 ≤ z_ij,   z_ij ≤ y_i,   z_ij ≤ y_j,   y_i + y_j − z_ij ≤ 1,   y ≤ 1

    Spins are 2y − 1, and products of spins 4z − 2y_i − 2y_j + 1.

    Args:
        num_labels: K.
        pairs: the coupled pairs, (i, j) with i < j.
    """

    def __init__(self, num_labels: int, pairs: Sequence[tuple[int, int]]) -> None:
        first, second = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
        self.labels = cp.Variable(num_labels)
        self.unary, self.weights = cp.Parameter(num_labels), cp.Parameter(len(first))
        y, z = self.labels, cp.Variable(len(first))
        self.constraints: list[cp.Constraint] = [y >= 0, y <= 1, z >= 0]
        self.constraints += [z <= y[first], z <= y[second], y[first] + y[second] - z <= 1]
        self.spins = 2 * y - 1
        self.spin_products = 4 * z - 2 * y[first] - 2 * y[second] + 1
        # The pairs of each label.
        self.incidence = np.zeros((num_labels, len(first)))
        pair = np.arange(len(first))
        self.incidence[first, pair] = self.incidence[second, pair] = 1

    @property
    def score(self) -> cp.Expression:
        """Return Σ_i unary_i s_i + Σ_{i<j} pairwise_ij s_i s_j."""
        return self.unary @ self.spins + self.weights @ self.spin_products

    @property
    def margins(self) -> cp.Expression:
        """Return m_i = unary_i s_i + Σ_j pairwise_ij s_i s_j."""
        coupled = self.incidence @ cp.multiply(self.weights, self.spin_products)
        return cp.multiply(self.unary, self.spins) + coupled


@lru_cache(maxsize=8)
def _layer(num_labels: int, temperature: float, pair_temperature: float) -> CvxpyLayer:
    polytope = LocalPolytope(num_labels, tuple(combinations(range(num_labels), 2)))
    squares = temperature * cp.sum_squares(polytope.spins)
    if pair_temperature:
        squares += pair_temperature * cp.sum_squares(polytope.spin_products)
    problem = cp.Problem(cp.Maximize(polytope.score - squares / 2), polytope.constraints)
    return CvxpyLayer(
        problem,
        parameters=[polytope.unary, polytope.weights],
        variables=[polytope.labels],
        solver_args={"solve_method": "Clarabel", **ACCURACY},
    )
