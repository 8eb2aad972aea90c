"""Conditional modes: no step loses, where they end no further step gains, and no bound is crossed."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies.bipartite import (
    bipartite_energies,
    bipartite_with_known,
    random_bipartite_energy,
    random_known_visible,
    random_units,
)

from lmbm_torch.energies import BipartiteEnergy
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.inference.messages import conditional_modes

SEEDS = st.integers(0, 2**32 - 1)
# With a resolution every score is exact, ties are frequent and comparisons need no tolerance.
TIED = bipartite_with_known(bipartite_energies(resolution=0.5))


def agreeing_start(energy: BipartiteEnergy, known: torch.Tensor, seed: int) -> torch.Tensor:
    """Random {0, 1} visible units with the known ones among them."""
    return torch.where(known.isnan(), random_units(seed, energy)[0].double(), known.nan_to_num())


def best_hidden_score(energy: BipartiteEnergy, visible: torch.Tensor) -> torch.Tensor:
    """max_h score(v, h)."""
    return energy.score(visible, energy.hidden_fields(visible) > 0)


class TestDecode:
    @given(TIED, SEEDS)
    def test_the_score_never_falls_and_stays_below_its_bound(self, drawn, seed):
        energy, known = drawn
        init = agreeing_start(energy, known, seed)
        best = exact.decode(energy, known=known).objective
        before = best_hidden_score(energy, init)
        for num_iters in (1, 2, 100):
            result = conditional_modes.decode(energy, num_iters=num_iters, init=init, known=known)
            assert torch.equal(result.objective, energy.score(result.labels, result.hidden))
            assert (result.objective >= before).all()
            assert (result.objective <= best).all()
            assert (result.bound >= best).all()
            assert torch.equal(result.status.residual, result.bound - result.objective)
            assert torch.equal(result.status.exact, result.bound == result.objective)
            assert ((result.labels == known) | known.isnan()).all()
            before = result.objective
        assert result.status.converged.all()

    @given(TIED, SEEDS)
    def test_ends_where_each_side_is_best_given_the_other(self, drawn, seed):
        energy, known = drawn
        result = conditional_modes.decode(energy, init=agreeing_start(energy, known, seed), known=known)
        assert result.hidden is not None
        assert torch.equal(result.objective, best_hidden_score(energy, result.labels))
        fields = energy.visible_fields(result.hidden)
        best = torch.where(known.isnan(), (fields > 0).double(), known)
        assert torch.equal(result.objective, energy.score(best, result.hidden))

    def test_the_limit_is_kept_and_said(self):
        energy = random_bipartite_energy(1, 30, 30, 20, coupling=2.0)
        limited = conditional_modes.decode(energy, num_iters=1)
        assert limited.status.num_iters.tolist() == [1] * 20
        assert not limited.status.converged.all()
        free = conditional_modes.decode(energy)
        assert free.status.converged.all()
        assert (
            free.objective[~limited.status.converged] > limited.objective[~limited.status.converged]
        ).any()


class TestMarginalMap:
    @given(bipartite_with_known(bipartite_energies(max_visible=8, couplings=(0.5, 1.0, 3.0))), SEEDS)
    def test_a_sweep_decides_each_unit_given_those_before_it(self, drawn, seed):
        energy, known = drawn
        init = agreeing_start(energy, known, seed)
        result = conditional_modes.marginal_map(energy, num_iters=1, init=init, known=known)
        for example in range(energy.batch_size):
            alone, labels = energy.select(slice(example, example + 1)), init[example].clone()
            for unit in known[example].isnan().nonzero().flatten().tolist():
                flipped = labels.clone()
                flipped[unit] = 1 - flipped[unit]
                gain = alone.free_energy(labels[None]) - alone.free_energy(flipped[None])
                labels = flipped if gain.item() > 1e-12 else labels
            assert result.labels[example].tolist() == labels.tolist()

    @given(bipartite_with_known(), SEEDS)
    def test_the_objective_never_falls_and_stays_below_its_bound(self, drawn, seed):
        energy, known = drawn
        init = agreeing_start(energy, known, seed)
        best = exact.marginal_map(energy, known=known).objective
        slack = 1e-10 * (1 + best.abs())
        before = -energy.free_energy(init)
        for num_iters in (1, 2, 50):
            result = conditional_modes.marginal_map(energy, num_iters=num_iters, init=init, known=known)
            torch.testing.assert_close(result.objective, -energy.free_energy(result.labels))
            assert (result.objective >= before - slack).all()
            assert (result.objective <= best + slack).all()
            assert (result.bound >= best - slack).all()
            assert torch.equal(result.status.residual, result.bound - result.objective)
            assert ((result.labels == known) | known.isnan()).all()
            assert result.hidden is None
            before = result.objective
        assert result.status.converged.all()

    @given(bipartite_with_known(), SEEDS)
    def test_ends_where_no_single_flip_gains(self, drawn, seed):
        energy, known = drawn
        init = agreeing_start(energy, known, seed)
        result = conditional_modes.marginal_map(energy, init=init, known=known)
        for unit in range(energy.num_visible):
            flipped = result.labels.clone()
            flipped[:, unit] = 1 - flipped[:, unit]
            gain = -energy.free_energy(flipped) - result.objective
            assert (gain[known[:, unit].isnan()] <= 1e-9 * (1 + result.objective.abs().max())).all()

    @given(bipartite_with_known(bipartite_energies(couplings=(1.0, 3.0))))
    def test_polishes_joint_modes(self, drawn):
        energy, known = drawn
        joint = conditional_modes.decode(energy, known=known)
        polished = conditional_modes.marginal_map(energy, init=joint.labels, known=known)
        assert (polished.objective >= -energy.free_energy(joint.labels) - 1e-10).all()

    def test_leaves_an_optimum_alone(self):
        energy = random_bipartite_energy(0, 8, 6, 5, coupling=2.0)
        best = exact.marginal_map(energy)
        result = conditional_modes.marginal_map(energy, init=best.labels)
        assert torch.equal(result.labels, best.labels)
        assert result.status.num_iters.tolist() == [1] * 5

    def test_float32_ends_too(self):
        energy = random_bipartite_energy(0, 200, 100, 5, coupling=3.0, dtype=torch.float32)
        result = conditional_modes.marginal_map(energy)
        assert result.status.converged.all()
        start = (energy.visible > 0).float()
        assert (result.objective > -energy.free_energy(start)).all()

    def test_the_limit_is_kept_and_said(self):
        energy = random_bipartite_energy(1, 30, 30, 20, coupling=2.0)
        result = conditional_modes.marginal_map(energy, num_iters=1)
        assert result.status.num_iters.tolist() == [1] * 20
        assert not result.status.converged.any()


@pytest.mark.parametrize("routine", [conditional_modes.decode, conditional_modes.marginal_map])
class TestBoth:
    @given(drawn=bipartite_with_known(bipartite_energies(couplings=(0.0,))))
    def test_are_proven_where_nothing_is_coupled(self, routine, drawn):
        energy, known = drawn
        result = routine(energy, known=known)
        oracle = exact.decode if routine is conditional_modes.decode else exact.marginal_map
        torch.testing.assert_close(result.objective, oracle(energy, known=known).objective)
        torch.testing.assert_close(result.bound, result.objective)

    @given(energy=bipartite_energies())
    def test_are_proven_where_everything_is_known(self, routine, energy):
        known = random_units(0, energy)[0]
        result = routine(energy, known=known)
        torch.testing.assert_close(result.bound, result.objective)
        assert torch.equal(result.labels, known)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_extremes_find_the_best(self, routine, dtype):
        generator = torch.Generator().manual_seed(0)
        energy = BipartiteEnergy(
            1e4 * torch.randn(4, 6, generator=generator).to(dtype),
            1e4 * torch.randn(4, 5, generator=generator).to(dtype),
            200 * torch.randn(6, 5, generator=generator).to(dtype),
        )
        result = routine(energy)
        assert result.status.converged.all()
        torch.testing.assert_close(result.objective, exact.log_partition(energy))

    @pytest.mark.usefixtures("no_shape_checks")
    @pytest.mark.parametrize(
        "init",
        [
            torch.zeros(2, 4),
            torch.zeros(3, 3),
            torch.zeros(3, 4, device="meta"),
            torch.full((3, 4), 0.5),
            torch.full((3, 4), torch.nan),
        ],
    )
    def test_refuse_a_strange_init(self, routine, init):
        with pytest.raises(ValueError, match=r"^init: expected"):
            routine(random_bipartite_energy(0, 4, 3), init=init)

    def test_refuse_an_init_against_what_is_known(self, routine):
        energy = random_bipartite_energy(0, 4, 3)
        known = random_known_visible(0, energy)
        row, unit = (~known.isnan()).nonzero()[0].tolist()
        init = known.nan_to_num()
        init[row, unit] = 1 - init[row, unit]
        with pytest.raises(ValueError, match=r"^init: expected the known values .* got other values for 1 "):
            routine(energy, init=init, known=known)

    @pytest.mark.usefixtures("no_shape_checks")
    @pytest.mark.parametrize("num_iters", [0, -1, 2.0, True])
    def test_refuse_no_iterations(self, routine, num_iters):
        with pytest.raises(ValueError, match=r"^num_iters: expected"):
            routine(random_bipartite_energy(0, 4, 3), num_iters=num_iters)
