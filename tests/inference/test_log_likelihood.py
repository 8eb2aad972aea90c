"""Mean log-likelihoods from both sides: exact where they can be, and never one without the other."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from strategies.bipartite import random_bipartite_energy

from lmbm_torch.energies import BipartiteEnergy
from lmbm_torch.inference.common.limits import LIMITS
from lmbm_torch.inference.common.results import Estimate, LogLikelihoodBounds
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.inference.sampling import gibbs, log_likelihood


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def samples(energy: BipartiteEnergy, count: int) -> torch.Tensor:
    start = torch.zeros(count, 1, energy.num_visible)
    return gibbs.sample(energy, 50, init=start, generator=seeded(0)).visible[:, 0]


def truth(energy: BipartiteEnergy, labels: torch.Tensor) -> float:
    return float((-energy.free_energy(labels) - exact.log_partition(energy)).mean())


@pytest.fixture
def many_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small machines are treated like large ones."""
    monkeypatch.setattr(log_likelihood, "LIMITS", replace(LIMITS, enumerable=0))


def test_one_small_side_is_exact():
    energy = random_bipartite_energy(0, 30, 5, 1)
    labels = samples(energy, 20)
    found = log_likelihood.bounds(energy, labels)
    assert found.exact
    assert found.upper == found.lower == Estimate(found.upper.value, 0.0, math.inf)
    assert found.upper.value == pytest.approx(truth(energy, labels))
    assert str(found) == f"{found.upper.value:.2f} nats, exactly"
    assert found.gap == 0


@pytest.mark.usefixtures("many_units")
@pytest.mark.parametrize("seed", range(4))
def test_the_truth_lies_between_the_two_as_their_errors_say(seed):
    energy = random_bipartite_energy(seed, 12, 6, 1, coupling=1.5)
    labels = samples(energy, 400)
    true = truth(energy, labels)
    few = log_likelihood.bounds(
        energy, labels, num_chains=20, num_temperatures=4, chains_per_example=2, generator=seeded(1)
    )
    assert not few.exact
    assert few.lower.value < true < few.upper.value + 3 * few.upper.standard_error
    many = log_likelihood.bounds(
        energy, labels, num_chains=200, num_temperatures=150, num_examples=50, generator=seeded(1)
    )
    assert abs(many.upper.value - true) < 5 * many.upper.standard_error < 0.3
    # The mean over examples of log means of ten chains is low by less than half their variance.
    assert -0.2 < many.lower.value - true < 5 * many.lower.standard_error < 0.5
    assert many.gap < few.gap
    assert 1 < few.lower.effective_size < 2 < 8 < many.lower.effective_size < 10
    assert 150 < many.upper.effective_size < 200


@pytest.mark.usefixtures("many_units")
def test_settings_reach_both_estimates():
    energy = random_bipartite_energy(0, 12, 6, 1)
    labels = samples(energy, 10)
    settings = {"num_chains": 5, "num_temperatures": 10, "num_examples": 4}
    plain = log_likelihood.bounds(energy, labels, generator=seeded(0), **settings)
    assert plain == log_likelihood.bounds(energy, labels, generator=seeded(0), **settings)
    for more in (
        {"base": torch.ones(1, 12, dtype=torch.float64)},
        {"path": [random_bipartite_energy(1, 12, 6, 1)]},
        {"num_temperatures": 11},
    ):
        other = log_likelihood.bounds(energy, labels, generator=seeded(0), **{**settings, **more})
        assert other.upper.value != plain.upper.value
        assert other.lower.value != plain.lower.value
    fewer = log_likelihood.bounds(energy, labels, generator=seeded(0), **{**settings, "num_examples": 3})
    assert fewer.upper == plain.upper
    assert fewer.lower.value != plain.lower.value


def test_a_report_has_both_sides_or_none():
    upper, lower = Estimate(-84.9, 0.1, 90.0), Estimate(-85.8, 0.2, 7.5)
    both = LogLikelihoodBounds(upper, lower, exact=False)
    assert str(both) == (
        "from -85.80 ± 0.20 (7.5 samples effectively) to -84.90 ± 0.10 (90.0 samples effectively) nats"
    )
    assert both.gap == pytest.approx(0.9)
    crossed = str(LogLikelihoodBounds(lower, upper, exact=False))
    assert crossed.startswith("-85.80 ± 0.20 (7.5 samples effectively) by forward and -84.90")
    assert crossed.endswith("which bound nothing")


@pytest.mark.usefixtures("no_shape_checks")
@pytest.mark.parametrize("sides", [(Estimate(-1.0, 0.0, 1.0), None), (None, Estimate(-1.0, 0.0, 1.0))])
def test_one_side_alone_is_refused(sides):
    with pytest.raises(TypeError, match="expected an Estimate, got None"):
        LogLikelihoodBounds(*sides, exact=False)


@pytest.mark.usefixtures("no_shape_checks", "many_units")
@pytest.mark.parametrize(
    ("name", "batch_size", "settings"),
    [
        ("energy", 2, {}),
        ("labels", 1, {"labels": torch.zeros(3, 5)}),
        ("labels", 1, {"labels": torch.full((3, 4), 0.5)}),
        ("num_examples", 1, {"num_examples": 1}),
        ("num_examples", 1, {"labels": torch.zeros(1, 4)}),
        ("num_chains", 1, {"num_chains": 1}),
        ("num_chains", 1, {"chains_per_example": 1}),
    ],
)
def test_refuses(name, batch_size, settings):
    energy = random_bipartite_energy(0, 4, 3, batch_size)
    with pytest.raises(ValueError, match=rf"^{name}: expected"):
        log_likelihood.bounds(energy, **{"labels": torch.zeros(3, 4), **settings})
