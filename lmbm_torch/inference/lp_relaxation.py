"""Decoding of pairwise energies by linear programming over the local polytope: Clarabel, called directly.

Marginals of labels and coupled pairs need only be consistent, not those of one labelling
(:mod:`lmbm_torch.inference.local_polytope`); where the relaxation is tight, rounding it is exact. The solver
is set up once for a batch and takes each example's weights in turn. It runs on the CPU in float64: weights on
another device are copied there, and results return to the energy's device and dtype.
"""

# Clarabel is a compiled module without stubs.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import clarabel
import numpy as np
import torch
from torch import Tensor

from lmbm_torch.checks import check_positive
from lmbm_torch.energies.pairwise import PairwiseEnergy
from lmbm_torch.inference.local_polytope import (
    LocalPolytope,
    Programme,
    Solution,
    decoding,
    hinge_loss,
)
from lmbm_torch.inference.results import Decoding

__all__ = ["decode", "decode_hinge"]

# A solver's one half, which may lie on either side of it, is rounded to 0 as a tie of scores would be.
HALF = 0.5 + 1e-6


@torch.no_grad()
def decode(energy: PairwiseEnergy) -> Decoding:
    """MAP relaxed: ``bound`` is the linear programme's value, at least any labelling's score.

    ``relaxed`` holds the fractional labels, ``labels`` those rounded, ``objective`` the score of these.

    Args:
        energy: a Boltzmann machine.

    Raises:
        ValueError: NaN or infinity in the energy, or couplings that are not symmetric.
    """
    energy.check_values()
    polytope = LocalPolytope.of(energy, num_losses=0)
    found = _decode(energy, polytope, polytope.score_programme, lambda e, labels: -e.score(labels))
    return replace(found, objective=energy.constant - found.objective, bound=energy.constant - found.bound)


@torch.no_grad()
def decode_hinge(energy: PairwiseEnergy, margin: float = 1.0) -> Decoding:
    """Problem 3.4 of large_margin_boltzmann_machines_2009 relaxed: least Σ_i [margin − m_i]_+.

    ``bound`` is the linear programme's value, at most any labelling's loss; the rest as for :func:`decode`.

    Args:
        energy: a Boltzmann machine.
        margin: γ > 0, in units of the local fields.

    Raises:
        ValueError: as :func:`decode`; a margin that is not a finite number above 0.
    """
    check_positive("margin", margin)
    energy.check_values()
    polytope = LocalPolytope.of(energy, num_losses=energy.num_labels)
    return _decode(
        energy,
        polytope,
        lambda unary, pairwise: polytope.hinge_programme(unary, pairwise, margin),
        lambda e, labels: hinge_loss(e, labels, margin),
    )


def _decode(
    energy: PairwiseEnergy,
    polytope: LocalPolytope,
    programme: Callable[[np.ndarray, np.ndarray], Programme],
    loss: Callable[[PairwiseEnergy, Tensor], Tensor],
) -> Decoding:
    """Solve the examples' programmes one after another."""
    unary = energy.unary.double().cpu().numpy()
    pairwise = energy.pairwise.double().cpu().expand(len(unary), -1, -1).numpy()
    solver, solutions = None, []
    for fields, couplings in zip(unary, pairwise, strict=True):
        example = programme(fields, couplings)
        if solver is None:
            solver = _solver(polytope, example)
        else:
            solver.update(q=example.cost, A=example.values, b=example.upper)
        solutions.append((example, _solve(solver, polytope, example)))
    # An interior point may be past a bound by the solver's tolerance.
    relaxed = torch.tensor(np.array([solution.values for _, solution in solutions])).clamp(0, 1)
    found = decoding(energy, (relaxed > HALF).long(), solutions, loss)
    return replace(found, relaxed=relaxed.to(energy.device, energy.dtype))


class _Columns(NamedTuple):
    """A matrix as the solver reads it: SciPy's compressed columns by their names, without SciPy."""

    data: np.ndarray
    indices: np.ndarray
    indptr: np.ndarray
    shape: tuple[int, int]

    @property
    def has_canonical_format(self) -> bool:
        return True

    @property
    def nnz(self) -> int:
        return len(self.data)


def _solver(polytope: LocalPolytope, first: Programme) -> clarabel.DefaultSolver:
    """The solver for a batch, with the weights of its first example."""
    num_rows, num_columns = polytope.shape
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    # Presolve would take away what later examples' weights are written into.
    settings.presolve_enable = False
    settings.input_sparse_dropzeros = False
    # It would be done for the first example alone. Weights come scaled, and where the optimum is not unique
    # an example's answer must not depend on the one that came first.
    settings.equilibrate_enable = False
    none = np.zeros(num_columns + 1, dtype=np.int64)
    return clarabel.DefaultSolver(
        _Columns(np.zeros(0), none[:0], none, (num_columns, num_columns)),
        first.cost,
        _Columns(first.values, polytope.rows, polytope.start, polytope.shape),
        first.upper,
        [clarabel.NonnegativeConeT(num_rows)],
        settings,
    )


def _solve(solver: clarabel.DefaultSolver, polytope: LocalPolytope, programme: Programme) -> Solution:
    """Solve, and bound the optimum by the dual variables however far the solver came.

    For any λ ≥ 0 no feasible x costs less than −λ·upper + Σ_j min(0, cost_j + (matrixᵀ λ)_j) most_j.
    """
    found = solver.solve()
    dual = np.maximum(found.z, 0)
    pulled = np.bincount(polytope.columns, programme.values * dual[polytope.rows])
    reduced = np.minimum(programme.cost + pulled, 0)
    bound = float(reduced @ programme.most - dual @ programme.upper)
    converged = found.status == clarabel.SolverStatus.Solved
    return Solution(np.array(found.x[: polytope.num_labels]), bound, converged, found.iterations)
