"""Block-coordinate Frank–Wolfe for structural SVMs, to a certified duality gap.

Sources: Lacoste-Julien et al., "Block-coordinate Frank–Wolfe optimization for structural SVMs", ICML 2013;
pairwise steps and the cache of earlier maximisers from Osokin et al., "Minding the gaps for block Frank–Wolfe
optimization of structured SVMs", ICML 2016. The dual has one variable for each example and labelling,

    max_α Σ α_l(y) Δ(y_l, y) − ½‖w‖²,   w = Σ α_l(y) ψ_l(y),   α ≥ 0,   Σ_y α_l(y) = C_l

and is stored with a cutting plane for each labelling found so far. A pass moves weight between the duals of
an example's planes by closed-form steps, until the gap among the known planes is small. Then a pass decodes
all examples once at the final weights, which gives the true gap and new planes for the next pass.
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

# Number of passes after which a cutting plane with dual 0 is dropped; the oracle can find the plane again.
# Keeping planes longer saved no passes, and slows sweeps, which read all planes.
MAX_IDLE_PASSES = 2
# Largest number of bytes of the cutting planes: above, planes with dual 0 are dropped at once. For 10,000
# examples of 100 coupled labels, three passes then need 1.8 GiB instead of 2.5 (scripts/bench/memory.py).
MOST_PLANE_BYTES = 2**29
# A pass ends once the gap among the known cutting planes is below this share of the true gap.
KNOWN_GAP_SHARE = 0.3
MAX_SWEEPS = 200


@dataclass(frozen=True)
class KnownPlanes:
    """The cutting planes found so far, with a dual variable for each plane.

    Args:
        planes: for each example the plane of the true labelling, then the planes of other labellings.
        dual_coef: (planes,), α; the sum over an example's planes is C_l.
        idle: (planes,), the number of passes since each plane had a dual above 0.
    """

    planes: CuttingPlanes
    dual_coef: np.ndarray
    idle: np.ndarray

    def join(self, found: CuttingPlanes, kept: np.ndarray, new: np.ndarray) -> KnownPlanes:
        """Join the known cutting planes numbered ``kept`` and the found planes ``new``, with dual 0."""
        joined, order = self.planes.join(found, kept, new)
        numbers = (
            np.concatenate([each[kept], np.zeros(len(new), np.int64)]) for each in (self.dual_coef, self.idle)
        )
        return KnownPlanes(joined, *(each[order] for each in numbers))


@dataclass(frozen=True)
class FrankWolfeState(KnownPlanes, CertifiedWeights, SolverState):
    """The cutting planes with duals, and the weights computed from the duals with primal and dual values.

    Args:
        num_iters: passes made so far, see :class:`~lmbm_torch.solvers.base.SolverState`.
    """

    num_iters: int


def init(problem: StructuralProblem) -> FrankWolfeState:
    """Return the state at zero weights: in each example, only the dual of the true labelling is above 0."""
    planes = CuttingPlanes.of_truths(np.arange(problem.num_examples))
    known = KnownPlanes(planes, problem.upper.copy(), np.zeros(len(planes), np.int64))
    return _certified(problem, known, 0)


def scaled(problem: StructuralProblem, state: FrankWolfeState, factor: float) -> FrankWolfeState:
    """Convert a state to another C: multiply the duals by ``factor``, the new C divided by the old C."""
    return _certified(problem, KnownPlanes(state.planes, factor * state.dual_coef, state.idle), 0)


def update(
    problem: StructuralProblem,
    state: FrankWolfeState,
    *,
    batch_size: int | None = None,
    seed: int = 0,
    known_share: float = KNOWN_GAP_SHARE,
) -> FrankWolfeState:
    """Run one pass: improve the duals, then decode all examples to certify the gap and find new planes.

    Args:
        batch_size: the number of examples that are decoded at the same weights before steps are made; by
            default all examples; 1 is the original algorithm.
        seed: the seed of the order in which examples are visited.
        known_share: a pass ends when the gap among the known planes is at most this share of the true gap.

    Raises:
        ValueError: the state does not fit the problem, or the batch size is below one.
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
    """Improve the duals of the examples' cutting planes; return duals, and weights with some round-off."""
    weights, duals = StructuralWeights(*(part.copy() for part in weights)), known.dual_coef.copy()
    kernels("dual.structural").sweeps(
        problem, known.planes, weights, duals, examples, target, max_sweeps, int(random.integers(2**31))
    )
    return KnownPlanes(known.planes, duals, known.idle), weights


def _certified(problem: StructuralProblem, known: KnownPlanes, num_iters: int) -> FrankWolfeState:
    """Compute the weights of the duals anew; return the state, with the most violated cutting planes."""
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
