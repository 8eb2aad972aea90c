"""Spins that are decided, equal or opposite in every best labelling, by what roof duality says given one.

Where a spin is given, roof duality decides others (:mod:`~lmbm_torch.inference.parts.persistency`). What it
decides alike for both signs is so in every best labelling; what it decides by the sign goes with the spin,
and the two are one (Boros and Hammer, Pseudo-Boolean optimization, 2002).
"""

from __future__ import annotations

import numpy as np

from lmbm_torch.inference.parts.persistency import persistent_spins
from lmbm_torch.inference.parts.spin_problems import SpinProblem

__all__ = ["merge_implied"]

# Spins that are tried although those before them implied nothing: of dense problems all are like that.
FRUITLESS = 8


def merge_implied(problem: SpinProblem) -> SpinProblem:
    """The problem of scores where spins that another one implies are merged with it, or with the first."""
    place, fruitless = 1, 0
    while place < len(problem) and fruitless < FRUITLESS:
        one, other = (_implied(problem, place, sign) for sign in (1, -1))
        fruitless += 1
        # From the last one on, so that the others keep their places.
        for spin in np.flatnonzero(one * other)[::-1]:
            kept, sign = (0, one[spin]) if one[spin] == other[spin] else (place, one[spin])
            problem = problem.merged(int(spin), kept, int(sign))
            place, fruitless = place - (spin < place), 0
        place += 1
    return problem


def _implied(problem: SpinProblem, place: int, sign: int) -> np.ndarray:
    """What every best labelling has where a spin has a sign, 0 where roof duality does not say, (spins,)."""
    part = problem.merged(place, 0, sign)
    spins = persistent_spins(2 * part.matrix[0, 1:], 2 * part.matrix[1:, 1:])
    return np.insert(np.insert(spins, place - 1, 0), 0, 0)
