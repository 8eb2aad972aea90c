"""MAP decoding of Boltzmann machines by toulbar2, a solver of cost function networks: the extra ``wcsp``.

Costs are whole numbers to toulbar2: weights are given to it to nine decimals of the largest of them, and
proofs hold up to what that leaves out. It runs on the CPU, where weights on another device are copied to, and
keeps state of its own, so that calls from several threads wait for each other.
"""

from __future__ import annotations

from dataclasses import replace
from threading import Lock

import numpy as np
import torch

from lmbm_torch.checks import check_count
from lmbm_torch.energies.pairwise import PairwiseEnergy
from lmbm_torch.inference.parts.known import clamp, free_part
from lmbm_torch.inference.parts.objectives import Score, Solution, Task
from lmbm_torch.inference.results import Decoding
from lmbm_torch.shapes import Known

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
def decode(energy: PairwiseEnergy, *, known: Known | None = None, time_limit: int | None = None) -> Decoding:
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
    task = Task.of(energy, Score(), known)
    if time_limit is not None:
        check_count("time_limit", time_limit)
    free = free_part(task.precise, task.known)
    couplings = free.pairwise.expand(energy.batch_size, -1, -1).numpy()
    with _one_at_a_time:
        # Its options belong to the thread, where no one but the one that imported it has been given any.
        pytb2.init()
        solutions = [
            _solve(fields, pairs, settled, time_limit)
            for fields, pairs, settled in zip(
                free.unary.numpy(), couplings, free.constant.tolist(), strict=True
            )
        ]
    labels = torch.tensor([solution.values for solution in solutions])
    found = task.decoding(clamp(labels, task.known), solutions)
    return replace(found, nodes=found.status.num_iters)


def _solve(fields: np.ndarray, couplings: np.ndarray, settled: float, time_limit: int | None) -> Solution:
    """Write one example's costs into a network and solve it; ``settled`` is the score of the known labels."""
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
    least, proven = network.GetDDualBound(), bool(network.GetDDualBound() >= solution[1])
    return Solution(solution[0], scale * (least - unseen) - settled, proven, network.GetNbNodes(), scale)
