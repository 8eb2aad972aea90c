"""Exact decoding of Boltzmann machines by mixed-integer programming: HiGHS, called directly.

Products of labels are linearised (:mod:`lmbm_torch.inference.relaxations.local_polytope`), the model is laid
out once for a batch, and each example writes its weights into the model. For scores the relaxation is first
tightened repeatedly by violated inequalities of three labels, which often proves the optimum before any
search. Proofs hold up to the solver's feasibility tolerance: an answer counts as exact if no other answer can
be better by more than a share of 10⁻⁶ of the largest weight, and ``status.residual`` is the remaining gap.
The search is exponential: scores of fifty dense labels take seconds, losses far longer; limits end a search.

Among three labels either no pair differs or two pairs differ (Barahona and Mahjoub, "On the cut polytope",
Mathematical Programming 36, 1986): with y and z as in :mod:`lmbm_torch.inference.relaxations.local_polytope`,

    z_ij + z_ik ≤ y_i + z_jk,   and so for j and k,   y_i + y_j + y_k ≤ 1 + z_ij + z_ik + z_jk

The inequalities are too many to set up; solvers get those that the last solution violates.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch

from lmbm_torch.checks import check_count, check_positive
from lmbm_torch.constraints import Constraints
from lmbm_torch.extras import naming_extras
from lmbm_torch.inference.common.given import clamp
from lmbm_torch.inference.common.results import Decoding
from lmbm_torch.inference.relaxations.local_polytope import LocalPolytope, Programme
from lmbm_torch.inference.relaxations.objectives import Hinge, Score, Solution, Task
from lmbm_torch.inference.trees.log_tables import Machine
from lmbm_torch.kernels.threads import interruptible
from lmbm_torch.shapes import Known

__all__ = ["decode", "decode_hinge"]

# Smaller violations of an inequality are the solver's tolerance.
VIOLATED = 1e-5


class Rows(NamedTuple):
    """Constraints factors · x[columns] ≤ upper.

    Args:
        columns: (rows, 6), variables.
        factors: (rows, 6).
        upper: (rows,).
    """

    columns: np.ndarray
    factors: np.ndarray
    upper: np.ndarray


# Of y_i, y_j, y_k, z_ij, z_ik, z_jk, one row for each inequality of three labels.
FACTORS = np.array(
    [[-1.0, 0, 0, 1, 1, -1], [0, -1.0, 0, 1, -1, 1], [0, 0, -1.0, -1, 1, 1], [1, 1, 1, -1, -1, -1]]
)
UPPER = np.array([0.0, 0, 0, 1])


@dataclass(frozen=True)
class CycleInequalities:
    """Inequalities of every three labels that are all coupled.

    Args:
        columns: (triples, 6), the variables of each three labels, in the order of ``FACTORS``.
    """

    columns: np.ndarray

    @classmethod
    def of(cls, polytope: LocalPolytope) -> CycleInequalities:
        """Return the inequalities of a batch's structure."""
        labels = polytope.num_labels
        first, second = polytope.pairs
        product = np.zeros((labels, labels), dtype=np.int64)
        product[first, second] = labels + np.arange(len(first))
        pair, third = ((product[first] > 0) & (product[second] > 0)).nonzero()
        one, other = first[pair], second[pair]
        columns = [one, other, third, product[one, other], product[one, third], product[other, third]]
        return cls(np.stack(columns, 1))

    def violated(self, values: np.ndarray, most: int) -> Rows:
        """Return at most ``most`` inequalities that a solution violates, the worst first."""
        excess = (values[self.columns] @ FACTORS.T - UPPER).ravel()
        worst = np.argsort(-excess, kind="stable")[:most]
        triple, kind = np.divmod(worst[excess[worst] > VIOLATED], len(FACTORS))
        return Rows(self.columns[triple], FACTORS[kind], UPPER[kind])


with naming_extras():
    import highspy


# Rounds of tightening, and inequalities that each may add.
MAX_ROUNDS = 100
ROWS_PER_LABEL = 10
# An inequality with more to spare does not hold the relaxation.
SLACK = 1e-6


@torch.no_grad()
def decode(
    energy: Machine,
    *,
    known: Known | None = None,
    constraints: Constraints | None = None,
    node_limit: int | None = None,
    time_limit: float | None = None,
) -> Decoding:
    """Return argmax_y score(y), the MAP labelling; the score is the objective, ``nodes`` those of the search
    tree.

    An example at a limit has ``status.converged`` false, the best labelling so far, improved by single flips,
    and the best bound; ``status.exact`` where labelling and bound meet nevertheless.

    Args:
        energy: a Boltzmann machine; every subset of two or more labels of a clique of at most twelve labels
            is a product.
        known: {0, 1, NaN}, NaN for a free label; only labellings that agree compete.
        constraints: rules that labellings must obey, each a row of the programme.
        node_limit: the approximate number of nodes after which an example's search ends.
        time_limit: the approximate number of seconds for an example. Results then depend on the computer.

    Raises:
        ValueError: NaN or infinity in the energy, or couplings that are not symmetric; ``known`` of another
            shape or with other values; a node limit that is no count, a time limit that is not a finite
            number above 0; rules over another number of labels, or that contradict the known labels; a clique
            of more than twelve labels.
        RuntimeError: the solver gave up, without memory or by an internal error.
    """
    task = Task.of(energy, Score(), known, constraints)
    return _decode(task, CycleInequalities.of(task.polytope), node_limit, time_limit)


@torch.no_grad()
def decode_hinge(
    energy: Machine,
    margin: float = 1.0,
    *,
    known: Known | None = None,
    constraints: Constraints | None = None,
    node_limit: int | None = None,
    time_limit: float | None = None,
) -> Decoding:
    """Return argmin_y Σ_i [margin − m_i]_+ (large_margin_boltzmann_machines_2009, problem 3.4).

    Args:
        energy: see :func:`decode`.
        margin: γ > 0, in units of the local fields.
        known: see :func:`decode`; known labels still pay their own hinge loss.
        constraints, node_limit, time_limit: see :func:`decode`.

    Raises:
        ValueError: see :func:`decode`; a margin that is not a finite number above 0.
        RuntimeError: see :func:`decode`.
    """
    # Relaxed losses stay 0 whatever is said of three labels: half the speed, measured, for nothing.
    return _decode(Task.of(energy, Hinge(margin), known, constraints), None, node_limit, time_limit)


def _decode(
    task: Task, cycles: CycleInequalities | None, node_limit: int | None, time_limit: float | None
) -> Decoding:
    start = task.own_choice()
    model, limits = _model(task.polytope), _limits(node_limit, time_limit)
    solutions = [
        _solve(_solver(limits), model, programme, labels, cycles)
        for programme, labels in zip(
            task.programmes(), clamp(start.double(), task.settled.known).numpy(), strict=True
        )
    ]
    leaders = torch.tensor(np.array([solution.values for solution in solutions]).round(), device="cpu")
    labels = task.settled.of_all(leaders).long()
    # At a limit, the solver may not have evaluated the start.
    found = task.decoding(task.better(task.improve(labels), start), solutions)
    return replace(found, nodes=found.status.num_iters)


def _limits(node_limit: int | None, time_limit: float | None) -> dict[str, int | float]:
    limits: dict[str, int | float] = {}
    if node_limit is not None:
        check_count("node_limit", node_limit)
        limits["mip_max_nodes"] = int(node_limit)
    if time_limit is not None:
        check_positive("time_limit", time_limit)
        limits["time_limit"] = float(time_limit)
    return limits


def _solver(limits: dict[str, int | float]) -> highspy.Highs:
    """Return a solver for one example: an earlier solver would count its time, and keep its labelling.

    Passing the model takes 0.2 ms for 14 labels and 3 ms for 100, far less than any search.
    """
    solver = highspy.Highs()
    # Enables cancellation.
    solver.HandleUserInterrupt = True
    # The tolerances add up over a hinge's products: at the default of 1e-6 a bound fell 1e-6 short.
    tolerances = {"mip_feasibility_tolerance": 1e-9, "primal_feasibility_tolerance": 1e-9}
    gaps = {"mip_rel_gap": 0.0, "mip_abs_gap": 0.0}
    for name, value in ({"output_flag": False} | tolerances | gaps | limits).items():
        solver.setOptionValue(name, value)
    return solver


def _model(polytope: LocalPolytope) -> highspy.HighsLp:
    model = highspy.HighsLp()
    model.num_row_, model.num_col_ = polytope.shape
    model.row_lower_ = np.full(model.num_row_, -highspy.kHighsInf)
    model.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    model.a_matrix_.start_, model.a_matrix_.index_ = polytope.start, polytope.rows
    others = model.num_col_ - polytope.num_labels
    kinds = highspy.HighsVarType
    model.integrality_ = [kinds.kInteger] * polytope.num_labels + [kinds.kContinuous] * others
    return model


def _solve(
    solver: highspy.Highs,
    model: highspy.HighsLp,
    programme: Programme,
    start: np.ndarray,
    cycles: CycleInequalities | None,
) -> Solution:
    """Write one example into the model and solve the model from the labelling ``start``."""
    model.col_cost_, model.col_lower_, model.col_upper_ = programme.cost, programme.least, programme.most
    model.a_matrix_.value_, model.row_upper_ = programme.values, programme.upper
    solver.passModel(model)
    # Before any relaxation is solved there is no bound but each variable's own.
    relaxed = programme.least_within_bounds(programme.cost)
    if cycles is not None:
        relaxed = max(relaxed, _tighten(solver, cycles, len(start)))
    solver.setSolution(len(start), np.arange(len(start), dtype=np.int32), start)
    interruptible(solver.run, solver.cancelSolve)
    status, statuses = solver.getModelStatus(), highspy.HighsModelStatus
    if status not in (statuses.kOptimal, statuses.kTimeLimit, statuses.kSolutionLimit):
        raise RuntimeError(f"HiGHS: expected an optimum or a limit, got {solver.modelStatusToString(status)}")
    info = solver.getInfo()
    found = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    values = np.array(solver.getSolution().col_value[: len(start)]) if found else start
    bound = programme.in_full(max(info.mip_dual_bound, relaxed))
    # Presolve may solve an example altogether: no node, and no bound but the optimum itself.
    nodes = max(0, int(info.mip_node_count))
    return Solution(values, bound, status == statuses.kOptimal, nodes, programme.scale)


def _tighten(solver: highspy.Highs, cycles: CycleInequalities, num_labels: int) -> float:
    """Add the cycle inequalities that are tight at the relaxation's optimum, and return the optimum."""
    given, bound = solver.getNumRow(), -np.inf
    solver.setOptionValue("solve_relaxation", True)
    for _ in range(MAX_ROUNDS):
        interruptible(solver.run, solver.cancelSolve)
        if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            break
        bound = solver.getInfo().objective_function_value
        rows = cycles.violated(np.array(solver.getSolution().col_value), ROWS_PER_LABEL * num_labels)
        count, there = len(rows.upper), rows.factors != 0
        if not count:
            break
        starts = np.concatenate([[0], there.sum(1).cumsum()[:-1]]).astype(np.int32)
        columns, factors = rows.columns[there].astype(np.int32), rows.factors[there]
        below = np.full(count, -highspy.kHighsInf)
        solver.addRows(count, below, rows.upper, len(columns), starts, columns, factors)
    _delete_slack_rows(solver, given)
    solver.setOptionValue("solve_relaxation", False)
    return bound


def _delete_slack_rows(solver: highspy.Highs, given: int) -> None:
    """Delete the rows after the first ``given`` that are slack at the last solution: the search is faster."""
    values = np.array(solver.getSolution().row_value)
    slack = np.flatnonzero(np.array(solver.getLp().row_upper_)[: len(values)] - values > SLACK)
    slack = slack[slack >= given].astype(np.int32)
    if len(slack):
        solver.deleteRows(len(slack), slack)
