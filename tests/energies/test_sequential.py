"""Distributions that are asked for label by label: their scores, and what they refuse."""

from __future__ import annotations

import itertools

import pytest
import torch
from strategies.sequential import random_sequential_energy, relabelled, spoiled

from lmbm_torch.energies import SequentialEnergy


def every(energy: SequentialEnergy) -> torch.Tensor:
    return torch.tensor(list(itertools.product(*map(range, energy.num_states))))[:, None]


@pytest.mark.parametrize("impossible", [0.0, 0.5])
def test_probabilities_of_all_labellings_sum_to_one(impossible):
    energy = random_sequential_energy(1, impossible=impossible)
    total = energy.log_prob(every(energy)).logsumexp(0)
    torch.testing.assert_close(total, torch.zeros(3, dtype=torch.float64))
    torch.testing.assert_close(energy.energy(every(energy)), -energy.score(every(energy)))


def test_scores_are_products_of_conditionals():
    energy = random_sequential_energy(2, (2, 3))
    first, second = energy.ordering
    labels = torch.tensor([[1, 2], [0, 1], [1, 0]])
    rows = torch.arange(3)
    values = labels[:, [first, second]]
    expected = energy.conditional(0, rows, values[:, :0])[rows, values[:, 0]]
    expected = expected + energy.conditional(1, rows, values[:, :1])[rows, values[:, 1]]
    torch.testing.assert_close(energy.log_prob(labels), expected)


def test_selected_rows_and_renamed_labels_keep_their_scores():
    energy = random_sequential_energy(3)
    labels = every(energy)
    rows = torch.tensor([2, 0])
    torch.testing.assert_close(energy.select(rows).score(labels), energy.score(labels)[:, rows])
    order = torch.tensor([3, 1, 4, 0, 2])
    torch.testing.assert_close(relabelled(energy, order).score(labels[..., order]), energy.score(labels))


def test_another_precision_rounds_results_alone():
    energy = random_sequential_energy(4)
    single = energy.to(torch.float32, "cpu")
    assert (single.dtype, energy.dtype) == (torch.float32, torch.float64)
    assert single.score(every(energy)).dtype == torch.float32
    torch.testing.assert_close(
        single.score(every(energy)).double(), energy.score(every(energy)), rtol=1e-5, atol=1e-5
    )
    with pytest.raises(ValueError, match="where: expected a dtype or the CPU for SequentialEnergy, got meta"):
        energy.to("meta")


def test_what_is_no_distribution_is_refused_by_its_label():
    energy = random_sequential_energy(0, (2, 2))
    for bad in (torch.nan, torch.inf, 0.5):
        with pytest.raises(ValueError, match=r"^P\(label \d \| labels before it\): expected"):
            spoiled(energy, bad).log_prob(torch.zeros(3, 2))
    with pytest.raises(ValueError, match="labels: expected values from 0 to the number of states"):
        energy.log_prob(torch.full((3, 2), 2))
    with pytest.raises(TypeError, match="energy: expected a kind that takes further unary terms"):
        energy.add_unary(torch.zeros(3, 2))
    for arguments, message in (
        ((0, (2,), (0,)), "batch_size: expected"),
        ((1, (2, 0), (0, 1)), r"num_states\[1\]: expected"),
        ((1, (2, 2), (0, 0)), "ordering: expected a permutation"),
    ):
        with pytest.raises(ValueError, match=message):
            SequentialEnergy(*arguments, energy.conditional)
