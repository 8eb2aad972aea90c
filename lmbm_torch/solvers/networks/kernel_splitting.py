"""Approximate duals of many kernel networks at once, as starts for dual ascent: alternating directions.

A label with parents different from a solved problem's gains little from known duals, because parents weigh
more than features in the joint kernel: nine tenths of the steps remain (Yeast). All labels of all orderings
share the kernel K. With one inverse of K + ρ1, extended for each problem's parents U D Uᵀ by the inverse of a
small matrix, a step of all problems together is one matrix product, for each problem a hundredth of the time
of a round of steps on pairs:

    x = (K + ρ1 + U D Uᵀ)⁻¹ (γs + ρ(z − u)),    v = a x + (1 − a) z + u,    z = clip(v),    u = v − z

(Boyd et al. 2011, sections 3.4.3 and 5). ρ is corrected once, by the residuals of all problems (Stellato et
al. 2020, section 5.2). A few steps give feasible duals; the dual ascent from there certifies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from scipy.linalg import get_lapack_funcs

from lmbm_torch.kernels.threads import share, single_threaded
from lmbm_torch.solvers.networks.joint_kernels import is_within_memory, matrix
from lmbm_torch.solvers.networks.kernel_dual_coordinate import Expansions, KernelState
from lmbm_torch.solvers.networks.kernel_problems import KernelLabelProblems

ITERATIONS = 40
# Iterations between two checks of the gaps; ρ is corrected after the first check.
CHECKED = 10
RELAXATION = 1.8
# Share of the tolerance at which a problem counts as solved in single precision.
CLOSE = 0.8
# Range of the correction factor in which ρ stays unchanged, to save an inverse.
CORRECT = (0.7, 2.5)
# Problems per product; fixed, so rounding does not depend on threads.
TOGETHER = 64
# Iterations in the time of a round of steps on pairs with all instances active.
ROUND = 50
# Overhead of an iteration, in instances.
OVERHEAD = 150


class _Inverse(NamedTuple):
    """The shared part of all problems' steps at one ρ.

    Args:
        rho: ρ.
        values: (K + ρ1)⁻¹, (instances, instances).
        columns: ``values`` V, for the scaled context V, (instances, columns).
        square: Vᵀ ``columns``, (columns, columns).
    """

    rho: np.float32
    values: np.ndarray
    columns: np.ndarray
    square: np.ndarray


@dataclass(eq=False)
class _Batch:
    """Problems with shared products, one in each row.

    Args:
        place: (problems,), index of each problem in the list of all.
        sees: (problems, columns) in {0, 1}.
        targets: γ s, (problems, instances).
        lower: lower bounds of β = s α.
        upper: upper bounds of β.
        z: z, as in the module's docstring.
        u: u, as in the module's docstring.
        residuals: (problems,), primal residual relative to the dual residual, of the last iteration.
    """

    place: np.ndarray
    sees: np.ndarray
    targets: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    z: np.ndarray
    u: np.ndarray
    residuals: np.ndarray

    def left(self, which: np.ndarray) -> None:
        """Keep some of the problems."""
        for name, values in vars(self).items():
            setattr(self, name, values[which])


def pays(problems: KernelLabelProblems, state: KernelState, networks: int) -> bool:
    """Return whether :func:`starts` of ``networks`` networks cost less time than the saved steps on pairs.

    Args:
        problems: problems of a solved network.
        state: the state of the solved network.
    """
    size, labels = problems.num_instances, problems.num_labels
    count = networks * labels
    is_possible = (
        count > 0
        and not problems.cliques
        and bool((problems.shared > 1).any())
        and bool((problems.spins != 0).all())
        and is_within_memory(3, size)
    )
    if not is_possible:
        return False
    # Steps are made among the possible support instances.
    rounds = state.steps / (size * labels) * (state.dual_coef > 0).mean()
    # Includes checks of the gaps, two inverses, and the inverse of each problem's parents.
    iterations = 1.15 * ITERATIONS + 1.5 * size / count + (labels + 1) ** 3 / size**2
    return bool(ROUND * rounds > iterations * (1 + OVERHEAD / size))


@single_threaded()
def starts(
    problems: KernelLabelProblems,
    orderings: Sequence[np.ndarray],
    solved: Sequence[Expansions] = (),
    *,
    tol: float,
) -> list[Expansions]:
    """Return feasible duals near the optimum, for networks with orderings other than that of ``problems``.

    Results do not depend on the number of threads. The list is empty if single precision cannot hold the
    inverse.

    Args:
        problems: problems without missing labels and without cliques.
        orderings: orderings of the networks, (labels,) each.
        solved: solved networks; labels with equal parents take over the solution.
        tol: relative gap at which a label is left as is.
    """
    parents = [_parents(ordering) for ordering in orderings]
    found = {
        _key(one.parents, label): (one.dual_coef[label], one.fields[:, label])
        for one in solved
        for label in range(problems.num_labels)
    }
    asked: dict[tuple[int, bytes], np.ndarray] = {}
    for each in parents:
        for label, row in enumerate(each):
            if (key := _key(each, label)) not in found:
                asked[key] = row
    if asked:
        labels = np.array([label for label, _ in asked])
        coef = _approach(problems, labels, np.stack(list(asked.values())), tol)
        if coef is None:
            return []
        fields = problems.expansions(coef.T)
        found.update(zip(asked, zip(np.abs(coef), fields.T, strict=True), strict=True))
    networks = []
    for each in parents:
        duals, fields = zip(*(found[_key(each, label)] for label in range(len(each))), strict=True)
        networks.append(Expansions(np.stack(duals), np.stack(fields, 1), each))
    return networks


def _parents(ordering: np.ndarray) -> np.ndarray:
    """Return (labels, labels), row k the labels before label k."""
    position = np.argsort(ordering)
    return position[None, :] < position[:, None]


def _key(parents: np.ndarray, label: int) -> tuple[int, bytes]:
    return label, parents[label].tobytes()


def _approach(
    problems: KernelLabelProblems, labels: np.ndarray, parents: np.ndarray, tol: float
) -> np.ndarray | None:
    """Compute β (problems, instances) of ``labels`` by index, each with ``parents`` (problems, labels)."""
    position = np.argsort(problems.ordering)
    spins = problems.spins[position[labels]].astype(np.float64)
    bounds = spins * (problems.upper if problems.upper.ndim == 1 else problems.upper[position[labels]])
    lower, upper = np.minimum(bounds, 0.0), np.maximum(bounds, 0.0)
    sees = np.hstack([np.ones((len(labels), 1), bool), parents[:, problems.ordering]])
    # Interleaved, so each batch has labels of all kinds.
    count = -(-len(labels) // TOGETHER)
    batches = []
    for first in range(count):
        rows = np.arange(first, len(labels), count)
        targets, low, high, seen = (
            values[rows].astype(np.float32) for values in (problems.margin * spins, lower, upper, sees)
        )
        zeros = np.zeros(targets.shape, np.float32)
        batches.append(_Batch(rows, seen, targets, low, high, zeros, zeros.copy(), np.ones(len(rows))))
    kernel = matrix(problems)
    context = (problems.context * np.sqrt(problems.scale)).astype(np.float32)
    coef = np.zeros(spins.shape)
    # The kernel's mean variance in feature space: the size of most eigenvalues, for any kernel.
    rho = float(kernel.diagonal().mean(dtype=np.float64) - kernel.mean(dtype=np.float64))
    for part in range(ITERATIONS // CHECKED):
        if part < 2:
            factor = 1.0
            if part:
                factor = float(np.exp(np.concatenate([np.log(each.residuals) for each in batches]).mean()))
            if part == 0 or not CORRECT[0] < factor < CORRECT[1]:
                inverse = _inverse(kernel, context, rho * factor)
                if inverse is None:
                    return None
                for each in batches:
                    each.u *= np.float32(1 / factor)
        share(batches, partial(_advance, inverse, kernel, context, coef, tol))
        batches = [each for each in batches if len(each.place)]
        if not batches:
            break
    return np.clip(coef, lower, upper) if np.isfinite(coef).all() else None


def _inverse(kernel: np.ndarray, context: np.ndarray, rho: float) -> _Inverse | None:
    # Fortran order avoids a copy; SciPy instead of torch, because torch's threads ignore the BLAS limit.
    values = kernel.T.copy("F")
    values[np.diag_indices_from(values)] += np.float32(rho)
    factorise, invert = get_lapack_funcs(("potrf", "potri"), (values,))
    factor, info = factorise(values, lower=1, clean=0, overwrite_a=1)
    if info:
        return None
    lower, _ = invert(factor, lower=1, overwrite_c=1)
    inverse = np.tril(lower)
    inverse += np.tril(lower, -1).T
    columns = inverse @ context
    return _Inverse(np.float32(rho), inverse, columns, context.T @ columns)


def _advance(
    inverse: _Inverse,
    kernel: np.ndarray,
    context: np.ndarray,
    coef: np.ndarray,
    tol: float,
    batch: _Batch,
) -> None:
    """Run some iterations, write z to the problems' rows of ``coef``, and drop solved problems."""
    seen = batch.sees
    small = np.eye(seen.shape[1], dtype=np.float32) + seen[:, :, None] * inverse.square * seen[:, None, :]
    # Zero for columns the problem does not see.
    small = seen[:, :, None] * np.linalg.inv(small) * seen[:, None, :]
    right, x = np.empty_like(batch.z), np.empty_like(batch.z)
    for left in reversed(range(CHECKED)):
        np.subtract(batch.z, batch.u, out=right)
        right *= inverse.rho
        right += batch.targets
        np.matmul(right, inverse.values, out=x)
        x -= np.matmul(small, (right @ inverse.columns)[:, :, None])[:, :, 0] @ inverse.columns.T
        before, v = batch.z, RELAXATION * x
        v += (1 - RELAXATION) * before
        v += batch.u
        batch.z = np.clip(v, batch.lower, batch.upper)
        batch.u = np.subtract(v, batch.z, out=v)
        if not left:
            batch.residuals = _residuals(batch, right, x, before, inverse.rho)
    coef[batch.place] = batch.z
    batch.left(_unsolved(batch, kernel, context, tol))


def _residuals(
    batch: _Batch, right: np.ndarray, x: np.ndarray, before: np.ndarray, rho: np.float32
) -> np.ndarray:
    """Return the root of the primal residual over the dual residual, both relative."""
    primal = _norms(x - batch.z) / np.maximum(_norms(x), _norms(batch.z))
    slopes = np.maximum(_norms(right - rho * x), _norms(batch.targets))
    return np.sqrt(primal / (rho * _norms(batch.z - before) / slopes))


def _norms(rows: np.ndarray) -> np.ndarray:
    # Never zero, so the logarithm is finite.
    return np.sqrt(np.einsum("pi,pi->p", rows, rows)) + np.float32(1e-12)


def _unsolved(batch: _Batch, kernel: np.ndarray, context: np.ndarray, tol: float) -> np.ndarray:
    """Return the problems with a gap above the tolerance at z."""
    gradient = batch.z @ kernel + ((batch.z @ context) * batch.sees) @ context.T - batch.targets
    gaps = (gradient * (batch.z - np.where(gradient > 0, batch.lower, batch.upper))).sum(1)
    duals = 0.5 * (batch.z * (batch.targets - gradient)).sum(1)
    return ~(gaps <= CLOSE * tol * (gaps + duals))
