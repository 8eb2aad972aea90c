"""Upper bounds of quadratic problems over spins, by semidefinite programming with hypermetric inequalities.

The problem is max over spins x of xᵀ C x. The matrix xxᵀ is relaxed to any positive semidefinite X with unit
diagonal that obeys inequalities b_tᵀ X b_t ≥ 1. Then

    max ⟨C, X⟩ ≤ Σ_i y_i + Σ_t limit_t z_t + n λ_max(M),   M = C − Diag(y) + Σ_t z_t offdiag(b_t b_tᵀ)/2

for any y and any z ≥ 0, with n spins. So every iterate proves a bound, converged or not. Rules enter by
products of rules and labels that are non-negative for allowed labels, with multipliers μ ≥ 0.

The multipliers come from the augmented Lagrangian of the positive semidefinite constraint: L-BFGS minimises
over (y, z) the bound with ‖[M + αX̂]_+‖²/2α instead of the eigenvalue. The gradient's matrix X = [M +
αX̂]_+/α becomes the next X̂ (Malick, Povh, Rendl and Wiegele, Regularization methods for semidefinite
programming, 2009; without X̂, and with α → 0, the bound is that of BiqCrunch: Krislock, Malick and Roupin,
2014). Between rounds, inequalities that X violates are added, and inequalities with multiplier 0 are dropped.

The minimiser is projected L-BFGS. Variables at a bound whose gradient points outwards are held for one step.
The other variables take a quasi-Newton step from the last pairs of steps and gradient changes, clipped at the
bounds, and shortened until the function falls enough (Nocedal and Wright, Numerical Optimization, 2006,
algorithm 7.4; Bertsekas, Projected Newton methods, 1982).

Hypermetric inequalities hold as an odd number k of signs never adds up to zero: a vector b of k signs and
zeros has ⟨b bᵀ, s sᵀ⟩ = (b·s)² ≥ 1 for all spins s. k = 3 gives the triangle inequalities, k = 5 the
pentagonal inequalities (Helmberg and Rendl, Solving quadratic (0,1)-problems by semidefinite programs and
cutting planes, 1998, section 5). With unit diagonal the inequality is Σ_{i<j} b_i b_j X_ij ≥ −(k − 1)/2.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from lmbm_torch.inference.relaxations.semidefinite.spin_problems import SpinProblem

# Number of candidate spins when an inequality is extended by two spins (scripts/bench/dense_map.py).
PARTNERS = 24


@dataclass(frozen=True)
class Group:
    """Hypermetric inequalities with the same number of signs.

    Args:
        spins: (inequalities, signs), the spins of each inequality, in increasing order.
        signs: (inequalities, signs), the nonzero entries of b; the first sign is 1.
    """

    spins: np.ndarray
    signs: np.ndarray

    @classmethod
    def none(cls, size: int) -> Group:
        return cls(np.zeros((0, size), np.int16), np.zeros((0, size), np.int8))

    @classmethod
    def of(cls, spins: np.ndarray, signs: np.ndarray) -> Group:
        """Bring inequalities to normal form: sorted spins, and first sign 1, as b and −b are equivalent."""
        order = spins.argsort(1)
        spins, signs = np.take_along_axis(spins, order, 1), np.take_along_axis(signs, order, 1)
        return cls(spins.astype(np.int16), (signs * signs[:, :1]).astype(np.int8))

    def __len__(self) -> int:
        return len(self.spins)

    @property
    def size(self) -> int:
        """Return the number of signs of each inequality."""
        return self.spins.shape[1]

    def select(self, rows: np.ndarray) -> Group:
        return Group(self.spins[rows], self.signs[rows])

    def join(self, other: Group) -> Group:
        return Group(np.concatenate([self.spins, other.spins]), np.concatenate([self.signs, other.signs]))

    def names(self) -> np.ndarray:
        """Return a key for each inequality, equal for equal inequalities."""
        rows = np.ascontiguousarray(2 * self.spins + (self.signs > 0))
        return rows.view(np.dtype((np.void, rows.dtype.itemsize * self.size))).ravel()

    def slack(self, products: np.ndarray) -> np.ndarray:
        """Return ⟨b bᵀ, X⟩ − 1 for a matrix X of products."""
        chosen = products[self.spins[:, :, None], self.spins[:, None]]
        return np.einsum("mi,mij,mj->m", self.signs, chosen, self.signs, dtype=np.float64) - 1

    def merged(self, gone: int, kept: int, sign: int) -> tuple[Group, Group, np.ndarray, np.ndarray]:
        """Replace spin ``gone`` by ``sign`` times spin ``kept``; return the resulting inequalities.

        Returns:
            The inequalities with as many signs as before; the inequalities with two signs fewer, where the
            two spins cancelled; and for both the original rows. Inequalities that always hold are left out.
        """
        has_gone, has_kept = (self.spins == gone).any(1), (self.spins == kept).any(1)
        signs = np.where(self.spins == gone, sign * self.signs, self.signs)
        spins = np.where(self.spins == gone, kept, self.spins)
        both = has_gone & has_kept
        doubled = np.where(spins == kept, signs, 0).sum(1)
        (cancelled,) = np.nonzero(both & (doubled == 0))
        (same,) = np.nonzero(~both)
        spins = spins - (spins > gone)
        rest = spins[cancelled] != kept - (kept > gone)
        shape = (len(cancelled), self.size - 2)
        shorter = Group.of(spins[cancelled][rest].reshape(shape), signs[cancelled][rest].reshape(shape))
        return Group.of(spins[same], signs[same]), shorter, same, cancelled


@dataclass(frozen=True)
class Inequalities:
    """Groups of inequalities with increasing numbers of signs; multipliers are in the same order."""

    groups: tuple[Group, ...]

    @classmethod
    def none(cls) -> Inequalities:
        return cls((Group.none(3), Group.none(5)))

    def __len__(self) -> int:
        return sum(map(len, self.groups))

    def parts(self, values: np.ndarray) -> list[np.ndarray]:
        """Split ``values``, one for each inequality, into arrays for the groups."""
        return np.split(values, np.cumsum([len(group) for group in self.groups])[:-1])

    def select(self, rows: np.ndarray) -> Inequalities:
        """Return the inequalities for which ``rows`` is true."""
        chosen = zip(self.groups, self.parts(rows), strict=True)
        return Inequalities(tuple(group.select(part) for group, part in chosen))

    def join(self, values: np.ndarray, new: Iterable[Group]) -> tuple[Inequalities, np.ndarray]:
        """Add the inequalities ``new`` that are not yet there; return also the values, 0 for new ones."""
        groups, kept = [], []
        for group, part, more in zip(self.groups, self.parts(values), new, strict=True):
            fresh = more.select(~np.isin(more.names(), group.names()))
            groups.append(group.join(fresh))
            kept += [part, np.zeros(len(fresh))]
        return Inequalities(tuple(groups)), np.concatenate(kept)

    def merged(self, values: np.ndarray, gone: int, kept: int, sign: int) -> tuple[Inequalities, np.ndarray]:
        """Replace spin ``gone`` by ``sign`` · ``kept``; values of inequalities that become equal add up."""
        found: list[list[tuple[Group, np.ndarray]]] = [[] for _ in self.groups]
        for place, (group, part) in enumerate(zip(self.groups, self.parts(values), strict=True)):
            same, shorter, rows, cancelled = group.merged(gone, kept, sign)
            found[place].append((same, part[rows]))
            if place:
                found[place - 1].append((shorter, part[cancelled]))
        groups, kept_values = [], []
        for pieces in found:
            group, part = pieces[0]
            for more, extra in pieces[1:]:
                group, part = group.join(more), np.concatenate([part, extra])
            _, first, place = np.unique(group.names(), return_index=True, return_inverse=True)
            groups.append(group.select(first))
            kept_values.append(np.bincount(place.ravel(), part, len(first)))
        return Inequalities(tuple(groups)), np.concatenate(kept_values)

    def entries(self, num_spins: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return for each group the flat indices in a matrix of the products of spins, and b_i b_j.

        Both arrays have shape (inequalities, pairs); indices are below the diagonal.
        """
        found = []
        for group in self.groups:
            later, earlier = np.tril_indices(group.size, -1)
            places = group.spins[:, later].astype(np.intp) * num_spins + group.spins[:, earlier]
            found.append((places, (group.signs[:, later] * group.signs[:, earlier]).astype(np.float64)))
        return found

    @cached_property
    def limits(self) -> np.ndarray:
        """Return (k − 1)/2 for each inequality of k signs."""
        return np.concatenate([np.full(len(group), (group.size - 1) / 2) for group in self.groups])


def triangles(products: np.ndarray, violation: float, most: int) -> Group:
    """Return the violated triangle inequalities of a symmetric matrix X of products, worst first."""
    spins, signs, violations = [], [], []
    # Pairs in increasing order, so that the pairs of spins before ``last`` come first.
    later, earlier = np.tril_indices(len(products), -1)
    between = products[later, earlier]
    for last in range(2, len(products)):
        pairs = last * (last - 1) // 2
        one, other = products[last][later[:pairs]], products[last][earlier[:pairs]]
        for combined, same in ((one + other, 1), (one - other, -1)):
            amount = np.abs(combined) - same * between[:pairs] - 1
            (found,) = np.nonzero(amount > violation)
            opposite = np.where(combined[found] > 0, -1, 1)
            spins.append(np.stack([earlier[found], later[found], np.full_like(found, last)], 1))
            signs.append(np.stack([same * opposite, opposite, np.ones_like(found)], 1))
            violations.append(amount[found])
    if not violations:
        return Group.none(3)
    order = np.argsort(-np.concatenate(violations), kind="stable")[:most]
    return Group.of(np.concatenate(spins)[order], np.concatenate(signs)[order])


def longer(group: Group, products: np.ndarray, violation: float, most: int) -> Group:
    """Extend each inequality by two spins and the signs; return the violated inequalities, worst first.

    The two spins are chosen for the largest violation, once with equal and once with opposite relative sign.
    """
    num_spins, size = len(products), group.size
    if not len(group) or num_spins < size + 2:
        return Group.none(size + 2)
    base = group.slack(products)
    along = np.einsum("mki,mk->mi", products[group.spins], group.signs, dtype=np.float64)
    np.put_along_axis(along, group.spins.astype(np.intp), 0.0, 1)
    partners = np.argsort(-np.abs(along), kind="stable")[:, :PARTNERS]
    # Bar the inequality's own spins, which are candidates if other spins are few.
    barred = (partners[:, :, None] == group.spins[:, None]).any(2)
    chosen = np.take_along_axis(along, partners, 1)
    pairs = products[partners[:, :, None], partners[:, None]]
    shut = barred[:, :, None] | barred[:, None] | np.eye(partners.shape[1], dtype=bool)
    spins, signs, violations = [], [], []
    for same in (1, -1):
        combined = chosen[:, :, None] + same * chosen[:, None]
        left = np.where(shut, np.inf, same * pairs - np.abs(combined)).reshape(len(group), -1)
        best = left.argmin(1)
        rows = np.arange(len(group))
        first, second = np.divmod(best, partners.shape[1])
        sign = np.where(combined[rows, first, second] > 0, -1, 1)
        spins.append(
            np.concatenate([group.spins, partners[rows, first, None], partners[rows, second, None]], 1)
        )
        signs.append(np.concatenate([group.signs, sign[:, None], same * sign[:, None]], 1))
        violations.append(-(base + 2 + 2 * left[rows, best]))
    amount = np.concatenate(violations)
    order = np.argsort(-amount, kind="stable")
    order = order[amount[order] > violation]
    found = Group.of(np.concatenate(spins)[order], np.concatenate(signs)[order])
    _, first = np.unique(found.names(), return_index=True)
    return found.select(np.sort(first)[:most])


# Number of pairs of steps and gradient changes that L-BFGS remembers.
MEMORY = 10
# Smallest decrease of an accepted step, as a share of the predicted decrease; largest number of halvings.
SUFFICIENT, HALVINGS = 1e-4, 12


def minimise(
    function: Callable[[np.ndarray], tuple[float, np.ndarray]],
    point: np.ndarray,
    lower: np.ndarray,
    *,
    step: float,
    num_iters: int,
) -> np.ndarray:
    """Minimise a function with lower bounds by L-BFGS; end after ``num_iters`` steps, or without a descent.

    Args:
        function: returns the value and the gradient at a point.
        step: the first estimate of the inverse curvature, a factor of the gradient.
    """
    value, gradient = function(point)
    pairs: deque[tuple[np.ndarray, np.ndarray]] = deque(maxlen=MEMORY)
    for _ in range(num_iters):
        free = np.flatnonzero((point > lower) | (gradient <= 0))
        direction = np.zeros_like(point)
        direction[free] = -_scaled(gradient[free], [(one[free], two[free]) for one, two in pairs], step)
        if direction @ gradient >= 0:
            return point
        length = 1.0
        for _ in range(HALVINGS):
            trial = np.maximum(point + length * direction, lower)
            moved = trial - point
            found, slope = function(trial)
            if found <= value + SUFFICIENT * (gradient @ moved):
                break
            length /= 2
        else:
            return point
        change = slope - gradient
        if moved @ change > 0:
            pairs.append((moved, change))
        elif not pairs:
            # The function is not convex along this step: try longer steps.
            step *= 4
        point, value, gradient = trial, found, slope
    return point


def _scaled(gradient: np.ndarray, pairs: list[tuple[np.ndarray, np.ndarray]], step: float) -> np.ndarray:
    """Multiply the gradient by the inverse Hessian, as approximated by the pairs of steps and changes."""
    result, weights = gradient.copy(), []
    pairs = [(moved, change) for moved, change in pairs if moved @ change > 0]
    for moved, change in reversed(pairs):
        weight = (moved @ result) / (moved @ change)
        result -= weight * change
        weights.append(weight)
    if pairs:
        moved, change = pairs[-1]
        step = float((moved @ change) / (change @ change))
    result *= step
    for (moved, change), weight in zip(pairs, reversed(weights), strict=True):
        result += moved * (weight - (change @ result) / (moved @ change))
    return result


# Penalty α as a share of λ_max(C)/n: the first value, the factor from round to round, and the last value
# (scripts/bench/dense_map.py).
FIRST, FALL, LAST = 1.3, 0.6, 0.4
# Number of steps of L-BFGS in a round (scripts/bench/dense_map.py).
STEPS = 25
# Smallest violations of inequalities of three and of five signs that are added (scripts/bench/dense_map.py).
TRIANGLE, PENTAGON = 0.02, 0.05
# Largest number of inequalities of each size that a round adds, for each spin (scripts/bench/dense_map.py).
MOST_ADDED = 5
# Number of inequalities, for each spin, that a round extends by two spins.
EXTENDED = 6
# Largest multiplier of an inequality that is dropped, as a share of the largest multiplier.
NEGLIGIBLE = 1e-7
EPSILON = np.finfo(np.float64).eps


class Proof(NamedTuple):
    """Bounds that a point of the dual proves.

    Args:
        bound: an upper bound of the objective over all spin vectors.
        others: an upper bound over all spin vectors except ``leading`` and −``leading``.
        leading: the signs of the eigenvector of M with the largest eigenvalue.
    """

    bound: float
    others: float
    leading: np.ndarray


@dataclass
class Relaxation:
    """Dual of one problem, with the current point of the minimisation.

    Args:
        diagonal: the multipliers y of the spins' squares.
        rule_prices: the multipliers μ of the products of rules.
        prices: the multipliers z of the inequalities.
        products: the matrix X.
        penalty: the penalty α.
        factor: a matrix with X = factor factorᵀ.
    """

    problem: SpinProblem
    diagonal: np.ndarray
    rule_prices: np.ndarray
    inequalities: Inequalities
    prices: np.ndarray
    products: np.ndarray
    penalty: float
    least_penalty: float
    factor: np.ndarray
    rounds: int = 0

    @classmethod
    def of(cls, problem: SpinProblem) -> Relaxation:
        """Return the relaxation before any round, without inequalities."""
        size, largest = len(problem), float(np.linalg.eigvalsh(problem.matrix)[-1])
        diagonal = np.full(size, largest)
        # If all weights are 0, any penalty will do.
        scale = largest / size or 1.0
        return cls(
            problem,
            diagonal,
            np.zeros(0 if problem.rules is None else len(problem.rules.rule)),
            Inequalities.none(),
            np.zeros(0),
            np.zeros_like(problem.matrix),
            FIRST * scale,
            LAST * scale,
            np.eye(size),
        )

    def round(self) -> Proof:
        """Minimise over the multipliers, and update X; return the bounds that the new point proves."""
        size, ruled = len(self.problem), len(self.rule_prices)
        nearby = self.penalty * self.products if self.penalty <= self.least_penalty else 0.0
        centre = 0.0 if isinstance(nearby, float) else self.penalty / 2 * float((self.products**2).sum())
        entries = self.inequalities.entries(size)
        linear = self._linear
        rules, factor, products = self.problem.rules, self.factor, self.products

        def lagrangian(point: np.ndarray) -> tuple[float, np.ndarray]:
            nonlocal factor, products
            values, vectors = np.linalg.eigh(self._matrix(point, entries) + nearby)
            first = int(np.searchsorted(values, 0))
            positive = values[first:]
            factor = vectors[:, first:] * np.sqrt(positive / self.penalty)
            products = factor @ factor.T
            parts = [-products.diagonal()]
            if rules is not None:
                parts.append(rules.values(products))
            for places, signs in entries:
                parts.append(np.einsum("mp,mp->m", products.ravel()[places], signs))
            value = float(linear @ point + positive @ positive / (2 * self.penalty) - centre)
            return value, linear + np.concatenate(parts)

        lower = np.repeat([-np.inf, 0.0], [size, ruled + len(self.prices)])
        point = minimise(lagrangian, self._point, lower, step=self.penalty, num_iters=STEPS)
        lagrangian(point)
        self.diagonal, self.rule_prices, self.prices = np.split(point, np.cumsum([size, ruled]))
        self.factor, self.products = factor, products
        self.rounds += 1
        return self.proof()

    @property
    def warming(self) -> bool:
        """Return whether the penalty is still above its last value."""
        return self.penalty > self.least_penalty

    def tighten(self) -> None:
        """Add violated inequalities, drop inequalities with negligible multipliers, and lower the penalty."""
        self.penalty = max(self.penalty * FALL, self.least_penalty)
        kept = self.prices > NEGLIGIBLE * self.prices.max(initial=0)
        inequalities = self.inequalities.select(kept)
        most = MOST_ADDED * len(self.problem)
        new = [triangles(self.products, TRIANGLE, most)]
        for group in inequalities.groups[:-1]:
            tightest = np.argsort(group.slack(self.products), kind="stable")
            base = group.select(tightest[: EXTENDED * len(self.problem)])
            new.append(longer(base, self.products, PENTAGON, most))
        self.inequalities, self.prices = inequalities.join(self.prices[kept], new)

    def merged(self, gone: int, kept: int, sign: int) -> Relaxation:
        """Return the dual after spin ``gone`` is replaced by ``sign`` · ``kept``, at the current point."""
        size = len(self.problem)
        between = self._matrix(self._point, self.inequalities.entries(size))[gone, kept]
        diagonal = self.diagonal.copy()
        diagonal[kept] += diagonal[gone] - 2 * sign * between
        inequalities, prices = self.inequalities.merged(self.prices, gone, kept, sign)
        products = np.delete(np.delete(self.products, gone, 0), gone, 1)
        return Relaxation(
            self.problem.merged(gone, kept, sign),
            np.delete(diagonal, gone),
            self.rule_prices,
            inequalities,
            prices,
            products,
            self.penalty,
            self.least_penalty,
            np.delete(self.factor, gone, 0),
        )

    def merged_by(self, merges: Iterable[tuple[int, int, int]]) -> Relaxation:
        """Return the relaxation after several replacements, in turn, by :meth:`merged`."""
        relaxation = self
        for gone, kept, sign in merges:
            relaxation = relaxation.merged(gone, kept, sign)
        return relaxation

    @property
    def _point(self) -> np.ndarray:
        """Return the multipliers (y, μ, z) as a vector."""
        return np.concatenate([self.diagonal, self.rule_prices, self.prices])

    @property
    def _linear(self) -> np.ndarray:
        """Return the coefficients of the multipliers (y, μ, z) in the bound."""
        of_rules = np.zeros(len(self.rule_prices))
        return np.concatenate([np.ones(len(self.problem)), of_rules, self.inequalities.limits])

    def _matrix(self, point: np.ndarray, entries: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
        """Return the matrix M for the multipliers (y, μ, z)."""
        problem, size = self.problem, len(self.problem)
        of_rules = size + len(self.rule_prices)
        matrix = problem.matrix.copy()
        for (places, signs), prices in zip(entries, self.inequalities.parts(point[of_rules:]), strict=True):
            weights = (signs * (prices / 2)[:, None]).ravel()
            lower = np.bincount(places.ravel(), weights, size * size).reshape(size, size)
            matrix += lower + lower.T
        if problem.rules is not None:
            matrix += problem.rules.weighted(point[size:of_rules])
        matrix.ravel()[:: size + 1] -= point[:size]
        return matrix

    def proof(self) -> Proof:
        """Return the bounds that the current point proves, with a margin for rounding errors.

        Spins x other than ± the signs of the leading eigenvector v have |v·x| ≤ ‖v‖₁ − 2 min |v_i|. The bound
        without these two is then xᵀ M x ≤ λ₂ n + (λ₁ − λ₂) (v·x)², with the two largest eigenvalues λ₁, λ₂.
        """
        point, linear = self._point, self._linear
        matrix = self._matrix(point, self.inequalities.entries(len(self.problem)))
        size = len(matrix)
        values, vectors = np.linalg.eigh(matrix)
        second, first = values[-2:] if size > 1 else (values[-1], values[-1])
        base = self.problem.constant + float(linear @ point)
        leading = vectors[:, -1]
        reach = max(0.0, float(np.abs(leading).sum() - 2 * np.abs(leading).min()))
        # Rounding errors of an entry or an eigenvalue are a few units of the sum of magnitudes.
        weights = np.abs(linear * point).sum() + abs(self.problem.constant)
        entries = np.abs(self.problem.matrix).sum() + np.abs(matrix).sum() + 10 * self.prices.sum()
        if self.problem.rules is not None:
            entries += 10 * self.problem.rules.size(self.rule_prices)
        rounding = 4 * EPSILON * (len(point) * weights + size * size * entries)
        signs = np.where(leading < 0, -1.0, 1.0)
        others = second * size + (first - second) * reach**2
        return Proof(base + first * size + rounding, base + others + rounding, signs)
