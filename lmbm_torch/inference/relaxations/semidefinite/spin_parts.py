"""Best labellings of an example by semidefinite branch and bound, separately for independent parts.

Labels that are not coupled to other labels, directly or indirectly, form a separate problem. Each problem is
scaled by a power of two, without rounding, to weights of about 1.

If a spin is fixed, roof duality decides further spins (:mod:`~lmbm_torch.inference.relaxations.persistency`).
A spin with the same decision for both values of the fixed spin has this value in every best labelling. A spin
whose decision changes with the fixed spin is merged with it (Boros and Hammer, Pseudo-Boolean optimization,
2002).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from lmbm_torch.constraints import Constraints
from lmbm_torch.inference.relaxations.persistency import persistent_spins
from lmbm_torch.inference.relaxations.semidefinite.spin_problems import SpinProblem, with_field_spin
from lmbm_torch.inference.relaxations.semidefinite.spin_search import Best, Limits, search

# Number of spins in a row without an implication after which the search ends, as in dense problems.
FRUITLESS = 8


def merge_implied(problem: SpinProblem) -> SpinProblem:
    """Merge each spin that follows from another spin with that spin, and each decided spin with the first."""
    place, fruitless = 1, 0
    while place < len(problem) and fruitless < FRUITLESS:
        one, other = (_implied(problem, place, sign) for sign in (1, -1))
        fruitless += 1
        # Merge the last spin first, so that the numbers of earlier spins stay valid.
        for spin in np.flatnonzero(one * other)[::-1]:
            kept, sign = (0, one[spin]) if one[spin] == other[spin] else (place, one[spin])
            problem = problem.merged(int(spin), kept, int(sign))
            place, fruitless = place - (spin < place), 0
        place += 1
    return problem


def _implied(problem: SpinProblem, place: int, sign: int) -> np.ndarray:
    """Return the spins that roof duality decides if one spin has the given sign, 0 if undecided, (spins,)."""
    part = problem.merged(place, 0, sign)
    spins = persistent_spins(2 * part.matrix[0, 1:], 2 * part.matrix[1:, 1:])
    return np.insert(np.insert(spins, place - 1, 0), 0, 0)


# Largest difference of tied values, as a share of a label's largest loss: far above rounding errors of sums.
ROUND_OFF = 1e-12
# Largest sum of weights, as a multiple of their common unit, for which sums in float64 are exact.
MOST_MULTIPLES = 2.0**40


class Example(NamedTuple):
    """Boltzmann machine for one input.

    Args:
        fields: unary log-potentials, (labels,).
        couplings: pairwise log-potentials, (labels, labels).
        known: spins, 0 for free labels.
        constraints: rules over the labels; None if all labellings are allowed.
    """

    fields: np.ndarray
    couplings: np.ndarray
    known: np.ndarray
    constraints: Constraints | None = None


@dataclass(frozen=True)
class Labellings:
    """Best labellings of an example or of an independent part.

    Args:
        spins: (number, labels), best first.
        values: the scores of the labellings.
        others: an upper bound of the scores of all other labellings; after a complete search the last value.
        complete: whether no limit ended the search.
        nodes: the number of searched parts.
    """

    spins: np.ndarray
    values: np.ndarray
    others: float
    complete: bool
    nodes: int


def best_labellings(example: Example, number: int, limits: Limits) -> Labellings:
    """Return the ``number`` best labellings, or all if fewer, with an upper bound of all other scores."""
    found = Labellings(example.known[None].copy(), np.zeros(1), -np.inf, True, 0)
    if example.constraints is None:
        fields = example.fields + example.couplings @ example.known
        constant = example.known @ (example.fields + fields) / 2
        found = replace(found, values=np.array([constant]))
        free = example.known == 0
        example = example._replace(
            fields=np.where(free, fields, 0), couplings=example.couplings * np.outer(free, free)
        )
    for labels in _parts(example):
        left = replace(limits, nodes=max(1, limits.nodes - found.nodes))
        found = _both(found, labels, _part(example, labels, number, left), number)
    return found


def _parts(example: Example) -> Iterator[np.ndarray]:
    """Yield the labels of each independent part; under rules, which may connect parts, all labels at once."""
    if example.constraints is not None:
        yield np.arange(len(example.known))
        return
    coupled, left = example.couplings != 0, example.known == 0
    while left.any():
        part = np.zeros_like(left)
        part[left.argmax()] = True
        while (grown := part | coupled[part].any(0)).sum() > part.sum():
            part = grown
        left &= ~part
        yield np.flatnonzero(part)


def _part(example: Example, labels: np.ndarray, number: int, limits: Limits) -> Labellings:
    fields, couplings = example.fields[labels], example.couplings[np.ix_(labels, labels)]
    known = example.known[labels]
    # If all weights are 0, any scale will do.
    largest = max(np.abs(fields).max(), np.abs(couplings).max())
    exponent = int(np.frexp(largest)[1])
    fields, couplings = np.ldexp(fields, -exponent), np.ldexp(couplings, -exponent)
    whole = SpinProblem.of_machine(fields, couplings, example.constraints)
    slack = ROUND_OFF * np.abs(with_field_spin(fields, couplings)).sum(1).max()
    problem = whole.given(known)
    if number == 1 and example.constraints is None:
        if not fields.any() and not known.any():
            # Without fields, flipping all labels changes no score: fix one label.
            problem = problem.merged(1, 0, -1)
        problem = merge_implied(problem)
    free = len(problem) - 1
    most = min(number, 2**free) if free < 60 else number
    best = Best.of(whole, most, 2 * common_unit(fields, couplings), slack)
    if example.constraints is not None:
        best.offer(_nearest(example.constraints, fields, known))
    answer = search(problem, best, limits)
    values = np.ldexp(best.values, exponent)
    others = values[-1] if answer.complete else max(values[-1], float(np.ldexp(answer.bound, exponent)))
    return Labellings(best.spins[:, 1:], values, others, answer.complete, answer.nodes)


def _nearest(constraints: Constraints, fields: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Return the allowed labelling nearest to the fields' signs, as a row of spins; no row without any."""
    labels = constraints.nearest((fields > 0).astype(np.float64), np.where(known == 0, np.nan, known > 0))
    return np.ones((0, 1 + len(fields))) if labels is None else np.insert(2.0 * labels - 1, 0, 1)[None]


def _both(found: Labellings, labels: np.ndarray, part: Labellings, number: int) -> Labellings:
    """Combine the best labellings of earlier parts with those of one further part, whose labels are given."""
    sums = found.values[:, None] + part.values
    order = np.argsort(-sums, axis=None, kind="stable")[:number]
    rows, columns = np.unravel_index(order, sums.shape)
    spins = found.spins[rows]
    spins[:, labels] = part.spins[columns]
    values = sums.ravel()[order]
    # Any other labelling is not among the best of the earlier parts or of this part, or is a dropped sum.
    elsewhere = max(
        found.others + max(part.values[0], part.others), part.others + max(found.values[0], found.others)
    )
    complete = found.complete and part.complete
    others = values[-1] if complete else max(values[-1], elsewhere)
    return Labellings(spins, values, others, complete, found.nodes + part.nodes)


def common_unit(fields: np.ndarray, couplings: np.ndarray) -> float:
    """Return the greatest number of which all weights are integer multiples; 0 if there is none."""
    weights = np.unique(np.abs(np.concatenate([fields, couplings[np.tril_indices(len(fields), -1)]])))
    total, unit = float(weights.sum()) * len(fields) ** 2, 0.0
    for weight in weights:
        # Euclid's algorithm, which is exact because remainders of floating-point numbers are exact.
        one, other = float(weight), unit
        while other:
            one, other = other, float(np.fmod(one, other))
        unit = one
        if unit and total > MOST_MULTIPLES * unit:
            return 0.0
    return unit
