"""Dual ascent for chains of one position (the multi-class SVM of Crammer and Singer) to a certified gap.

Without transitions an instance's dual variables are a distribution over classes, and maximising the dual over
one distribution is a projection onto the simplex (Crammer and Singer, "On the algorithmic implementation of
multiclass kernel-based vector machines", JMLR 2001, section 4). Over-relaxed steps reduce the number of steps
(Mangasarian and Musicant, "Successive overrelaxation for support vector machines", 1999). Instances are
visited in blocks, drawn with probabilities proportional to the instances' duality gaps, as in Osokin et al.,
"Minding the gaps for block Frank–Wolfe optimization of structured SVMs", ICML 2016.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lmbm_torch.checks import check_count, check_positive, check_shape
from lmbm_torch.kernels.installed import kernels
from lmbm_torch.solvers.base import SolverState
from lmbm_torch.solvers.chains import smo
from lmbm_torch.solvers.chains.kernel_problem import ChainKernelProblem
from lmbm_torch.solvers.chains.smo import FactoredState

# Number of passes between two computations of the duality gap, which take as long as about one pass.
PASSES_AT_ONCE = 20


def init(problem: ChainKernelProblem) -> FactoredState:
    """Return the state at zero weights: the true labels have probability 1.

    Raises:
        ValueError: a chain has several positions, or the problem forbids some labels.
    """
    problem.check_unrestricted()
    if not problem.has_single_positions:
        raise ValueError(f"start: expected chains of one position, got a chain of {problem.lengths.max()}")
    return smo.init(problem)


def update(
    problem: ChainKernelProblem,
    state: FactoredState,
    *,
    num_iters: int = PASSES_AT_ONCE,
    tol: float = 1e-9,
    seed: int = 0,
) -> FactoredState:
    """Make up to ``num_iters`` passes; a pass updates as many instances as the problem has.

    Args:
        num_iters: the largest number of passes.
        tol: the relative gap at which the passes end.
        seed: the seed of the blocks and orders, combined with the number of passes made so far.

    Raises:
        ValueError: the state does not fit the problem; ``num_iters`` is below one; ``tol`` is not above zero.
    """
    check_count("num_iters", num_iters)
    check_positive("tol", tol)
    check_shape("state.nodes", state.nodes, len(problem.upper), problem.num_states)
    nodes = state.nodes.copy()
    drawn = int(np.random.default_rng((seed, state.num_iters)).integers(2**31))
    backend = kernels("dual.multi_class")
    made = backend.ascend(problem, nodes, np.ascontiguousarray(state.scores.T), tol, num_iters, drawn)
    # Limit the count, since the last block may exceed the allowed number of passes a little.
    return smo.certified(problem, nodes, state.pairs, state.num_iters + min(max(made, 1), num_iters))


def limits(state: SolverState, tol: float, left: int, watched: bool) -> dict[str, Any]:
    """Return the arguments for the next ``update``: one pass if a callback waits, else several passes."""
    return {"num_iters": 1 if watched else min(PASSES_AT_ONCE, left), "tol": tol}
