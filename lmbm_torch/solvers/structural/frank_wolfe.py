"""Block-coordinate Frank–Wolfe for structural SVMs, to a certified duality gap.

Sources: Lacoste-Julien et al., "Block-coordinate Frank–Wolfe optimization for structural SVMs", ICML 2013;
pairwise steps and the cache of earlier maximisers from Osokin et al., "Minding the gaps for block Frank–Wolfe
optimization of structured SVMs", ICML 2016. The dual has one variable for each example and labelling,

    max_α Σ α_l(y) Δ(y_l, y) − ½‖w‖²,   w = Σ α_l(y) ψ_l(y),   α ≥ 0,   Σ_y α_l(y) = C_l

and is stored as the planes of the labellings seen so far. A pass moves duals between an example's planes with
closed-form steps until the gap among the known planes is small. Then it decodes all examples once at the
final weights, which gives the true gap and new planes for the next pass.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lmbm_torch.checks import check_count, check_shape
from lmbm_torch.kernels.installed import kernels
from lmbm_torch.memory import part_bytes
from lmbm_torch.solvers.base import SolverState
from lmbm_torch.solvers.structural.problems import (
    CertifiedWeights,
    CuttingPlanes,
    StructuralProblem,
    StructuralWeights,
)

# Number of passes after which a plane with dual 0 is dropped; if it is needed, the oracle finds it again.
# Keeping planes longer saved no passes, and sweeps read all planes.
MAX_IDLE_PASSES = 2
# Largest bytes of planes: beyond, planes with dual 0 are dropped at once. With 10,000 examples of 100 coupled
# labels a fit of three passes then needs 1.8 GiB instead of 2.5 (scripts/bench/memory.py).
MOST_PLANE_BYTES = 2**29
# A pass ends once the gap among the known planes is below this share of the true gap.
KNOWN_GAP_SHARE = 0.3
MAX_SWEEPS = 200


@dataclass(frozen=True)
class KnownPlanes:
    """The planes found so far, with their duals.

    Args:
        planes: for each example the plane of the truth, then the planes of other labellings.
        dual_coef: (planes,), α; the sum over an example's planes is C_l.
        idle: (planes,), the number of passes since each plane had a dual above 0.
    """

    planes: CuttingPlanes
    dual_coef: np.ndarray
    idle: np.ndarray

    def join(self, found: CuttingPlanes, kept: np.ndarray, new: np.ndarray) -> KnownPlanes:
        """Return the planes ``kept``, and the found planes ``new`` with dual 0; both are given by number."""
        joined, order = self.planes.join(found, kept, new)
        numbers = (
            np.concatenate([each[kept], np.zeros(len(new), np.int64)]) for each in (self.dual_coef, self.idle)
        )
        return KnownPlanes(joined, *(each[order] for each in numbers))


@dataclass(frozen=True)
class FrankWolfeState(KnownPlanes, CertifiedWeights, SolverState):
    """The planes with duals; primal, dual and gap belong to the weights of the duals.

    Args:
        num_iters: passes made so far, see :class:`~lmbm_torch.solvers.base.SolverState`.
    """

    num_iters: int


def init(problem: StructuralProblem) -> FrankWolfeState:
    """Return the state at zero weights: all of an example's dual is on the truth."""
    planes = CuttingPlanes.of_truths(np.arange(problem.num_examples))
    known = KnownPlanes(planes, problem.upper.copy(), np.zeros(len(planes), np.int64))
    return _certified(problem, known, 0)


def scaled(problem: StructuralProblem, state: FrankWolfeState, factor: float) -> FrankWolfeState:
    """Return the state for another C: multiply the duals by ``factor``, the ratio of the new C to the old."""
    return _certified(problem, KnownPlanes(state.planes, factor * state.dual_coef, state.idle), 0)


def update(
    problem: StructuralProblem,
    state: FrankWolfeState,
    *,
    batch_size: int | None = None,
    seed: int = 0,
    known_share: float = KNOWN_GAP_SHARE,
) -> FrankWolfeState:
    """Run one pass.

    Args:
        batch_size: the number of examples that are decoded at the same weights before steps are made; by
            default all examples; 1 is the original algorithm.
        seed: seed of the orders of visits to examples.
        known_share: a pass ends when the gap among the known planes is at most this share of the true gap.

    Raises:
        ValueError: the state is of another problem, or the batch size is below one.
    """
    check_shape("state.weights.features", state.weights.features, problem.num_outputs, None)
    check_shape("state.weights.couplings", state.weights.couplings, problem.num_couplings)
    random, every = np.random.default_rng((seed, state.num_iters)), np.arange(problem.num_examples)
    known, weights = state, state.weights
    if batch_size is not None:
        check_count("batch_size", batch_size)
        order = random.permutation(problem.num_examples)
        for batch in np.split(order, range(batch_size, len(order), batch_size)):
            examples = np.sort(batch)
            found = problem.maximisers(weights, examples).planes
            known = known.join(found, np.arange(len(known.planes)), np.arange(len(found)))
            known, weights = _swept(problem, known, weights, examples, 0.0, 1, random)
    target = known_share * (state.primal - state.dual)
    known, _ = _swept(problem, known, weights, every, target, MAX_SWEEPS, random)
    return _certified(problem, known, state.num_iters + 1)


def _swept(
    problem: StructuralProblem,
    known: KnownPlanes,
    weights: StructuralWeights,
    examples: np.ndarray,
    target: float,
    max_sweeps: int,
    random: np.random.Generator,
) -> tuple[KnownPlanes, StructuralWeights]:
    """Make steps on the planes of some examples; return the duals, and weights that have some round-off."""
    weights, duals = StructuralWeights(*(part.copy() for part in weights)), known.dual_coef.copy()
    kernels("dual.structural").sweeps(
        problem, known.planes, weights, duals, examples, target, max_sweeps, int(random.integers(2**31))
    )
    return KnownPlanes(known.planes, duals, known.idle), weights


def _certified(problem: StructuralProblem, known: KnownPlanes, num_iters: int) -> FrankWolfeState:
    """Compute the duals' weights without round-off; return the state with the most violated planes."""
    planes, dual_coef = known.planes, known.dual_coef
    weights = problem.weights(planes, dual_coef)
    found = problem.maximisers(weights)
    primal = problem.primal(weights, found.bound)
    dual = problem.dual(planes, dual_coef, weights)
    new = np.flatnonzero(problem.violated(planes, found.planes, weights))
    idle = np.where(dual_coef > 0, 0, known.idle + 1)
    idle[np.searchsorted(planes.example, np.arange(problem.num_examples))] = 0
    is_large = planes.index.nbytes + planes.value.nbytes > part_bytes(MOST_PLANE_BYTES)
    kept = np.flatnonzero(idle <= (0 if is_large else MAX_IDLE_PASSES))
    known = KnownPlanes(planes, dual_coef, idle).join(found.planes, kept, new)
    return FrankWolfeState(weights, primal, dual, **vars(known), num_iters=num_iters)
