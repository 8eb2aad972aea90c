"""Best-first and depth-first search against enumeration, with impossible values, limits and tolerances."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies.sequential import random_known_values, random_sequential_energy

from lmbm_torch.energies import SequentialEnergy
from lmbm_torch.inference.search import beam_search, best_first

SEARCHES = {"best first": best_first.decode, "depth first": best_first.decode_depth_first}
searches = pytest.mark.parametrize("decode", SEARCHES.values(), ids=SEARCHES.keys())
MIXED = (2, 3, 1, 2, 4)


def ranked(energy: SequentialEnergy, known: torch.Tensor | None = None) -> torch.Tensor:
    """The log-probabilities of all labellings that agree, (labellings, batch), largest first."""
    every = torch.tensor(list(itertools.product(*map(range, energy.num_states))))[:, None]
    scores = energy.log_prob(every)
    if known is not None:
        scores = scores.masked_fill(((every != known) & ~known.isnan()).any(-1), -torch.inf)
    return scores.sort(0, descending=True).values


@searches
@settings(max_examples=25)
@given(
    seed=st.integers(0, 10**6),
    states=st.lists(st.integers(1, 4), min_size=1, max_size=5),
    sharpness=st.sampled_from([0.0, 0.1, 1.0, 30.0]),
    impossible=st.sampled_from([0.0, 0.5, 1.0]),
    some_known=st.booleans(),
)
def test_the_best_labellings_are_found(decode, seed, states, sharpness, impossible, some_known):
    energy = random_sequential_energy(seed, states, sharpness=sharpness, impossible=impossible)
    known = random_known_values(seed, energy) if some_known else None
    expected = ranked(energy, known)
    found = decode(energy, known=known)
    torch.testing.assert_close(found.objective, expected[0])
    torch.testing.assert_close(energy.log_prob(found.labels), expected[0])
    assert found.status.exact.all()
    assert (found.status.residual == 0).all()
    assert known is None or ((found.labels == known) | known.isnan()).all()
    few = min(3, len(expected))
    several = decode(energy, top_k=few)
    torch.testing.assert_close(several.objective.reshape(3, few), ranked(energy)[:few].mT)


@searches
@pytest.mark.parametrize("limit", [1, 4, 8])
def test_bounds_hold_when_the_limit_strikes(decode, limit):
    struck = 0
    for seed in range(10):
        energy = random_sequential_energy(seed, MIXED, sharpness=0.5, impossible=0.2)
        expected = ranked(energy)
        found = decode(energy, node_limit=limit)
        torch.testing.assert_close(energy.log_prob(found.labels), found.objective)
        assert (found.bound >= expected[0] - 1e-12).all()
        torch.testing.assert_close(found.objective[found.status.exact], expected[0][found.status.exact])
        torch.testing.assert_close(found.status.residual, found.bound - found.objective)
        # A first labelling takes as many as there are labels.
        assert (found.nodes <= max(limit, len(MIXED))).all()
        assert (found.status.converged | (found.nodes >= limit)).all()
        struck += int((~found.status.converged).sum())
    assert struck > 0


@searches
def test_a_tolerance_saves_nodes_and_is_kept(decode):
    energy = random_sequential_energy(5, (2,) * 9, batch_size=8, sharpness=0.3)
    exact, rough = decode(energy), decode(energy, tolerance=1.0)
    assert (rough.objective >= exact.objective - 1).all()
    assert rough.status.converged.all()
    assert (rough.status.residual <= 1).all()
    assert rough.nodes.sum() < exact.nodes.sum()


def test_best_first_expands_no_more_than_twice_as_improbable_prefixes():
    energy = random_sequential_energy(6, (2,) * 10, batch_size=20, sharpness=1.5)
    found = best_first.decode(energy)
    prefixes = torch.zeros(20)
    for length in range(10):
        shorter = list(energy.ordering[:length])
        every = torch.tensor(list(itertools.product([0, 1], repeat=10)))[:, None]
        joint = energy.log_prob(every).exp()
        for values in itertools.product([0, 1], repeat=length):
            agrees = (every[:, 0, shorter] == torch.tensor(values)).all(-1)
            prefixes += joint[agrees].sum(0) >= found.objective.exp() / 2 - 1e-12
    # And those of the first, greedy, labelling.
    assert (found.nodes <= prefixes + 10).all()


@searches
def test_a_label_is_asked_for_once_a_round_for_all_instances(decode):
    calls: Counter[int] = Counter()
    energy = random_sequential_energy(7, (2,) * 6, batch_size=50, sharpness=0.7)

    def counted(position, rows, earlier):
        calls[position] += 1
        return energy.conditional(position, rows, earlier)

    found = decode(replace(energy, conditional=counted))
    assert max(calls.values()) <= (8 if decode is best_first.decode else int(found.nodes.max()))
    assert sum(calls.values()) < found.nodes.sum() / 5


@searches
def test_rows_are_searched_alone_as_together_and_in_parts(decode, monkeypatch):
    energy = random_sequential_energy(8, (2, 3, 2, 2, 3), batch_size=7, sharpness=0.5)
    together = decode(energy, top_k=2)
    for row in range(7):
        alone = decode(energy.select(slice(row, row + 1)), top_k=2)
        assert torch.equal(alone.labels[0], together.labels[row])
        assert torch.equal(alone.nodes[0], together.nodes[row])
    for size, fits in ((2000, True), (100, False)):
        monkeypatch.setattr(best_first, "OPEN_BYTES", size)
        in_parts = decode(energy, top_k=2)
        done = in_parts.status.converged
        assert bool(done.all()) == fits
        torch.testing.assert_close(in_parts.objective[done], together.objective[done])
        assert (in_parts.bound >= together.bound - 1e-12).all()


def test_a_beam_of_one_is_greedy_and_a_wide_one_exact():
    energy = random_sequential_energy(9, MIXED, batch_size=5)
    greedy = torch.zeros(5, len(MIXED), dtype=torch.int64)
    rows = torch.arange(5)
    for position, label in enumerate(energy.ordering):
        earlier = greedy[:, list(energy.ordering[:position])]
        greedy[:, label] = energy.conditional(position, rows, earlier).argmax(1)
    assert torch.equal(beam_search.decode(energy).labels, greedy)
    torch.testing.assert_close(beam_search.decode(energy, 48).objective, ranked(energy)[0])
    for width in (1, 2, 5):
        found = beam_search.decode(energy, width)
        assert (found.bound >= ranked(energy)[0] - 1e-12).all()


@searches
def test_bad_input_is_refused_by_name(decode):
    energy = random_sequential_energy(0, (2, 3))
    refusals = {
        "node_limit: expected": {"node_limit": 0},
        "tolerance: expected": {"tolerance": -1.0},
        "top_k: expected an integer": {"top_k": 0},
        "top_k: expected at most 6": {"top_k": 7},
        "known: expected NaN": {"known": torch.full((3, 2), 2.0)},
        "known: expected shape": {"known": torch.zeros(2, 2)},
    }
    for message, arguments in refusals.items():
        with pytest.raises(ValueError, match=message):
            decode(energy, **arguments)
