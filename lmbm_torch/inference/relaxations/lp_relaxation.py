"""Decoding of Boltzmann machines by linear programming over the local polytope with the solver Clarabel.

The solution has marginals for labels and coupled pairs. Pairs agree on their labels, but no joint
distribution need have these marginals (:mod:`lmbm_torch.inference.relaxations.local_polytope`). If all labels
of the solution are 0 or 1, the answer is optimal. Otherwise, rounded labels and the labels of largest own
field are both improved by single flips, and the better is taken: frustrated models can have ½ for every
label, where rounding is useless. An answer counts as exact if no answer can be better by more than 10⁻⁶
of the largest weight, and ``status.residual`` is the remaining gap. The solver is set up once for a batch.
The same programmes in cvxpy are :mod:`lmbm_torch.references.relaxations`.
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

# Relaxed labels above this number round to 1; ½ within the solver's tolerance rounds to 0, like a tie.
HALF = 0.5 + 1e-6
# Number of variables (some 150 dense labels) from which Ctrl-C can stop a solve; smaller ones end at once.
SOON = 10_000


@torch.no_grad()
def decode(
    energy: Machine, *, known: Known | None = None, constraints: Constraints | None = None
) -> Decoding:
    """Return an approximate MAP labelling by the linear relaxation, with a bound.

    ``bound`` is the linear programme's optimum, an upper bound of every score; ``relaxed`` holds the
    fractional labels, ``labels`` the rounded and improved labels, and ``objective`` the score of ``labels``.

    Args:
        energy: a Boltzmann machine; each subset of two or more labels of a clique (of at most twelve) is a
            variable.
        known: {0, 1, NaN}, NaN for a free label; only labellings with the known values are considered.
        constraints: rules that labellings must obey, each a constraint of the programme; rounded labels that
            break a rule are replaced by the nearest allowed labels, without flips.

    Raises:
        ValueError: NaN or infinity in the energy, or couplings that are not symmetric; ``known`` has another
            shape than (batch, labels), or impossible values; rules over another number of labels, or that
            contradict the known labels; a clique of more than twelve labels.
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
    """Return labels of small Σ_i [margin − m_i]_+ (large_margin_boltzmann_machines_2009, problem 3.4).

    ``bound`` is the linear programme's optimum, a lower bound of every loss; other fields: see
    :func:`decode`.

    Args:
        energy, constraints: see :func:`decode`.
        margin: γ > 0, in units of the local fields.
        known: see :func:`decode`; the hinge losses of known labels are part of the sum.

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
    # The solver's point may exceed the limits 0 and 1 by the solver's tolerance.
    leaders = torch.tensor(np.array([solution.values for solution in solutions]), device="cpu").clamp(0, 1)
    relaxed = task.settled.of_all(leaders)
    labels = task.better(task.improve((relaxed > HALF).long()), task.own_choice())
    found = task.decoding(labels, solutions)
    return replace(found, relaxed=relaxed.to(task.energy.device, task.energy.dtype))


class _Columns(NamedTuple):
    """Sparse matrix for the solver, with the attributes of SciPy's compressed columns, without SciPy."""

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
    # Presolve and dropped zeros would remove entries that are 0 in the first example but not in later ones.
    settings.presolve_enable = False
    settings.input_sparse_dropzeros = False
    # Equilibration would scale every example by the first example's weights. Weights are scaled already, and
    # the scaling could change which of several optimal answers an example gets.
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
    """Solve an example, with a bound from the dual variables that holds even without convergence.

    For any λ ≥ 0 no feasible x costs less than −λ·upper + Σ_j min over x_j of (cost + matrixᵀ λ)_j x_j.
    λ is 0 for limits of single variables x_j, because the minimum over x_j respects them.
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
    """Run the solver; Ctrl-C stops the solver between iterations."""
    ends = Event()
    solver.set_termination_callback(lambda _: ends.is_set())
    return interruptible(solver.solve, ends.set)
