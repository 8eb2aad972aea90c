"""Good labellings of Boltzmann machines by flips of single labels: where the exact searches begin.

A row of 45 labels takes some 20 µs. Nothing is proven: the bound lets every label and every pair of labels
have what it likes best.
"""

from __future__ import annotations

import torch

from lmbm_torch.energies import PairwiseEnergy
from lmbm_torch.inference.common.on_host import searched_on_host
from lmbm_torch.inference.results import Decoding, Status
from lmbm_torch.inference.search.undirected_branch_and_bound import undirected_problem
from lmbm_torch.kernels.installed import kernels
from lmbm_torch.shapes import Known

__all__ = ["decode"]


@searched_on_host
@torch.no_grad()
def decode(energy: PairwiseEnergy, *, known: Known | None = None) -> Decoding:
    """Labellings y of high score: no flip of one free label raises it.

    Args:
        energy: a Boltzmann machine, on any device; the flips themselves run on the CPU.
        known: {0, 1, NaN}, NaN for a free label.

    Returns:
        The score is the objective, bound ≥ objective; ``status.exact`` nowhere, for nothing is proven.

    Raises:
        ValueError: NaN or infinity in the energy; ``known`` of another shape or with other values.
    """
    problem = undirected_problem(energy, known)
    spins = torch.from_numpy(kernels("search.undirected", "flips").raised_scores(problem))
    labels, precise = (spins > 0).long(), energy.to(torch.float64)
    objective = precise.score(labels)
    bound = precise.constant + precise.unary.abs().sum(1) + precise.pairwise.abs().sum((-1, -2)) / 2
    objective, bound = objective.to(energy.dtype), bound.maximum(objective).to(energy.dtype)
    every = torch.ones_like(objective, dtype=torch.bool)
    nodes = torch.zeros_like(every, dtype=torch.long)
    status = Status(~every, every, num_iters=nodes, residual=bound - objective)
    return Decoding(labels=labels, objective=objective, bound=bound, nodes=nodes, status=status)
