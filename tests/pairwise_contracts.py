"""The inference routines over Boltzmann machines, and what they promise beyond ``contracts``."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from contracts import Kind, Routine, flips_labels, negative_hinge, renames_labels
from pairwise_strategies import exchanged, random_pairwise_energy, renamed
from strategies import random_known
from torch import Tensor

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


def marginals(module, name: str = "marginals", **settings) -> Routine:
    """A row for approximate marginals."""
    return Routine(
        f"{module.__name__.rpartition('.')[2]}.{name}",
        lambda energy, known, _: getattr(module, name)(energy, known=known, **settings),
        takes_known=True,
        differentiable=module is not mean_field and name == "marginals",
        renaming_matters=module is mean_field,
    )


def decoder(module, name: str, *, proves: bool = True, **settings) -> Routine:
    """A row for a decoder."""
    return Routine(
        ", ".join([f"{module.__name__.rpartition('.')[2]}.{name}", *settings]),
        lambda energy, known, _: getattr(module, name)(energy, known=known, **settings),
        decodes=score if name == "decode" else negative_hinge,
        exact=proves,
        takes_known=True,
    )


ROUTINES = (
    Routine(
        "exact.log_partition",
        lambda energy, known, _: exact.log_partition(energy, known=known),
        takes_known=True,
        differentiable=True,
    ),
    Routine(
        "exact.marginals",
        lambda energy, known, _: exact.marginals(energy, known=known),
        exact=True,
        takes_known=True,
    ),
    # Few iterations, before rounding has grown where they do not converge.
    marginals(pairwise_bp, num_iters=8, damping=0.2),
    marginals(pairwise_bp, "max_marginals", num_iters=8, damping=0.2),
    marginals(tree_reweighted, num_iters=8),
    marginals(tree_reweighted, "max_marginals", num_iters=8),
    marginals(mean_field),
    decoder(exact, "decode"),
    decoder(exact, "decode_hinge"),
    decoder(undirected_branch_and_bound, "decode"),
    decoder(undirected_branch_and_bound, "decode_hinge"),
    decoder(undirected_branch_and_bound, "decode", proves=False, node_limit=9),
    decoder(undirected_branch_and_bound, "decode_hinge", proves=False, node_limit=9),
    Routine(
        "gibbs.sample",
        lambda energy, known, generator: gibbs.sample(energy, 3, known=known, generator=generator),
        stochastic=True,
        takes_known=True,
    ),
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
