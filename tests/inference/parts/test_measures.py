"""The largest advantage of one answer over another, against all truths."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch
from torch import Tensor

from lmbm_torch.inference.expected import measures


def f1(one: frozenset, two: frozenset) -> float:
    return 2 * len(one & two) / (len(one) + len(two)) if one or two else 1.0


@pytest.mark.parametrize("size", range(6))
def test_advantages_are_the_largest_over_all_truths(size):
    subsets = [frozenset(some) for count in range(6) for some in combinations(range(5), count)]
    answer = frozenset(range(size))
    for other in subsets[1:]:
        most = max(f1(other, truth) - f1(answer, truth) for truth in subsets)
        came = measures._f1_advantages(size, 5)[len(answer & other), len(other)]
        assert came == pytest.approx(max(most, 0))


@pytest.mark.parametrize(("size", "num_labels"), [(1, 1), (3, 20), (17, 17), (9, 40), (30, 41)])
def test_advantages_are_the_largest_over_all_numbers_of_labels_in_a_truth(size, num_labels):
    came = measures._f1_advantages(size, num_labels)
    assert came.shape == (size + 1, num_labels + 1)
    for kept in {0, 1, size // 2, size}:
        for other in range(max(kept, 1), num_labels + 1):
            # Labels of both answers, and of none, that the truth has beside all of the other answer alone.
            both, none = torch.arange(kept + 1.0).double()[:, None], torch.arange(num_labels + 1.0).double()
            hits, truth = other - kept + both, other - kept + both + none
            most = (2 * hits / (other + truth) - 2 * both / (size + truth)).max().clamp(min=0)
            torch.testing.assert_close(came[kept, other], most)


def weighted(labels: int, count: int, level: float, batch: int = 5) -> tuple[Tensor, Tensor, Tensor]:
    """Labellings, their probabilities, and what they lack of 1."""
    generator = torch.Generator().manual_seed(labels)
    some = (torch.rand(batch, count, labels, generator=generator) < level).long()
    share, left = (torch.rand(batch, size, generator=generator).double() for size in (count, 1))
    left = left.flatten() / 2
    return some, share / share.sum(1, keepdim=True) * (1 - left[:, None]), left


SIZES = [(1, 3, 0.5), (45, 4, 0.05), (5, 20, 0.0), (5, 20, 0.3), (20, 60, 0.8), (45, 30, 0.4)]


@pytest.mark.parametrize(("labels", "count", "level"), SIZES)
def test_masses_by_size_are_those_of_the_reference(labels, count, level, monkeypatch):
    some, probability, _ = weighted(labels, count, level)
    came = measures._size_masses(some, probability)
    monkeypatch.setattr(measures, "compiled", lambda _: None)
    expected = measures._size_masses(some, probability)
    for one, two in zip(came, expected, strict=True):
        torch.testing.assert_close(one, two)


@pytest.mark.parametrize("measure", [measures.F1, measures.HAMMING, measures.JACCARD])
@pytest.mark.parametrize(("labels", "count", "level"), SIZES)
def test_what_is_judged_at_once_is_what_is_judged_by_parts(measure, labels, count, level):
    some, probability, left = weighted(labels, count, level)
    came = measure.judged(some, probability, left)
    assert torch.equal(came.labels, measure.choose(some, probability))
    torch.testing.assert_close(came.worth, measure.worth(some, probability, came.labels))
    torch.testing.assert_close(came.most, measure.best(some, probability))
    torch.testing.assert_close(came.regret, measure.regret(some, probability, left, came.labels))


@pytest.mark.parametrize("level", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("left", [0.0, 0.05, 0.4])
def test_f1_s_regret_is_at_least_that_of_every_truth_that_is_left(level, left):
    """Of any answer, whichever labelling what is left may be; where nothing is left it is met."""
    some, probability, _ = weighted(4, 6, level)
    probability = probability / probability.sum(1, keepdim=True) * (1 - left)
    every = torch.tensor([[code >> label & 1 for label in range(4)] for code in range(16)])
    gains = torch.stack([measures.F1.gain(every[None], each[None])[0] for each in every])
    known = torch.stack([measures.F1.worth(some, probability, each.expand(5, -1)) for each in every], 1)
    for number, answer in enumerate(every):
        advantage = (known - known[:, [number]])[:, :, None] + left * (gains - gains[number])
        most = advantage.flatten(1).amax(1).clamp(min=0)
        regret = measures.F1.regret(some, probability, torch.full((5,), left).double(), answer.expand(5, -1))
        assert (regret >= most - 1e-12).all()
        assert left > 0 or torch.allclose(regret, most)
