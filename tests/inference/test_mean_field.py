"""Mean field against a scalar loop, its bound against the exact log partition."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies.bipartite import (
    bipartite_energies,
    bipartite_with_known,
    random_bipartite_energy,
    random_known_visible,
)

from lmbm_torch.energies import BipartiteEnergy
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.inference.messages import mean_field

SEEDS = st.integers(0, 2**32 - 1)


def sigmoid(field: float) -> float:
    return 1 / (1 + math.exp(-field)) if field >= 0 else math.exp(field) / (1 + math.exp(field))


def scalar_mean_field(energy: BipartiteEnergy, example: int, num_iters: int) -> tuple[list, list]:
    """q and r of one example after so many iterations, unit by unit."""
    visible, hidden = energy.visible[example].tolist(), energy.hidden[example].tolist()
    weight = energy.coupling.tolist()

    def of_hidden(q: list[float]) -> list[float]:
        return [sigmoid(c + sum(q[i] * weight[i][j] for i in range(len(q)))) for j, c in enumerate(hidden)]

    q = [sigmoid(b) for b in visible]
    for _ in range(num_iters):
        r = of_hidden(q)
        q = [sigmoid(b + sum(r[j] * weight[i][j] for j in range(len(r)))) for i, b in enumerate(visible)]
    return q, of_hidden(q)


def entropy(probability: torch.Tensor) -> torch.Tensor:
    return torch.distributions.Bernoulli(probability).entropy().sum(-1)


@given(bipartite_energies(), st.integers(1, 6))
def test_equals_a_scalar_loop(energy, num_iters):
    result = mean_field.marginals(energy, num_iters=num_iters, tol=0.0)
    for example in range(energy.batch_size):
        q, r = scalar_mean_field(energy, example, num_iters)
        torch.testing.assert_close(result.visible[example], torch.tensor(q).double())
        torch.testing.assert_close(result.hidden[example], torch.tensor(r).double())


@given(bipartite_with_known(), SEEDS)
def test_bound_is_below_the_log_partition_and_never_falls(drawn, seed):
    energy, known = drawn
    generator = torch.Generator().manual_seed(seed)
    init = torch.rand(energy.visible.shape, generator=generator).double()
    init = torch.where(known.isnan(), init, known.nan_to_num())
    bounds = [
        mean_field.marginals(energy, num_iters=num_iters, init=init, known=known).log_partition
        for num_iters in (1, 2, 3, 5, 10, 50)
    ]
    for earlier, later in zip(bounds, [*bounds[1:], exact.log_partition(energy, known=known)], strict=True):
        assert (later - earlier >= -1e-9 * (1 + later.abs())).all()


@given(bipartite_with_known(bipartite_energies(couplings=(0.1, 1.0, 3.0))))
def test_bound_is_expected_score_plus_entropy(drawn):
    energy, known = drawn
    result = mean_field.marginals(energy, num_iters=3, known=known)
    expected = energy.score(result.visible, result.hidden) + entropy(result.visible) + entropy(result.hidden)
    torch.testing.assert_close(result.log_partition, expected)


@given(bipartite_with_known(bipartite_energies(couplings=(0.0,))))
def test_is_exact_where_nothing_is_coupled(drawn):
    energy, known = drawn
    result, expected = mean_field.marginals(energy, known=known), exact.marginals(energy, known=known)
    torch.testing.assert_close(result.visible, expected.visible)
    torch.testing.assert_close(result.hidden, expected.hidden)
    torch.testing.assert_close(result.log_partition, expected.log_partition)
    assert result.status.num_iters.tolist() == [1] * energy.batch_size
    assert result.status.converged.all()


@given(bipartite_with_known(bipartite_energies(couplings=(0.5, 3.0, 30.0))))
def test_what_has_converged_is_a_fixed_point(drawn):
    energy, known = drawn
    result = mean_field.marginals(energy, num_iters=2000, tol=1e-10, known=known)
    torch.testing.assert_close(result.hidden, energy.hidden_given_visible(result.visible))
    update = torch.where(known.isnan(), energy.visible_given_hidden(result.hidden), known.nan_to_num())
    moved = (update - result.visible).abs().amax(1)
    assert (moved[result.status.converged] <= 1e-9).all()
    assert torch.equal(result.status.converged, result.status.residual <= 1e-10)
    assert result.status.converged.float().mean() >= 0.5
    assert not result.status.exact.any()


def test_each_example_ends_by_itself():
    energy = random_bipartite_energy(0, 6, 5, 8, coupling=2.0)
    together = mean_field.marginals(energy, num_iters=200)
    assert len(set(together.status.num_iters.tolist())) > 2
    for example in range(8):
        alone = mean_field.marginals(energy.select(slice(example, example + 1)), num_iters=200)
        assert alone.status.num_iters.item() == together.status.num_iters[example].item()
        torch.testing.assert_close(alone.visible[0], together.visible[example])


def test_the_limit_is_kept_and_said():
    energy = random_bipartite_energy(0, 6, 5, 8, coupling=2.0)
    status = mean_field.marginals(energy, num_iters=2).status
    assert status.num_iters.tolist() == [2] * 8
    assert not status.converged.any()
    assert (status.residual > 1e-6).all()


def test_starts_where_it_is_told():
    # Two units that want to be equal: from either corner mean field stays there.
    energy = BipartiteEnergy(torch.full((1, 1), -5.0), torch.full((1, 1), -5.0), torch.full((1, 1), 10.0))
    for corner in (0.0, 1.0):
        result = mean_field.marginals(energy, init=torch.full((1, 1), corner))
        assert (result.visible - corner).abs().item() < 0.01
        assert (result.hidden - corner).abs().item() < 0.01


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extremes_neither_overflow_nor_lose_the_bound(dtype):
    generator = torch.Generator().manual_seed(0)
    energy = BipartiteEnergy(
        1e4 * torch.randn(4, 6, generator=generator).to(dtype),
        1e4 * torch.randn(4, 5, generator=generator).to(dtype),
        200 * torch.randn(6, 5, generator=generator).to(dtype),
    )
    result = mean_field.marginals(energy)
    assert result.status.converged.all()
    # Every unit saturates, so that the bound is the score of one state; here it is the best one.
    torch.testing.assert_close(result.log_partition, exact.log_partition(energy))


@pytest.mark.usefixtures("no_shape_checks")
class TestRefusals:
    ENERGY = random_bipartite_energy(0, 4, 3, dtype=torch.float32)

    @pytest.mark.parametrize(
        "init",
        [
            torch.zeros(2, 4),
            torch.zeros(3, 3),
            torch.zeros(3, 4).double(),
            torch.zeros(3, 4, device="meta"),
            torch.full((3, 4), 1.5),
            torch.full((3, 4), -0.1),
            torch.full((3, 4), torch.nan),
        ],
    )
    def test_init(self, init):
        with pytest.raises(ValueError, match=r"^init: expected"):
            mean_field.marginals(self.ENERGY, init=init)

    def test_init_against_known(self):
        known = random_known_visible(0, self.ENERGY)
        count = int((~known.isnan()).sum())
        with pytest.raises(
            ValueError, match=rf"^init: expected the known values .* got other values for {count} "
        ):
            mean_field.marginals(self.ENERGY, init=torch.full((3, 4), 0.5), known=known)

    @pytest.mark.parametrize("num_iters", [0, -1, 2.0, True])
    def test_num_iters(self, num_iters):
        with pytest.raises(ValueError, match=r"^num_iters: expected"):
            mean_field.marginals(self.ENERGY, num_iters=num_iters)

    @pytest.mark.parametrize("tol", [-1e-9, torch.nan, torch.inf])
    def test_tol(self, tol):
        with pytest.raises(ValueError, match=r"^tol: expected"):
            mean_field.marginals(self.ENERGY, tol=tol)
