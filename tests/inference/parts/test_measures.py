"""The largest advantage of one answer over another, against all truths."""

from __future__ import annotations

from itertools import combinations

import pytest

from lmbm_torch.inference.parts import measures


def f1(one: frozenset, two: frozenset) -> float:
    return 2 * len(one & two) / (len(one) + len(two)) if one or two else 1.0


@pytest.mark.parametrize("size", range(6))
def test_advantages_are_the_largest_over_all_truths(size):
    subsets = [frozenset(some) for count in range(6) for some in combinations(range(5), count)]
    answer = frozenset(range(size))
    for other in subsets[1:]:
        most = max(f1(other, truth) - f1(answer, truth) for truth in subsets)
        came = measures._f1_advantages(size, len(answer & other), 5)[len(other)]
        assert came == pytest.approx(max(most, 0))
