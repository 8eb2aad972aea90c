"""Relaxed decoding as a differentiable layer: a quadratic programme, solved by cvxpylayers.

The relaxation of :mod:`lmbm_torch.inference.relaxations.lp_relaxation` jumps between vertices of the local
polytope as weights change: the gradient is zero or undefined. A strongly concave term makes the maximiser
unique and Lipschitz continuous, and differentiable almost everywhere:

    max over the local polytope of  score(s, t) − temperature/2 Σ_i s_i² − pair_temperature/2 Σ_ij t_ij²

with the labels' spins s in [−1, 1] and the products t of pairs of spins. Without the last term, this is
SparseMAP (:mod:`lmbm_torch.inference.relaxations.sparse_map`) over the local polytope instead of
distributions over labellings, as in Niculae and Martins, "LP-SparseMAP", ICML 2020. The layer solves one
conic programme for each example on the CPU in float64, slowly: 64 examples of 14 labels take some seconds.
Use it for small models and comparisons, not for inner loops.
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

# Tolerances of the solver. Squares become cones, so x is accurate only to the square root of the tolerance:
# at the default 1e-8 labels were off by 1e-5, at 1e-10 by 1e-6, and gradients by less.
ACCURACY = dict.fromkeys(("tol_gap_abs", "tol_gap_rel", "tol_feas"), 1e-10)


def relaxed_labels(
    energy: PairwiseEnergy, *, temperature: float = 0.1, pair_temperature: float = 0.1
) -> Float[torch.Tensor, "batch labels"]:
    """Return the labels in [0, 1] that maximise the regularised relaxation, with gradients to the energy.

    Every pair of labels has a product, coupled or not: zero couplings receive gradients, too.

    Args:
        energy: a Boltzmann machine.
        temperature: > 0, the weight of the labels' squares, in units of the score: smaller values are closer
            to the linear programme, whose gradients are mostly zero.
        pair_temperature: ≥ 0, the weight of the products' squares. At 0 several products may be optimal, and
            the gradient belongs to the solver's choice.

    Raises:
        ValueError: NaN or infinity in the energy, or couplings that are not symmetric; a temperature that is
            not a finite number above 0, or a pair temperature below 0.
        diffcp.SolverError: the solver failed.
    """
    energy.check_values()
    check_positive("temperature", temperature)
    check_not_negative("pair_temperature", pair_temperature)
    energy = first_order(energy, "lp_layer.relaxed_labels")
    labels = energy.num_labels
    if labels == 1:
        # Without pairs there is a closed form; cvxpylayers would fail for the empty parameter of pairs.
        return ((energy.unary / temperature + 1) / 2).clamp(0, 1)
    first, second = torch.triu_indices(labels, labels, 1, device=energy.device)
    both = energy.pairwise[..., first, second] + energy.pairwise[..., second, first]
    unary, weights = energy.unary.double().cpu(), both.double().cpu() / 2
    layer = _layer(labels, float(temperature), float(pair_temperature))
    (relaxed,) = layer(unary, weights.expand(len(unary), -1))
    # The solver's point may exceed the limits 0 and 1 by the solver's tolerance.
    return relaxed.clamp(0, 1).to(energy.device, energy.dtype)


class LocalPolytope:
    """Local polytope in cvxpy: variables, constraints, and margins as expressions of variables and weights.

    y holds the marginals P(y_i = 1), z the marginals P(y_i = 1, y_j = 1) of coupled pairs, consistent with y:

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
        # Entry (i, p) is 1 if label i is in pair p.
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
