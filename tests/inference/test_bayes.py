"""Bayes-optimal labellings against the best of all labellings, each worth what its sets of labels say."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies.directed import directed_energies
from strategies.sequential import random_chains, random_known_values

from lmbm_torch.energies import DirectedEnergy
from lmbm_torch.inference import decode_expected
from lmbm_torch.inference.common.limits import LIMITS
from lmbm_torch.inference.common.results import Decoding
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.inference.expected import bayes
from lmbm_torch.inference.expected.measures import F1
from lmbm_torch.inference.routes import table
from lmbm_torch.inference.search import mixture
from lmbm_torch.inference.search.most_probable import affordable_labellings


def networks(seed: int, count: int, batch: int, labels: int, scale: float = 1.0) -> list[DirectedEnergy]:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return scale * torch.randn(*shape, dtype=torch.float64, generator=generator)

    return [
        DirectedEnergy(normal(batch, labels), normal(labels, labels).tril(-1), torch.arange(labels))
        for _ in range(count)
    ]


def worth(measure: str, truth: tuple[int, ...], found: tuple[int, ...]) -> float:
    if measure == "hamming":
        return sum(one == two for one, two in zip(truth, found, strict=True)) / len(truth)
    both, either = (sum(map(of, truth, found)) for of in (min, max))
    if either == 0:
        return 1.0
    return 2 * both / (both + either) if measure == "f1" else both / either


def best_worth(measure: str, energies: list[DirectedEnergy]) -> tuple[np.ndarray, np.ndarray]:
    """The largest expected worth of each instance, and the table of all, (instances, labellings)."""
    every = list(itertools.product([0, 1], repeat=energies[0].num_labels))
    probability = mixture.log_prob(energies, torch.tensor(every)[:, None]).exp().numpy().T
    table = np.array([[worth(measure, truth, found) for found in every] for truth in every])
    expected = probability @ table
    return expected.max(1), expected


DECODERS = {measure: partial(decode_expected, measure=measure) for measure in ("hamming", "f1", "jaccard")}


def index_of(found: Decoding) -> np.ndarray:
    powers = 2 ** torch.arange(found.labels.shape[1] - 1, -1, -1)
    return (found.labels * powers).sum(-1).numpy()


@pytest.mark.parametrize("measure", DECODERS)
@settings(max_examples=8)
@given(
    seed=st.integers(0, 2**31),
    count=st.integers(1, 3),
    labels=st.integers(1, 4),
    scale=st.sampled_from([0.1, 1.0, 5.0]),
)
def test_no_labelling_is_worth_more(measure, seed, count, labels, scale):
    energies = networks(seed, count, 3, labels, scale)
    found = DECODERS[measure](energies)
    best, expected = best_worth(measure, energies)
    np.testing.assert_allclose(found.objective, best)
    np.testing.assert_allclose(expected[np.arange(3), index_of(found)], best)
    assert found.status.exact.all()
    torch.testing.assert_close(found.bound, found.objective)


@pytest.mark.parametrize("measure", DECODERS)
@pytest.mark.parametrize("members", [1, 2])
def test_what_is_known_is_answered_though_it_be_impossible(members, measure):
    was_impossible = 0
    for seed in range(8):
        chains = random_chains(seed, members, num_states=(2,) * 5, impossible=0.6)
        known = random_known_values(seed, chains[0])
        found = DECODERS[measure](chains, known=known)
        assert (known.isnan() | (found.labels == known)).all()
        assert found.status.converged.all()
        rows = found.mass_left == 1
        was_impossible += int(rows.sum())
        assert not found.status.exact[rows].any()
        states = mixture.marginals(chains, known=known).states
        held = known.isnan()[..., None] | (states == torch.stack([known == 0, known == 1], -1))
        assert held.all()
    assert 0 < was_impossible < 24


@pytest.mark.parametrize("measure", DECODERS)
def test_known_labels_condition_the_distribution(measure):
    energies = networks(1, 2, 4, 4)
    known = torch.tensor([[1.0, torch.nan, torch.nan, 0.0]]).repeat(4, 1)
    found = DECODERS[measure](energies, known=known)
    assert (found.labels[:, 0] == 1).all()
    assert (found.labels[:, 3] == 0).all()
    every = np.array(list(itertools.product([0, 1], repeat=4)))
    agrees = (every[:, 0] == 1) & (every[:, 3] == 0)
    probability = mixture.log_prob(energies, torch.from_numpy(every)[:, None]).exp().numpy().T * agrees
    probability /= probability.sum(1, keepdims=True)
    table = np.array([[worth(measure, tuple(y), tuple(z)) for z in every] for y in every])
    np.testing.assert_allclose(found.objective, (probability @ table).max(1))


@pytest.mark.parametrize("measure", DECODERS)
def test_samples_come_close_and_say_how_close(measure, monkeypatch):
    energies = networks(2, 2, 5, 6)
    expected = DECODERS[measure](energies).objective
    monkeypatch.setattr(table, "LIMITS", replace(LIMITS, expected=3))
    generator = torch.Generator().manual_seed(0)
    settings = {"num_samples": 4000, "max_labellings": 2}
    found = DECODERS[measure](energies, **settings, generator=generator)
    assert not found.status.exact.any()
    assert (found.status.residual > 0).all()
    assert ((found.objective - expected).abs() <= 5 * found.status.residual).all()
    again = DECODERS[measure](energies, **settings, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(again.objective, found.objective)


def test_where_no_labelling_is_likely_none_are_looked_for(monkeypatch):
    energies = networks(3, 2, 4, 40, scale=0.05)
    energies = [replace(each, unary=each.unary + torch.tensor([0.0, 0, 0, 9])[:, None]) for each in energies]
    looked_for, search = [], mixture.labellings

    def labellings(members, **settings):
        looked_for.append(members[0].unary[:, 0])
        return search(members, **settings)

    monkeypatch.setattr(bayes.mixture, "labellings", labellings)
    found = decode_expected(energies, "f1", generator=torch.Generator().manual_seed(0))
    # Of the last instance alone one labelling has nearly all of the probability.
    assert all(torch.equal(rows, energies[0].unary[3:, 0]) for rows in looked_for)
    assert found.mass_left is not None
    assert found.mass_left.tolist()[:3] == [1, 1, 1]
    assert found.status.residual[3] <= 0.01
    assert not found.status.exact[:3].any()
    assert found.labels[3].all()
    # Half of the labels are on: to say that all are is worth two thirds, and no sample's answer is worse.
    assert (found.objective[:3] > 0.6).all()


@pytest.mark.parametrize("measure", DECODERS)
def test_labels_that_are_never_drawn_change_nothing(measure, monkeypatch):
    energies = networks(5, 1, 3, 20)
    energies[0].unary[:, 15:] = -40
    settings = {"num_samples": 200, "max_labellings": 1}
    found = []
    for most in (64, 0):
        monkeypatch.setattr(bayes, "_MANY_LABELS", most)
        found.append(DECODERS[measure](energies, **settings, generator=torch.Generator().manual_seed(0)))
    assert torch.equal(found[0].labels, found[1].labels)
    assert torch.equal(found[0].objective, found[1].objective)


def test_more_labels_are_enumerated_less():
    assert [affordable_labellings(labels) for labels in (20, 100, 200, 1000)] == [
        10_000,
        10_000,
        1250,
        11,
    ]


def test_jaccard_of_candidates_is_hardly_worse_than_of_all(monkeypatch):
    energies = networks(3, 1, 20, 7)
    best = decode_expected(energies, "jaccard")
    monkeypatch.setattr(bayes, "LIMITS", replace(LIMITS, compared=3))
    found = decode_expected(energies, "jaccard")
    assert not found.status.exact.any()
    assert (found.bound >= best.objective - 1e-12).all()
    assert (found.objective <= best.objective + 1e-12).all()
    assert (found.objective >= best.objective - found.regret - 1e-12).all()
    assert (found.objective >= best.objective - 0.02).all()


@pytest.mark.parametrize("measure", DECODERS)
def test_instances_in_chunks_are_as_together(measure, monkeypatch):
    energies = networks(4, 2, 7, 5)
    expected = DECODERS[measure](energies)
    monkeypatch.setattr(bayes, "_CHUNK_BYTES", 8 * 2**5 * 5 * 2)
    found = DECODERS[measure](energies)
    np.testing.assert_array_equal(found.labels, expected.labels)


def test_samples_are_drawn_for_as_many_instances_as_memory_has_room_for(monkeypatch):
    energies, batches = networks(5, 1, 8, 20, scale=0.1), []
    sample = bayes.ancestral.sample

    def noted(energy, count, **settings):
        batches.append(energy.batch_size)
        return sample(energy, count, **settings)

    monkeypatch.setattr(bayes.ancestral, "sample", noted)
    monkeypatch.setattr(bayes, "_CHUNK_BYTES", 8 * 3 * 50 * 20)
    decode_expected(energies, "jaccard", num_samples=50, max_labellings=2)
    assert batches == [3, 3, 2]


def test_f1_by_samples_of_one_network_is_nearly_the_best_and_says_how_near():
    energies = networks(6, 1, 12, 15, scale=0.4)
    energies[0].unary.sub_(0.8)
    best = bayes.decode(energies, "f1", mass_left=0, max_labellings=2**15)
    found = decode_expected(
        energies, "f1", num_samples=4000, max_labellings=1, generator=torch.Generator().manual_seed(0)
    )
    labels, probability = bayes._enumerated(energies, None)
    worth = F1.worth(labels, probability, found.labels)
    assert (best.objective - 0.01 <= worth).all()
    assert (worth <= best.objective + 1e-9).all()
    assert (found.labels != best.labels).any(1).sum() < 6
    # What is best for a sample is worth a little more there.
    assert ((found.objective - worth).abs() < 4 * found.status.residual).all()
    assert not found.status.exact.any()
    alone = decode_expected(
        [energies[0].select(slice(7, 8))],
        "f1",
        num_samples=4000,
        max_labellings=1,
        generator=torch.Generator().manual_seed(0),
    )
    assert torch.equal(alone.labels[0], found.labels[7])


@given(directed_energies(max_labels=7, max_batch=3, dtypes=(torch.float64,)))
def test_no_labelling_is_more_probable_than_with_the_surest_parents(energy):
    most = exact.decode(energy).objective
    assert (bayes._log_prob_of_surest_parents(energy) >= most - 1e-12).all()


def test_bad_inputs_are_refused_by_name():
    energies = networks(0, 1, 2, 3)
    refusals = {
        "energies: expected at least one": lambda: decode_expected([], "f1"),
        r"energies\[1\].unary: expected shape": lambda: decode_expected(
            [*energies, *networks(0, 1, 2, 4)], "f1"
        ),
        "num_samples: expected": lambda: decode_expected(energies, "f1", num_samples=0),
        "tolerance: expected": lambda: decode_expected(energies, "f1", tolerance=-1.0),
        "max_labellings: expected": lambda: decode_expected(energies, "f1", max_labellings=0),
        "known: expected": lambda: decode_expected(energies, "f1", known=torch.full((2, 3), 2.0)),
    }
    for message, call in refusals.items():
        with pytest.raises(ValueError, match=message):
            call()
