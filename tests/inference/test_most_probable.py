"""Labellings by decreasing probability, and what is proven by them, against enumeration."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies.directed import random_directed_energy
from strategies.sequential import random_chains, random_known_values, random_sequential_energy

from lmbm_torch.inference.expected import bayes
from lmbm_torch.inference.expected.measures import MEASURES
from lmbm_torch.inference.sampling import ancestral
from lmbm_torch.inference.search import mixture, most_probable


def agreeing(energies, known):
    """All labellings, and their probabilities (labellings, batch) given what is known; None if impossible."""
    states = getattr(energies[0], "num_states", (2,) * energies[0].num_labels)
    every = torch.tensor(list(itertools.product(*map(range, states))))
    probability = mixture.log_prob(energies, every[:, None]).exp()
    if known is not None:
        probability = probability.masked_fill(((every[:, None] != known) & ~known.isnan()).any(-1), 0)
    return every, probability / probability.sum(0)


@pytest.mark.parametrize(("labels", "most", "is_whole"), [(8, 256, True), (9, 1000, False), (5, 31, False)])
def test_marginals_of_few_labellings_sum_all_of_them(labels, most, is_whole):
    energies = random_chains(0, 2, num_states=(2,) * labels, sharpness=2.0)
    for found, some in (
        (mixture.marginals(energies, mass_left=0.2, max_labellings=most), energies),
        (most_probable.marginals(energies[0], mass_left=0.2, max_labellings=most), energies[:1]),
    ):
        every, truth = agreeing(some, None)
        expected = torch.einsum("lb,li->bi", truth, every.double())
        worst = (found.states[:, :, 1] - expected).abs().max()
        assert (bool(found.status.exact.all()), bool(worst < 1e-12)) == (is_whole, is_whole)
        assert worst <= found.mass_left.max() + 1e-12


@settings(max_examples=40)
@given(
    seed=st.integers(0, 10**6),
    states=st.lists(st.integers(1, 3), min_size=1, max_size=5),
    sharpness=st.sampled_from([0.1, 1.0, 5.0]),
    impossible=st.sampled_from([0.0, 0.5]),
    mass_left=st.sampled_from([0.0, 0.01, 0.3]),
    limit=st.sampled_from([1, 5, 1000]),
    some_known=st.booleans(),
)
def test_the_mass_certificate_holds(seed, states, sharpness, impossible, mass_left, limit, some_known):
    energy = random_sequential_energy(seed, states, sharpness=sharpness, impossible=impossible)
    known = random_known_values(seed, energy) if some_known else None
    found = most_probable.labellings(energy, known=known, mass_left=mass_left, max_labellings=limit)
    every, truth = agreeing([energy], known)
    possible = ~truth.isnan().any(0)
    torch.testing.assert_close(
        (found.probability.sum(1) + found.mass_left)[possible], torch.ones(3).double()[possible]
    )
    assert (found.probability.diff(dim=1) <= 0).all()
    assert limit < 1000 or (found.status.converged & (found.mass_left <= mass_left))[possible].all()
    assert not found.status.converged[~possible].any()
    marginals = most_probable.marginals(energy, known=known, mass_left=mass_left, max_labellings=limit)
    for row in possible.nonzero()[:, 0].tolist():
        real = found.probability[row] > 0
        numbers = [int((every == labels).all(1).nonzero()) for labels in found.labels[row, real]]
        assert len(set(numbers)) == len(numbers)
        own = truth[numbers, row]
        assert (own >= found.probability[row, real] - 1e-9).all()
        assert some_known or torch.allclose(own, found.probability[row, real])
        assert own.sum() >= 1 - found.mass_left[row] - 1e-9
        for value in range(max(states)):
            exact = (truth[:, row, None] * (every == value)).sum(0)
            away = (marginals.states[row, :, value] - exact).abs()
            assert (away <= found.mass_left[row] + 1e-9).all()


@pytest.mark.parametrize("is_network", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_all_labellings_above_a_threshold_are_found(seed, is_network):
    energy = random_directed_energy(seed, 6) if is_network else random_sequential_energy(seed, (2, 3, 2, 2))
    _, truth = agreeing([energy], None)
    # Between two labellings; the last threshold is above all.
    ranked = truth.log().sort(0, descending=True).values
    counts = torch.tensor([1, 7, 0])
    assert energy.batch_size == len(counts)
    rows = torch.arange(len(counts))
    least = torch.where(counts > 0, (ranked[counts - 1, rows] + ranked[counts, rows]) / 2, 0.0)
    found = most_probable.above(energy, least)
    assert found.status.converged.all()
    for row, count in enumerate(counts.tolist()):
        number = max(count, 1)
        assert (found.probability[row] > 0).sum() == number
        scores = mixture.log_prob([energy], found.labels[row, :number, None])[:, row]
        torch.testing.assert_close(found.probability[row, :number], scores.exp())
        if count:
            torch.testing.assert_close(scores, ranked[:count, row])
    torch.testing.assert_close(found.mass_left, 1 - found.probability.sum(1))
    cut = most_probable.above(energy, least, max_labellings=3)
    assert cut.status.converged.tolist()[1:] == [False, True]


def test_a_network_is_enumerated_like_any_other():
    energy = random_directed_energy(0, 6, num_cliques=3, per_example=True)
    found = most_probable.labellings(energy, mass_left=0.05)
    every, truth = agreeing([energy], None)
    best = truth.sort(0, descending=True).values
    count = found.probability.shape[1]
    for row in range(3):
        own = int((found.probability[row] > 0).sum())
        torch.testing.assert_close(found.probability[row, :own], best[:own, row])
    assert 1 < count < len(every)


def test_hopeless_examples_are_given_up_early():
    energy = random_sequential_energy(0, (2,) * 12, batch_size=1, sharpness=0.01)
    found = most_probable.labellings(energy, mass_left=0.01, max_labellings=1000)
    assert not found.status.converged.any()
    assert found.probability.shape[1] < 1000
    assert found.mass_left > 0.5


def gains(measure, truth, answers):
    """(truths, answers)."""
    one, two = truth[:, None].double(), answers[None].double()
    if measure == "hamming":
        return (one == two).double().mean(-1)
    both, sizes = (one * two).sum(-1), one.sum(-1) + two.sum(-1)
    below = sizes if measure == "f1" else sizes - both
    return torch.where(sizes == 0, 1.0, (1 + (measure == "f1")) * both / below.clamp(min=1))


@pytest.mark.parametrize("measure", MEASURES)
@settings(max_examples=20)
@given(
    seed=st.integers(0, 10**5),
    labels=st.integers(1, 6),
    members=st.integers(1, 2),
    sharpness=st.sampled_from([0.3, 1.0, 5.0]),
    impossible=st.sampled_from([0.0, 0.4]),
    tolerance=st.sampled_from([0.0, 0.01, 0.2]),
    limit=st.sampled_from([1, 4, 1000]),
    some_known=st.booleans(),
)
def test_no_answer_is_better_by_more_than_the_regret(
    measure, seed, labels, members, sharpness, impossible, tolerance, limit, some_known
):
    form = {"num_states": (2,) * labels, "sharpness": sharpness, "impossible": impossible}
    energies = random_chains(seed, members, **form)
    known = random_known_values(seed, energies[0]) if some_known else None
    every, truth = agreeing(energies, known)
    settings = {"known": known, "tolerance": tolerance, "max_labellings": limit, "num_samples": 20}
    found = bayes.decode(energies, measure, generator=torch.Generator().manual_seed(0), **settings)
    worth = truth.mT @ gains(measure, every, every)
    for row in (~truth.isnan().any(0)).nonzero()[:, 0].tolist():
        own = worth[row, int((every == found.labels[row]).all(1).nonzero())]
        assert worth[row].max() <= own + found.regret[row] + 1e-9
        assert worth[row].max() <= found.bound[row] + 1e-9
        sampled = known is None and found.mass_left[row] > bayes.MASS_LEFT
        if not sampled:
            assert found.objective[row] - 1e-9 <= own <= found.objective[row] + found.mass_left[row] + 1e-9
        if limit == 1000:
            assert found.status.converged[row]
            assert measure == "jaccard" or found.regret[row] <= tolerance + 1e-9


def test_networks_of_many_labels_are_certified():
    energy = random_directed_energy(3, 24, batch_size=4, coupling=0.5)
    sharp = type(energy)(6 * energy.unary, 6 * energy.parents, energy.ordering)
    found = bayes.decode([sharp], "f1", mass_left=0.01)
    assert found.status.converged.all()
    assert (found.regret <= bayes.TOLERANCE).all()
    generator = torch.Generator().manual_seed(0)
    draws = ancestral.sample(sharp, 20_000, generator=generator)
    both = 2 * (draws * found.labels).sum(-1).double()
    mean = (both / (draws.sum(-1) + found.labels.sum(-1))).mean(0)
    assert (mean >= found.objective - 0.02).all()
    assert (mean <= found.objective + found.mass_left + 0.02).all()


def test_labels_of_several_values_have_no_f1():
    energy = random_sequential_energy(0, (2, 3))
    with pytest.raises(ValueError, match=r"energies\[0\]: expected binary labels"):
        bayes.decode([energy], "f1")
    found = bayes.decode([energy], "hamming", mass_left=0.0)
    every, truth = agreeing([energy], None)
    mass = torch.stack([(truth[:, :, None] * (every == s)[:, None]).sum(0) for s in range(3)], -1)
    assert torch.equal(found.labels, mass.argmax(-1))
