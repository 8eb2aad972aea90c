"""How often a device is waited for, and how many kernels are launched: what no change should exceed.

A wait is what training pays for most: the device is idle until the host has seen the answer and sent what
follows. Launches are counted as operators of torch: a plain reference of a compiled kernel has many.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from contracts.kinds import BIPARTITE, PAIRWISE
from strategies.bipartite import random_bipartite_energy
from strategies.chain import random_chain_energy

from lmbm_torch.energies import BipartiteEnergy
from lmbm_torch.inference.messages import dual_decomposition, matrix_bp, mean_field
from lmbm_torch.inference.sampling import annealed_importance, gibbs
from lmbm_torch.inference.trees import chain_dp


class Cost(NamedTuple):
    """Of a training step, or of one iteration."""

    waits: float
    launches: float


# Of a step of training, loss, gradient and Adam included, when the module is warm.
STEPS: dict[str, Cost] = {
    "network, hinge": Cost(1, 115),
    # Whether labels are missing decides what follows: the prediction of the missing ones is checked anew.
    "network, hinge, labels missing": Cost(2, 365),
    "network of triples, likelihood": Cost(1, 145),
    "machine, hinge": Cost(1, 115),
    "machine, pseudo-likelihood": Cost(1, 120),
    "machine of triples, hinge": Cost(1, 100),
    "machine of features in cliques, hinge": Cost(1, 125),
    "machine, exact likelihood": Cost(1, 215),
    "hidden units, mle_bp": Cost(1, 480),
    "hidden units, mle_mf": Cost(1, 290),
    "hidden units, cd": Cost(1, 145),
    "hidden units, pcd": Cost(1, 155),
}


class Loop(NamedTuple):
    """A routine that iterates.

    Args:
        call: (energy, iterations) → its result.
        energy: iterations → the energy.
        cost: of one iteration.
    """

    call: Callable[[Any, int], Any]
    energy: Callable[[int], Any]
    cost: Cost


def loop(function: Callable[..., Any], energy: Any, count: str, cost: Cost, **settings: Any) -> Loop:
    """One whose argument ``count`` is the number of iterations."""
    return Loop(lambda e, n: function(e, **{count: n}, **settings), lambda n: energy, cost)


def along_chains(function: Callable[..., Any], cost: Cost) -> Loop:
    """One whose iterations are the positions of chains."""
    return Loop(lambda e, n: function(e), partial(random_chain_energy, 0, num_states=3, ragged=False), cost)


def frustrated() -> BipartiteEnergy:
    """One whose dual keeps a gap, so that no example is decided early."""
    return random_bipartite_energy(0, 6, 6, batch_size=1, coupling=5.0)


# Where all but the number of iterations is the same; convergence is looked at every eighth time.
LOOPS: dict[str, Loop] = {
    "matrix_bp.marginals": loop(matrix_bp.marginals, BIPARTITE.plain, "num_iters", Cost(1 / 8, 31), tol=0.0),
    "mean_field.marginals, hidden units": loop(
        mean_field.marginals, BIPARTITE.plain, "num_iters", Cost(1 / 8, 14), tol=0.0
    ),
    "mean_field.marginals": loop(mean_field.marginals, PAIRWISE.plain, "num_iters", Cost(1 / 8, 19), tol=0.0),
    "gibbs.sample, hidden units": loop(gibbs.sample, BIPARTITE.plain, "num_steps", Cost(0, 8)),
    "gibbs.sample": loop(gibbs.sample, PAIRWISE.plain, "num_steps", Cost(0, 33)),
    "annealed_importance.estimate": loop(
        annealed_importance.estimate, BIPARTITE.plain, "num_temperatures", Cost(0, 23), num_chains=4
    ),
    "dual_decomposition.marginal_map": loop(
        dual_decomposition.marginal_map, frustrated(), "num_iters", Cost(1 / 8, 116)
    ),
    "chain_dp.log_partition": along_chains(chain_dp.log_partition, Cost(0, 0.5)),
    "chain_dp.marginals": along_chains(chain_dp.marginals, Cost(0, 1)),
    "chain_dp.decode": along_chains(chain_dp.decode, Cost(0, 0.75)),
}
