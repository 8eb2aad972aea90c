"""MAP decoding of Boltzmann machines by toulbar2, a solver of cost function networks: the extra ``wcsp``.

Costs are whole numbers to toulbar2: weights are given to it to nine decimals of the largest of them, and
proofs hold up to what that leaves out. It runs on the CPU, where weights on another device are copied to, and
keeps state of its own, so that calls from several threads wait for each other.
"""

from __future__ import annotations

from threading import Lock
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lmbm_torch.checks import check_count, check_known
from lmbm_torch.energies.pairwise import PairwiseEnergy
from lmbm_torch.inference.parts.known import clamp, free_part
from lmbm_torch.inference.parts.objectives import TOLERANCE
from lmbm_torch.inference.results import Decoding, Status
from lmbm_torch.shapes import Shaped

try:
    from pytoulbar2 import CFN, pytb2  # pyright: ignore[reportAttributeAccessIssue]  # compiled
except ImportError as missing:
    raise ImportError(
        "cost_function_network needs the solver toulbar2: pip install 'lmbm-torch[wcsp]'"
    ) from missing

__all__ = ["decode"]

DECIMALS = 9
SPINS = np.array([-1.0, 1.0])

_one_at_a_time = Lock()


@torch.no_grad()
def decode(
    energy: PairwiseEnergy,
    *,
    known: Shaped[Tensor, "batch labels"] | None = None,
    time_limit: int | None = None,
) -> Decoding:
    """argmax_y score(y), the MAP labelling; the score is the objective, ``nodes`` those of the search tree.

    Args:
        energy: a Boltzmann machine.
        known: {0, 1, NaN}, NaN for a free label; only labellings that agree with it compete.
        time_limit: end an example's search after about so many seconds, with ``status.converged`` false and
            the best labelling and bound by then. Results then depend on the machine.

    Raises:
        ValueError: NaN or infinity in the energy, or couplings that are not symmetric; ``known`` of another
            shape or with other values; a time limit that is no count.
        RuntimeError: the solver ended without a labelling.
    """
    energy.check_values()
    check_known(known, energy.device, energy.batch_size, energy.num_labels)
    if time_limit is not None:
        check_count("time_limit", time_limit)
    precise = energy.to(torch.float64)
    free = free_part(precise, known)
    couplings = free.pairwise.cpu().expand(energy.batch_size, -1, -1).numpy()
    with _one_at_a_time:
        # Its options belong to the thread, where no one but the one that imported it has been given any.
        pytb2.init()
        found = [
            _solve(fields, pairs, time_limit)
            for fields, pairs in zip(free.unary.cpu().numpy(), couplings, strict=True)
        ]
    labels = clamp(torch.tensor([solution.labels for solution in found], device=energy.device), known)
    objective = precise.score(labels)
    bound = free.constant - torch.tensor([s.least_cost for s in found], dtype=torch.float64).to(energy.device)
    # A bound that rounding has carried past a labelling is that labelling's own score.
    bound = bound.maximum(objective)
    scale = torch.tensor([solution.scale for solution in found], dtype=torch.float64).to(energy.device)
    left_open = bound - objective
    nodes = torch.tensor([solution.nodes for solution in found], device=energy.device)
    status = Status(
        exact=left_open <= TOLERANCE * scale.maximum(objective.abs()),
        converged=torch.tensor([solution.proven for solution in found], device=energy.device),
        num_iters=nodes,
        residual=left_open.to(energy.dtype),
    )
    return Decoding(labels, objective.to(energy.dtype), bound.to(energy.dtype), status, nodes)


class _Solution(NamedTuple):
    """One example's, of cost −score without the constant.

    Args:
        labels: {0, 1}.
        least_cost: what no labelling goes below.
        proven: whether the search has ended by itself.
        nodes: of the search tree.
        scale: the largest weight.
    """

    labels: list[int]
    least_cost: float
    proven: bool
    nodes: int
    scale: float


def _solve(fields: np.ndarray, couplings: np.ndarray, time_limit: int | None) -> _Solution:
    """Write one example's costs into a network and solve it."""
    scale = float(max(np.abs(fields).max(), np.abs(couplings).max())) or 1.0
    pairs = np.argwhere(np.triu(couplings))
    network = CFN(resolution=DECIMALS)
    network.AddVariables(len(fields), "y", 0, 1)
    network.AddFunctions(np.arange(len(fields)), -fields[:, None] / scale * SPINS)
    if len(pairs):
        weights = couplings[pairs[:, 0], pairs[:, 1]] / scale
        network.AddFunctions(pairs, -weights[:, None, None] * SPINS[:, None] * SPINS)
    solution = network.Solve(timeLimit=time_limit or 0)
    if solution is None:
        raise RuntimeError("toulbar2: expected a labelling, got none")
    # No cost is off by more than one of its last decimal.
    unseen = (len(fields) + len(pairs)) * 10.0**-DECIMALS
    return _Solution(
        labels=solution[0],
        least_cost=scale * (network.GetDDualBound() - unseen),
        proven=bool(network.GetDDualBound() >= solution[1]),
        nodes=network.GetNbNodes(),
        scale=scale,
    )
