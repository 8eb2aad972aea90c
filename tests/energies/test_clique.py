"""CliqueEnergy against a scalar loop, against pairwise energies, by enumeration, and what it refuses."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies.pairwise import (
    all_labellings,
    clique_energies,
    labels_of,
    pairwise_energies,
    random_clique_energy,
    random_pairwise_energy,
)

from lmbm_torch.energies import CliqueEnergy
from lmbm_torch.energies.base import MarginEnergy
from lmbm_torch.inference.enumeration import exact

SEEDS = st.integers(0, 2**32 - 1)


def scalar_score(energy: CliqueEnergy, example: int, spins: list[int]) -> float:
    """The definition: one labelling, one example, plain numbers."""
    weight = (energy.weight if energy.weight.ndim == 1 else energy.weight[example]).tolist()
    terms = (w * math.prod(spins[i] for i in c) for w, c in zip(weight, energy.cliques, strict=True))
    return float(energy.constant[example]) + sum(terms)


@given(clique_energies(), SEEDS)
def test_score_equals_a_scalar_loop(energy, seed):
    labels = labels_of(seed, energy)
    for example, spins in enumerate((2 * labels - 1).tolist()):
        expected = pytest.approx(scalar_score(energy, example, spins), rel=1e-9, abs=1e-9)
        assert energy.score(labels)[example].item() == expected
        assert -energy.energy(labels)[example].item() == expected


@given(clique_energies(), SEEDS)
def test_margins_are_half_of_what_the_score_loses_by_a_change(energy, seed):
    labels = labels_of(seed, energy)
    margins = energy.local_margins(labels)
    for label in range(energy.num_labels):
        changed = labels.clone()
        changed[:, label] = 1 - changed[:, label]
        torch.testing.assert_close(2 * margins[:, label], energy.score(labels) - energy.score(changed))


@given(clique_energies(max_labels=4))
def test_leading_axes_are_samples_that_share_the_batch(energy):
    labellings = all_labellings(energy.num_labels)
    spread = labellings.expand(-1, energy.batch_size, -1)
    for quantity in (energy.score, energy.local_margins):
        one_by_one = torch.stack([quantity(labels) for labels in spread])
        torch.testing.assert_close(quantity(labellings), one_by_one)
        torch.testing.assert_close(quantity(spread[:, None]), one_by_one[:, None])


@given(clique_energies(), SEEDS)
def test_select_takes_examples(energy, seed):
    labels = labels_of(seed, energy)
    rows = torch.randint(energy.batch_size, (5,), generator=torch.Generator().manual_seed(seed))
    for chosen in (rows, slice(0, 1)):
        torch.testing.assert_close(energy.select(chosen).score(labels[chosen]), energy.score(labels)[chosen])


@given(clique_energies(), SEEDS, st.booleans())
def test_add_unary_adds_to_the_score_by_label(energy, seed, for_all):
    labels = labels_of(seed, energy)
    rows = 1 if for_all else energy.batch_size
    unary = torch.linspace(-2, 3, rows * energy.num_labels).double().reshape(rows, -1)
    torch.testing.assert_close(
        energy.add_unary(unary).score(labels), energy.score(labels) + (unary * labels).sum(-1)
    )


class TestPairwise:
    @given(pairwise_energies())
    def test_from_pairwise_scores_the_same(self, energy):
        labellings = all_labellings(energy.num_labels)
        cliques = CliqueEnergy.from_pairwise(energy)
        torch.testing.assert_close(cliques.score(labellings), energy.score(labellings))
        torch.testing.assert_close(cliques.local_margins(labellings), energy.local_margins(labellings))

    @given(clique_energies(max_order=2))
    def test_to_pairwise_scores_the_same(self, energy):
        labellings = all_labellings(energy.num_labels)
        pairwise = energy.to_pairwise()
        pairwise.check_values()
        assert pairwise.pairwise.ndim == energy.weight.ndim + 1
        torch.testing.assert_close(pairwise.score(labellings), energy.score(labellings))

    @given(pairwise_energies())
    def test_there_and_back(self, energy):
        back = CliqueEnergy.from_pairwise(energy).to_pairwise()
        for name in ("unary", "constant"):
            torch.testing.assert_close(getattr(back, name), getattr(energy, name))
        expected = energy.pairwise.expand_as(back.pairwise)
        torch.testing.assert_close(back.pairwise, expected)

    def test_gradients_flow_through_both(self):
        weight = random_pairwise_energy(0, 3, per_example=True).pairwise.requires_grad_()
        energy = replace(random_pairwise_energy(0, 3), pairwise=weight)
        score = CliqueEnergy.from_pairwise(energy).to_pairwise().score(torch.ones(3, 3))
        (gradient,) = torch.autograd.grad(score.sum(), weight)
        # Each pair is read once, where the row is the smaller label.
        torch.testing.assert_close(gradient, torch.ones(3, 3, 3).double().triu(1))

    def test_refuses_larger_cliques(self):
        energy = CliqueEnergy(((0, 1), (0, 1, 2)), torch.ones(2))
        with pytest.raises(
            ValueError, match=r"^cliques: expected at most two labels in each clique, got \(0, 1, 2\)"
        ):
            energy.to_pairwise()


class TestEnumeration:
    def test_is_an_energy_with_margins(self):
        assert isinstance(random_clique_energy(0, 3), MarginEnergy)

    @given(clique_energies(max_labels=5))
    def test_log_partition_marginals_and_decoding(self, energy):
        labellings = all_labellings(energy.num_labels)
        scores = energy.score(labellings)
        result = exact.marginals(energy)
        torch.testing.assert_close(result.log_partition, scores.logsumexp(0))
        torch.testing.assert_close(result.labels, (scores.softmax(0)[..., None] * labellings).sum(0))
        torch.testing.assert_close(exact.decode(energy).objective, scores.amax(0))
        hinge = (1 - energy.local_margins(labellings)).clamp(min=0).sum(-1)
        torch.testing.assert_close(exact.decode_hinge(energy).objective, hinge.amin(0))

    def test_expected_parities_are_the_gradient_of_the_log_partition(self):
        energy = random_clique_energy(0, 5)
        weight = energy.weight.clone().requires_grad_()
        log_partition = exact.log_partition(replace(energy, weight=weight))
        (gradient,) = torch.autograd.grad(log_partition.sum(), weight)
        labellings = all_labellings(5)
        probability = energy.score(labellings).softmax(0)[..., None]
        torch.testing.assert_close(gradient, (probability * energy.parities(labellings)).sum((0, 1)))

    def test_twenty_two_labels(self):
        # One parity of all labels splits the labellings in halves.
        energy = CliqueEnergy((tuple(range(22)),), torch.tensor([0.7]).double())
        expected = 22 * torch.tensor(2.0).double().log() + torch.tensor(0.7).double().cosh().log()
        torch.testing.assert_close(exact.log_partition(energy)[0], expected)


def test_labels_and_examples_are_counted_where_nothing_says_how_many():
    energy = CliqueEnergy(((0, 2), (1,)), torch.ones(2))
    assert (energy.num_labels, energy.batch_size, energy.constant.tolist()) == (3, 1, [0.0])
    assert CliqueEnergy(((0,),), torch.ones(5, 1)).constant.tolist() == [0.0] * 5


WEIGHT = torch.ones(2)


@pytest.mark.usefixtures("no_shape_checks")
@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("num_labels", {"cliques": (), "weight": torch.ones(0)}),
        ("num_labels", {"cliques": (), "weight": torch.ones(0), "num_labels": 0}),
        ("cliques", {"cliques": ((0, 1), ()), "weight": WEIGHT}),
        ("cliques", {"cliques": ((0, 1), (1, 1)), "weight": WEIGHT}),
        ("cliques", {"cliques": ((0, 1), (-1, 1)), "weight": WEIGHT}),
        ("cliques", {"cliques": ((0, 1), (0, 2)), "weight": WEIGHT, "num_labels": 2}),
        ("weight", {"cliques": ((0, 1),), "weight": WEIGHT}),
        ("weight", {"cliques": ((0, 1),), "weight": torch.ones(2, 1, 1)}),
        ("weight", {"cliques": ((0, 1),), "weight": torch.ones(())}),
        ("weight", {"cliques": ((0, 1), (0,)), "weight": WEIGHT.long()}),
        ("constant", {"cliques": ((0, 1),), "weight": torch.ones(3, 1), "constant": torch.ones(2)}),
        ("constant", {"cliques": ((0, 1),), "weight": torch.ones(1), "constant": torch.ones(())}),
        ("constant", {"cliques": ((0, 1),), "weight": torch.ones(1), "constant": torch.ones(1).double()}),
    ],
)
def test_construction_refuses(name, fields):
    with pytest.raises(ValueError, match=f"^{name}: expected"):
        CliqueEnergy(**fields)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("name", ["weight", "constant"])
def test_check_values_refuses_what_is_not_finite(name, bad):
    energy = random_clique_energy(0, 4)
    energy.check_values()
    tensor = getattr(energy, name).clone()
    tensor[-1] = bad
    with pytest.raises(ValueError, match=f"^{name}: expected finite values"):
        replace(energy, **{name: tensor}).check_values()


@pytest.mark.usefixtures("no_shape_checks")
@pytest.mark.parametrize("unary", [torch.zeros(2, 4).double(), torch.zeros(3, 5).double(), torch.zeros(3, 4)])
def test_add_unary_refuses(unary):
    with pytest.raises(ValueError, match=r"^unary: expected"):
        random_clique_energy(0, 4).add_unary(unary)
