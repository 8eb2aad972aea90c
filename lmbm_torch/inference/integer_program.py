"""Exact decoding of pairwise energies by mixed-integer programming: HiGHS, called directly.

Products of labels are linearised (:mod:`lmbm_torch.inference.local_polytope`), the model is laid out once for
a batch, and each example writes its weights into it. The solver runs on the CPU in float64: weights on
another device are copied there, and results return to the energy's device and dtype. Proofs hold up to what
the solver's feasibility tolerance leaves open.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import highspy
import numpy as np
import torch
from torch import Tensor

from lmbm_torch.checks import check_known, check_positive
from lmbm_torch.energies.pairwise import PairwiseEnergy
from lmbm_torch.inference.local_polytope import (
    LocalPolytope,
    Programme,
    Solution,
    decoding,
    hinge_loss,
)
from lmbm_torch.inference.results import Decoding
from lmbm_torch.shapes import Shaped

__all__ = ["decode", "decode_hinge"]


@torch.no_grad()
def decode(energy: PairwiseEnergy, *, known: Shaped[Tensor, "batch labels"] | None = None) -> Decoding:
    """argmax_y score(y), the MAP labelling; the score is the objective, ``nodes`` those of the search tree.

    Args:
        energy: a Boltzmann machine.
        known: {0, 1, NaN}, NaN for a free label; only labellings that agree with it compete.

    Raises:
        ValueError: NaN or infinity in the energy, or couplings that are not symmetric; ``known`` of another
            shape or with other values.
        RuntimeError: the solver gave up, for want of memory or by a fault of its own.
    """
    energy.check_values()
    polytope = LocalPolytope.of(energy, num_losses=0)
    found = _decode(energy, polytope, known, polytope.score_programme, lambda e, labels: -e.score(labels))
    return replace(found, objective=energy.constant - found.objective, bound=energy.constant - found.bound)


@torch.no_grad()
def decode_hinge(
    energy: PairwiseEnergy, margin: float = 1.0, *, known: Shaped[Tensor, "batch labels"] | None = None
) -> Decoding:
    """argmin_y Σ_i [margin − m_i]_+ (large_margin_boltzmann_machines_2009, problem 3.4).

    Args:
        energy: a Boltzmann machine.
        margin: γ > 0, in units of the local fields.
        known: as for :func:`decode`; known labels still pay their own hinge.

    Raises:
        ValueError: as :func:`decode`; a margin that is not a finite number above 0.
        RuntimeError: as :func:`decode`.
    """
    check_positive("margin", margin)
    energy.check_values()
    polytope = LocalPolytope.of(energy, num_losses=energy.num_labels)
    return _decode(
        energy,
        polytope,
        known,
        lambda unary, pairwise: polytope.hinge_programme(unary, pairwise, margin),
        lambda e, labels: hinge_loss(e, labels, margin),
    )


def _decode(
    energy: PairwiseEnergy,
    polytope: LocalPolytope,
    known: Tensor | None,
    programme: Callable[[np.ndarray, np.ndarray], Programme],
    loss: Callable[[PairwiseEnergy, Tensor], Tensor],
) -> Decoding:
    """Solve the examples' programmes one after another."""
    check_known(known, energy.device, energy.batch_size, energy.num_labels)
    free = torch.full_like(energy.unary, torch.nan) if known is None else known
    unary = energy.unary.double().cpu().numpy()
    pairwise = energy.pairwise.double().cpu().expand(len(unary), -1, -1).numpy()
    solver, model = _solver(), _model(polytope)
    solutions = []
    for fields, couplings, given in zip(unary, pairwise, free.cpu().numpy(), strict=True):
        example = programme(fields, couplings)
        solutions.append((example, _solve(solver, model, example, given)))
    labels = torch.tensor(np.array([solution.values for _, solution in solutions]).round()).long()
    found = decoding(energy, labels, solutions, loss)
    return replace(found, nodes=found.status.num_iters)


def _solver() -> highspy.Highs:
    solver = highspy.Highs()
    # The tolerances add up over a hinge's products: at their default of 1e-6 a bound fell 1e-6 short.
    tolerances = {"mip_feasibility_tolerance": 1e-9, "primal_feasibility_tolerance": 1e-9}
    gaps = {"mip_rel_gap": 0.0, "mip_abs_gap": 0.0}
    for name, value in ({"output_flag": False} | tolerances | gaps).items():
        solver.setOptionValue(name, value)
    return solver


def _model(polytope: LocalPolytope) -> highspy.HighsLp:
    """The model without any example's weights."""
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
    solver: highspy.Highs, model: highspy.HighsLp, programme: Programme, known: np.ndarray
) -> Solution:
    """Write one example into the model and solve it."""
    lower, upper = np.zeros(model.num_col_), programme.most.copy()
    given = np.flatnonzero(~np.isnan(known))
    lower[given] = upper[given] = known[given]
    model.col_cost_, model.col_lower_, model.col_upper_ = programme.cost, lower, upper
    model.a_matrix_.value_, model.row_upper_ = programme.values, programme.upper
    solver.passModel(model)
    solver.run()
    status = solver.getModelStatus()
    if status != highspy.HighsModelStatus.kOptimal:
        raise RuntimeError(f"HiGHS: expected an optimum, got {solver.modelStatusToString(status)}")
    info = solver.getInfo()
    values = np.array(solver.getSolution().col_value[: len(known)])
    # Presolve may solve an example altogether: no node, and no bound but the optimum itself.
    return Solution(values, info.mip_dual_bound, True, max(0, int(info.mip_node_count)))
