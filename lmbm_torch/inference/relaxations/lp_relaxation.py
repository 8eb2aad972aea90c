"""Decoding of Boltzmann machines by linear programming over the local polytope: Clarabel, called directly.

Marginals of labels and coupled pairs are consistent, but need not be marginals of one labelling
(:mod:`lmbm_torch.inference.relaxations.local_polytope`); if the relaxation is tight, rounding is exact. Else
the rounded labels, and the labels preferred by their own evidence, are improved by single flips, and the
better labels are taken: for frustrated models, with a relaxation of ½ for every label, rounding alone is
useless. An answer counts as exact if no other answer can be better by more than a share of 10⁻⁶ of the
largest weight, and ``status.residual`` is the remaining gap. The solver is set up once for a batch and takes
each example's weights in turn. The same programmes in cvxpy are :mod:`lmbm_torch.references.relaxations`.
"""

# Clarabel is a compiled module without stubs.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from dataclasses import replace
from threading import Event
from typing import NamedTuple

import numpy as np
import torch

from lmbm_torch.constraints import Constraints
from lmbm_torch.extras import naming_extras
from lmbm_torch.inference.common.results import Decoding
from lmbm_torch.inference.relaxations.local_polytope import LocalPolytope, Programme
from lmbm_torch.inference.relaxations.objectives import Hinge, Score, Solution, Task
from lmbm_torch.inference.trees.log_tables import Machine
from lmbm_torch.kernels.threads import interruptible
from lmbm_torch.shapes import Known

with naming_extras():
    import clarabel

__all__ = ["decode", "decode_hinge"]

# Threshold of rounding: a solver's ½, on either side, becomes 0, as a tie of scores does.
HALF = 0.5 + 1e-6
# Variables of a programme, some 150 dense labels, below which the solver is too fast for an interruption.
SOON = 10_000


@torch.no_grad()
def decode(
    energy: Machine, *, known: Known | None = None, constraints: Constraints | None = None
) -> Decoding:
    """Return relaxed MAP: ``bound`` is the linear programme's value, at least any labelling's score.

    ``relaxed`` holds the fractional labels, ``labels`` the rounded and improved labels, ``objective`` their
    score.

    Args:
        energy: a Boltzmann machine; every subset of two or more labels of a clique of at most twelve labels
            is a product.
        known: {0, 1, NaN}, NaN for a free label; only labellings that agree compete.
        constraints: rules that labellings must obey, each a row of the programme; rounded labels that break a
            rule are replaced by the nearest allowed labels, without flips.

    Raises:
        ValueError: NaN or infinity in the energy, or couplings that are not symmetric; ``known`` of another
            shape or with other values; rules over another number of labels, or that contradict the known
            labels; a clique of more than twelve labels.
    """
    return _decode(Task.of(energy, Score(), known, constraints))


@torch.no_grad()
def decode_hinge(
    energy: Machine,
    margin: float = 1.0,
    *,
    known: Known | None = None,
    constraints: Constraints | None = None,
) -> Decoding:
    """Return the relaxed least Σ_i [margin − m_i]_+ (large_margin_boltzmann_machines_2009, problem 3.4).

    ``bound`` is the linear programme's value, at most any labelling's loss; other fields: see :func:`decode`.

    Args:
        energy, constraints: see :func:`decode`.
        margin: γ > 0, in units of the local fields.
        known: see :func:`decode`; known labels still pay their own hinge loss.

    Raises:
        ValueError: see :func:`decode`; a margin that is not a finite number above 0.
    """
    return _decode(Task.of(energy, Hinge(margin), known, constraints))


def _decode(task: Task) -> Decoding:
    solver, solutions = None, []
    for programme in task.programmes():
        if solver is None:
            solver = _solver(task.polytope, programme)
        else:
            solver.update(q=programme.cost, A=programme.values, b=programme.upper)
        solutions.append(_solve(solver, task.polytope, programme))
    # An interior point may be past a bound by the solver's tolerance.
    leaders = torch.tensor(np.array([solution.values for solution in solutions]), device="cpu").clamp(0, 1)
    relaxed = task.settled.of_all(leaders)
    labels = task.better(task.improve((relaxed > HALF).long()), task.own_choice())
    found = task.decoding(labels, solutions)
    return replace(found, relaxed=relaxed.to(task.energy.device, task.energy.dtype))


class _Columns(NamedTuple):
    """Matrix for the solver: SciPy's compressed columns by name, without SciPy."""

    data: np.ndarray
    indices: np.ndarray
    indptr: np.ndarray
    shape: tuple[int, int]

    @property
    def has_canonical_format(self) -> bool:
        return True


def _solver(polytope: LocalPolytope, first: Programme) -> clarabel.DefaultSolver:
    """Return the solver for a batch, with the weights of the first example."""
    num_rows, num_columns = polytope.shape
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    # Presolve would remove entries for later examples' weights.
    settings.presolve_enable = False
    settings.input_sparse_dropzeros = False
    # Equilibration would use the first example alone. Weights are scaled already, and an example's answer
    # must not depend on the first example if the optimum is not unique.
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
    """Solve, and bound the optimum by the dual variables after any number of iterations.

    For any λ ≥ 0 no feasible x costs less than −λ·upper + Σ_j min over x_j of (cost + matrixᵀ λ)_j x_j;
    bounds of single variables x_j need no λ.
    """
    found = _run(solver) if len(programme.cost) >= SOON else solver.solve()
    dual = np.maximum(found.z, 0)
    dual[: polytope.num_bounds] = 0
    reduced = programme.cost + np.bincount(polytope.columns, programme.values * dual[polytope.rows])
    proven = programme.least_within_bounds(reduced) - float(dual @ programme.upper)
    bound = programme.in_full(max(proven, programme.least_within_bounds(programme.cost)))
    converged = found.status == clarabel.SolverStatus.Solved
    labels = np.array(found.x[: polytope.num_labels])
    return Solution(labels, bound, converged, found.iterations, programme.scale)


def _run(solver: clarabel.DefaultSolver) -> clarabel.DefaultSolution:
    """Return the solution, unless Ctrl-C comes first: the solver checks between iterations."""
    ends = Event()
    solver.set_termination_callback(lambda _: ends.is_set())
    return interruptible(solver.solve, ends.set)
