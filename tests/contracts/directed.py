"""The inference routines over sigmoid belief networks, and what they promise beyond ``contracts``."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from strategies.directed import flipped, permuted, random_directed_energy, random_known
from torch import Tensor

from contracts.promises import Kind, Routine, flips_labels, negative_hinge, renames_labels
from lmbm_torch.energies import DirectedEnergy
from lmbm_torch.inference import ancestral, beam_search, branch_and_bound, exact


def log_prob(energy: DirectedEnergy, labels: Tensor) -> Tensor:
    """What ``decode`` maximises."""
    return energy.log_prob(labels)


ROUTINES = (
    Routine(exact.log_partition, takes_known=True, differentiable=True),
    Routine(exact.marginals, exact=True, takes_known=True),
    Routine(exact.decode, decodes=log_prob, exact=True, takes_known=True),
    Routine(exact.decode_hinge, decodes=negative_hinge, exact=True, takes_known=True),
    Routine(branch_and_bound.decode, decodes=log_prob, exact=True, takes_known=True),
    Routine(branch_and_bound.decode_hinge, decodes=negative_hinge, exact=True, takes_known=True),
    Routine(
        branch_and_bound.decode_hinge,
        {"cutoff": 2.0, "node_limit": 9},
        decodes=negative_hinge,
        takes_known=True,
    ),
    Routine(beam_search.decode, decodes=log_prob, takes_known=True),
    Routine(beam_search.decode_hinge, decodes=negative_hinge, takes_known=True),
    Routine(beam_search.decode_hinge, {"width": 3}, decodes=negative_hinge, takes_known=True),
    # As wide as the largest of these models has labellings.
    Routine(beam_search.decode, {"width": 2**6}, decodes=log_prob, exact=True, takes_known=True),
    Routine(ancestral.sample, {"num_samples": 5}, stochastic=True),
    Routine(ancestral.marginals, {"num_samples": 500}, stochastic=True),
)

FORMS = (
    {"num_labels": 5},
    {"num_labels": 5, "batch_size": 4, "per_example": True, "coupling": 3.0},
    {"num_labels": 6, "num_cliques": 4},
    {"num_labels": 4, "num_cliques": 2, "per_example": True, "coupling": 0.2},
    {"num_labels": 1, "batch_size": 2},
)


def shapes(routine: Routine, energy: DirectedEnergy, dtype: torch.dtype) -> dict:
    """Of what is not the same for all kinds of energies."""
    labels = (energy.batch_size, energy.num_labels)
    return {
        "labels": (torch.int64 if routine.decodes else dtype, labels),
        "standard_error": (dtype, labels),
        "result": (torch.int64, (5, *labels)) if routine.stochastic else (dtype, labels[:1]),
    }


def check_refuses_a_parent_after_its_child(kind: Kind, routine: Routine) -> None:
    energy = random_directed_energy(0, 4)
    with pytest.raises(ValueError, match=r"^parents: expected"):
        routine(replace(energy, parents=energy.parents.mT))


KIND = Kind(
    ROUTINES,
    energies=lambda dtype: [random_directed_energy(s, **form, dtype=dtype) for s, form in enumerate(FORMS)],
    plain=random_directed_energy(0, 4, num_cliques=2),
    large=random_directed_energy(0, 8),
    draw_known=random_known,
    learnt="unary",
    shapes=shapes,
    oracles={log_prob: (exact.decode, 1), negative_hinge: (exact.decode_hinge, -1)},
    checks=(
        (renames_labels(permuted), lambda routine: True),
        (flips_labels(flipped), lambda routine: not routine.stochastic),
        (check_refuses_a_parent_after_its_child, lambda routine: True),
    ),
)
