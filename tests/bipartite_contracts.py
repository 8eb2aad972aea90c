"""The inference routines over restricted Boltzmann machines, and what they promise beyond ``contracts``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from bipartite_strategies import permuted_units, random_bipartite_energy, random_known_visible
from contracts import Kind, Routine, assert_same
from torch import Tensor

from lmbm_torch.energies import BipartiteEnergy
from lmbm_torch.inference import (
    Marginals,
    annealed_importance,
    conditional_modes,
    dual_decomposition,
    exact,
    gibbs,
    matrix_bp,
    mean_field,
)


def joint_score(energy: BipartiteEnergy, visible: Tensor) -> Tensor:
    """What ``decode`` maximises, the hidden units at their best."""
    return energy.score(visible, energy.hidden_fields(visible) > 0)


def log_sum_score(energy: BipartiteEnergy, visible: Tensor) -> Tensor:
    """What ``marginal_map`` maximises."""
    return -energy.free_energy(visible)


def matrix_bp_beliefs(energy: BipartiteEnergy, **given: Any) -> Marginals:
    """Without a gradient: of the results one alone is differentiable, and has a row of its own."""
    return matrix_bp.marginals(BipartiteEnergy(*(field.detach() for field in vars(energy).values())), **given)


def matrix_bp_log_partition(energy: BipartiteEnergy, **given: Any) -> Tensor:
    return matrix_bp.marginals(energy, **given).log_partition


# Few iterations, for the strong ones of these models are chaotic.
FEW = {"num_iters": 4, "tol": 1e-3}
ROUTINES = (
    Routine(exact.log_partition, takes_known=True, differentiable=True),
    Routine(exact.marginals, exact=True, takes_known=True),
    Routine(exact.pairwise_marginals, takes_known=True),
    Routine(exact.decode, decodes=joint_score, exact=True, takes_known=True),
    Routine(exact.marginal_map, decodes=log_sum_score, exact=True, takes_known=True),
    Routine(matrix_bp_beliefs, FEW, takes_known=True),
    Routine(matrix_bp_log_partition, FEW, takes_known=True, differentiable=True),
    Routine(matrix_bp.max_marginals, FEW, takes_known=True),
    Routine(matrix_bp.marginal_map, FEW, decodes=log_sum_score, takes_known=True, residual_is_gap=False),
    Routine(mean_field.marginals, takes_known=True),
    Routine(conditional_modes.decode, decodes=joint_score, takes_known=True),
    Routine(gibbs.sample, {"num_steps": 3}, stochastic=True, takes_known=True),
    Routine(
        annealed_importance.estimate,
        {"num_chains": 5, "num_temperatures": 10},
        stochastic=True,
        takes_known=True,
    ),
    Routine(conditional_modes.marginal_map, decodes=log_sum_score, takes_known=True, renaming_matters=True),
    Routine(dual_decomposition.marginal_map, decodes=log_sum_score, takes_known=True, renaming_matters=True),
)
FORMS = (
    {"num_visible": 5, "num_hidden": 4},
    {"num_visible": 3, "num_hidden": 6, "batch_size": 4, "coupling": 3.0},
    {"num_visible": 6, "num_hidden": 2, "coupling": 0.2},
    {"num_visible": 1, "num_hidden": 1, "batch_size": 2},
)


def shapes(routine: Routine, energy: BipartiteEnergy, dtype: torch.dtype) -> dict:
    """Of what is not the same for all kinds of energies."""
    batch, visible, hidden = energy.batch_size, energy.num_visible, energy.num_hidden
    units = torch.int64 if routine.stochastic else dtype
    pairwise = routine.function is exact.pairwise_marginals
    return {
        "visible": (units, (batch, visible)),
        "hidden": (torch.int64 if routine.decodes else units, (batch, hidden)),
        "labels": (torch.int64, (batch, visible)),
        "standard_error": (dtype, (batch,)),
        "effective_size": (dtype, (batch,)),
        "result": (dtype, (batch, visible, hidden) if pairwise else (batch,)),
    }


def check_renaming_units_renames_results(kind: Kind, routine: Routine) -> None:
    for seed, (energy, known) in enumerate(kind.cases(routine)):
        generator = torch.Generator().manual_seed(seed)
        visible = torch.randperm(energy.num_visible, generator=generator)
        hidden = torch.randperm(energy.num_hidden, generator=generator)
        renamed = routine(
            permuted_units(energy, visible, hidden), None if known is None else known[:, visible]
        )
        change: dict[str, Callable[[Tensor], Tensor]] = {
            "labels": lambda tensor, visible=visible: tensor[:, visible],
            "visible": lambda tensor, visible=visible: tensor[:, visible],
            "hidden": lambda tensor, hidden=hidden: tensor[:, hidden],
            "result": lambda tensor, visible=visible, hidden=hidden: (
                tensor[:, visible][:, :, hidden] if tensor.ndim == 3 else tensor
            ),
        }
        expected = routine(energy, known)
        assert_same(
            renamed,
            {name: change[name](tensor) if name in change else tensor for name, tensor in expected.items()},
        )


KIND = Kind(
    ROUTINES,
    energies=lambda dtype: [random_bipartite_energy(s, **form, dtype=dtype) for s, form in enumerate(FORMS)],
    plain=random_bipartite_energy(0, 4, 5),
    large=random_bipartite_energy(0, 8, 8),
    draw_known=random_known_visible,
    learnt="coupling",
    shapes=shapes,
    oracles={joint_score: (exact.decode, 1), log_sum_score: (exact.marginal_map, 1)},
    checks=(
        (
            check_renaming_units_renames_results,
            lambda routine: not (routine.stochastic or routine.renaming_matters),
        ),
    ),
    rounded=frozenset({"status.num_iters"}),
    # The most that any example leaves free decides which side is enumerated.
    shared=frozenset({"status.num_iters"}),
)
