"""Estimates along paths, forward and reverse, against enumeration of all that a chain may do."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from strategies.bipartite import all_states, random_bipartite_energy, score_table

from lmbm_torch.energies import BipartiteEnergy
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.inference.sampling import annealed_importance

REPEATS = 4000
BASE = torch.tensor([[0.5, -1.0, 1.5]], dtype=torch.float64)
STATES = all_states(3)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def machine(seed: int, coupling: float = 1.5) -> BipartiteEnergy:
    return random_bipartite_energy(seed, 3, 2, 1, coupling=coupling)


def repeated(energy: BipartiteEnergy, count: int) -> BipartiteEnergy:
    return energy.select(torch.zeros(count, dtype=torch.int64))


def blend(first: BipartiteEnergy, last: BipartiteEnergy, share: float) -> BipartiteEnergy:
    names = ("visible", "hidden", "coupling")
    return BipartiteEnergy(*((1 - share) * getattr(first, n) + share * getattr(last, n) for n in names))


def annealed(energy: BipartiteEnergy, path: list[BipartiteEnergy], steps: list[int]) -> torch.Tensor:
    """The distribution of a chain's last state, as a product of transition matrices between all states."""
    start = replace(energy, visible=BASE, hidden=0 * energy.hidden, coupling=0 * energy.coupling)
    reached = score_table(start)[0].logsumexp(1).softmax(0)
    for (first, last), count in zip(pairwise([start, *path, energy]), steps, strict=True):
        for step in range(count):
            scores = score_table(blend(first, last, (step + 1) / count))[0]
            reached = reached @ (scores.softmax(1) @ scores.T.softmax(1))
    return reached


@pytest.mark.parametrize("seed", range(4))
def test_reverse_chains_estimate_where_forward_ones_end(seed):
    energy, path = machine(seed, 3.0), [machine(seed + 100)] if seed % 2 else []
    ends = annealed(energy, path, [2, 2] if path else [3])
    estimate = annealed_importance.reverse(
        repeated(energy, 8),
        STATES,
        num_chains=REPEATS,
        num_temperatures=4 if path else 3,
        generator=seeded(seed),
        base=BASE,
        path=[repeated(each, 8) for each in path],
    )
    error = (estimate.value.exp() - ends).abs() / (estimate.standard_error * ends)
    assert error.max() < 5
    # Which is not the distribution at the end of the path: the test can tell.
    true = score_table(energy)[0].logsumexp(1).softmax(0)
    assert ((estimate.value.exp() - true).abs() / (estimate.standard_error * ends)).max() > 8


@pytest.mark.parametrize("seed", range(4))
def test_log_likelihoods_are_between_reverse_and_forward_ones(seed):
    """On average over the machine's samples and over runs, each side by far more than its standard error."""
    energy = machine(seed, 2.0)
    true = score_table(energy)[0].logsumexp(1).softmax(0)
    samples = STATES[torch.multinomial(true, REPEATS, replacement=True, generator=seeded(seed))]
    many = repeated(energy, REPEATS)
    settings = {"num_chains": 2, "num_temperatures": 2, "base": BASE, "generator": seeded(seed)}
    score = -many.free_energy(samples)
    exactly = score - exact.log_partition(energy)
    lower = annealed_importance.reverse(many, samples, **settings).value
    upper = score - annealed_importance.estimate(many, **settings).value
    for below, above in ((lower, exactly), (exactly, upper)):
        gap = above - below
        assert gap.mean() > 5 * gap.std() / REPEATS**0.5


@pytest.mark.parametrize("seed", range(4))
def test_forward_weights_are_unbiased_along_any_path(seed):
    energy, path = machine(seed), [machine(seed + 100), machine(seed + 200, 0.5)]
    for along in ([], path[:1], path):
        estimate = annealed_importance.estimate(
            energy, num_chains=REPEATS, num_temperatures=5, base=BASE, path=along, generator=seeded(seed)
        )
        ratio = (estimate.value - exact.log_partition(energy)).exp()
        assert (ratio - 1).abs() <= 5 * estimate.standard_error
        assert estimate.standard_error < 0.1


def test_more_temperatures_bring_the_reverse_estimate_to_the_truth():
    energy = machine(0, 2.0)
    true = score_table(energy)[0].logsumexp(1).log_softmax(0)
    few, many = (
        annealed_importance.reverse(
            repeated(energy, 8), STATES, num_chains=200, num_temperatures=count, generator=seeded(0)
        )
        for count in (1, 300)
    )
    assert (many.value - true).abs().max() < 0.05 < (few.value - true).abs().max()
    assert (many.effective_size > few.effective_size).all()


def test_nothing_is_left_to_chance_where_nothing_is_coupled():
    energy = machine(0, 0.0)
    estimate = annealed_importance.reverse(repeated(energy, 8), STATES, num_chains=3, num_temperatures=2)
    true = score_table(energy)[0].logsumexp(1).log_softmax(0)
    torch.testing.assert_close(estimate.value, true)
    assert estimate.standard_error.abs().max() < 1e-12
    torch.testing.assert_close(estimate.effective_size, torch.full((8,), 3.0, dtype=torch.float64))


@pytest.mark.usefixtures("no_shape_checks")
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("labels", {"labels": STATES[:7]}),
        ("labels", {"labels": STATES + 1}),
        ("num_chains", {"num_chains": 1}),
        ("num_temperatures", {"num_temperatures": 0}),
        ("num_temperatures", {"num_temperatures": 1, "path": [repeated(machine(1), 8)]}),
        (r"path\[0\].visible", {"path": [machine(1)]}),
        (r"path\[0\].visible", {"path": [repeated(machine(1).to(torch.float32), 8)]}),
        (
            "visible",
            {"path": [replace(repeated(machine(1), 8), visible=torch.full((8, 3), torch.nan).double())]},
        ),
    ],
)
def test_refuses(name, settings):
    given = {"labels": STATES, **settings}
    with pytest.raises(ValueError, match=rf"^{name}: expected"):
        annealed_importance.reverse(repeated(machine(0), 8), **given)
