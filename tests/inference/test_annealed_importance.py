"""Annealed importance sampling against exact log partitions, and its error estimate against its errors."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from strategies.bipartite import bipartite_energies, bipartite_with_known, random_bipartite_energy

from lmbm_torch.energies import BipartiteEnergy
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.inference.sampling import annealed_importance


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def z_scores(energy: BipartiteEnergy, **settings: object) -> torch.Tensor:
    """Errors in standard errors."""
    estimate = annealed_importance.estimate(energy, generator=seeded(0), **settings)
    error = estimate.value - exact.log_partition(energy, known=settings.get("known"))
    return error / estimate.standard_error


@pytest.mark.parametrize("coupling", [0.3, 1.0, 2.0])
def test_errors_are_what_the_standard_error_says(coupling):
    energy = random_bipartite_energy(0, 6, 5, 200, coupling=coupling)
    z = z_scores(energy, num_chains=200, num_temperatures=100)
    assert z.abs().max() < 5
    assert abs(z.mean()) < 0.3
    assert 0.8 < z.std() < 1.2


def test_known_units_are_conditioned_on():
    energy = random_bipartite_energy(1, 6, 5, 100)
    known = torch.full_like(energy.visible, torch.nan)
    known[:, 1], known[:50, 4] = 1, 0
    z = z_scores(energy, num_chains=200, num_temperatures=100, known=known)
    assert z.abs().max() < 5
    assert abs(z.mean()) < 0.4


def test_a_base_of_its_own_is_left_behind():
    energy = random_bipartite_energy(4, 6, 5, 200)
    known = torch.full_like(energy.visible, torch.nan)
    known[100:, 2] = 1
    base = torch.linspace(-2, 2, 6, dtype=energy.dtype)[None]
    z = z_scores(energy, num_chains=200, num_temperatures=100, known=known, base=base)
    assert z.abs().max() < 5
    assert abs(z.mean()) < 0.3
    assert 0.8 < z.std() < 1.2


def test_frequencies_find_the_states_that_biases_never_visit():
    # Two states: all visible units off, and all on, where the hidden unit outweighs what they cost.
    visible, coupling = torch.full((1, 40), -4.0), torch.full((40, 1), 8.0)
    energy = BipartiteEnergy(visible, torch.full((1, 1), -155.0), coupling)
    true = exact.log_partition(energy)
    plain, balanced = (
        annealed_importance.estimate(
            energy, num_chains=50, num_temperatures=200, generator=seeded(0), base=base
        )
        for base in (None, torch.zeros(1, 40))
    )
    assert plain.value < true - 1
    assert plain.standard_error < 0.1
    assert abs(balanced.value - true) < 4 * balanced.standard_error < 2


def test_one_temperature_is_importance_sampling_and_already_unbiased():
    energy = random_bipartite_energy(2, 4, 3, 5, coupling=0.5)
    assert z_scores(energy, num_chains=20_000, num_temperatures=1).abs().max() < 4


def test_more_temperatures_are_worth_their_time():
    energy = random_bipartite_energy(3, 8, 6, 20, coupling=2.0)
    few, many = (
        annealed_importance.estimate(energy, num_chains=100, num_temperatures=number, generator=seeded(0))
        for number in (5, 200)
    )
    assert (many.standard_error < few.standard_error).all()
    assert (many.effective_size > few.effective_size).all()


@given(bipartite_with_known(bipartite_energies(couplings=(0.0,))))
def test_nothing_is_left_to_chance_where_nothing_is_coupled(drawn):
    energy, known = drawn
    estimate = annealed_importance.estimate(energy, num_chains=3, num_temperatures=2, known=known)
    torch.testing.assert_close(estimate.value, exact.log_partition(energy, known=known))
    assert (estimate.standard_error == 0).all()
    torch.testing.assert_close(estimate.effective_size, torch.full_like(estimate.effective_size, 3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extremes_do_not_overflow(dtype):
    energy = BipartiteEnergy(
        torch.tensor([[1e4, -1e4]], dtype=dtype),
        torch.tensor([[1e4, -1e4]], dtype=dtype),
        torch.tensor([[200.0, -200.0], [200.0, 200.0]], dtype=dtype),
    )
    estimate = annealed_importance.estimate(energy, num_chains=5, generator=seeded(0))
    torch.testing.assert_close(estimate.value, exact.log_partition(energy))
    assert estimate.standard_error.isfinite().all()


@pytest.mark.usefixtures("no_shape_checks")
@pytest.mark.parametrize(
    "settings",
    [
        {"num_chains": 0},
        {"num_chains": 1},
        {"num_chains": 2.0},
        {"num_temperatures": 0},
        {"num_temperatures": 1.5},
        {"base": torch.zeros(1, 3, dtype=torch.float64)},
        {"base": torch.zeros(1, 4, dtype=torch.float16)},
        {"base": torch.full((1, 4), torch.inf, dtype=torch.float64)},
    ],
)
def test_refuses(settings):
    with pytest.raises(ValueError, match=rf"^{next(iter(settings))}: expected"):
        annealed_importance.estimate(random_bipartite_energy(0, 4, 3), **settings)
