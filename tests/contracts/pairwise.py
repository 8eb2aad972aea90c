"""The inference routines over Boltzmann machines, and what they promise beyond ``contracts``."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from strategies.directed import random_known
from strategies.pairwise import exchanged, random_pairwise_energy, renamed
from torch import Tensor

from contracts.promises import Kind, Routine, flips_labels, negative_hinge, renames_labels
from lmbm_torch.energies import PairwiseEnergy
from lmbm_torch.inference import (
    exact,
    gibbs,
    mean_field,
    pairwise_bp,
    tree_reweighted,
    undirected_branch_and_bound,
)


def score(energy: PairwiseEnergy, labels: Tensor) -> Tensor:
    """What ``decode`` maximises."""
    return energy.score(labels)


# Few iterations, before rounding has grown where they do not converge.
FEW = {"num_iters": 8}
DAMPED = {**FEW, "damping": 0.2}
ROUTINES = (
    Routine(exact.log_partition, takes_known=True, differentiable=True),
    Routine(exact.marginals, exact=True, takes_known=True),
    Routine(pairwise_bp.marginals, DAMPED, takes_known=True, differentiable=True),
    Routine(pairwise_bp.max_marginals, DAMPED, takes_known=True),
    Routine(tree_reweighted.marginals, FEW, takes_known=True, differentiable=True),
    Routine(tree_reweighted.max_marginals, FEW, takes_known=True),
    Routine(mean_field.marginals, takes_known=True, renaming_matters=True),
    Routine(exact.decode, decodes=score, exact=True, takes_known=True),
    Routine(exact.decode_hinge, decodes=negative_hinge, exact=True, takes_known=True),
    Routine(undirected_branch_and_bound.decode, decodes=score, exact=True, takes_known=True),
    Routine(undirected_branch_and_bound.decode_hinge, decodes=negative_hinge, exact=True, takes_known=True),
    Routine(undirected_branch_and_bound.decode, {"node_limit": 9}, decodes=score, takes_known=True),
    Routine(
        undirected_branch_and_bound.decode_hinge,
        {"node_limit": 9},
        decodes=negative_hinge,
        takes_known=True,
    ),
    Routine(gibbs.sample, {"num_steps": 3}, stochastic=True, takes_known=True),
)

# Weak enough that no two labellings have the same hinge loss, none.
FORMS = (
    {"num_labels": 5, "coupling": 0.3},
    {"num_labels": 5, "coupling": 0.2, "batch_size": 4, "per_example": True},
    {"num_labels": 6, "coupling": 0.4, "density": 0.4},
    {"num_labels": 4, "coupling": 0.4, "density": 0.5, "per_example": True},
    {"num_labels": 1, "batch_size": 2},
)


def shapes(routine: Routine, energy: PairwiseEnergy, dtype: torch.dtype) -> dict:
    """Of what is not the same for all kinds of energies."""
    labels = (energy.batch_size, energy.num_labels)
    return {
        "labels": (torch.int64 if routine.decodes else dtype, labels),
        "result": (torch.int64, labels) if routine.stochastic else (dtype, labels[:1]),
    }


def check_refuses_what_is_no_matrix_of_couplings(kind: Kind, routine: Routine) -> None:
    energy = kind.plain
    with pytest.raises(ValueError, match=r"^pairwise: expected a symmetric matrix"):
        routine(replace(energy, pairwise=energy.pairwise.triu()))
    with pytest.raises(ValueError, match=r"^pairwise: expected a zero diagonal"):
        routine(replace(energy, pairwise=energy.pairwise + torch.eye(4, dtype=energy.dtype)))


KIND = Kind(
    ROUTINES,
    energies=lambda dtype: [random_pairwise_energy(s, **form, dtype=dtype) for s, form in enumerate(FORMS)],
    plain=random_pairwise_energy(0, 4),
    large=random_pairwise_energy(0, 8),
    draw_known=random_known,
    learnt="unary",
    shapes=shapes,
    oracles={score: (exact.decode, 1), negative_hinge: (exact.decode_hinge, -1)},
    checks=(
        (renames_labels(renamed), lambda routine: not (routine.stochastic or routine.renaming_matters)),
        (flips_labels(exchanged), lambda routine: not routine.stochastic),
        (check_refuses_what_is_no_matrix_of_couplings, lambda routine: True),
    ),
    rounded=frozenset({"status.num_iters", "status.exact", "status.residual"}),
)
