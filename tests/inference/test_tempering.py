"""Chains that exchange their states: what they leave as it is, and what they reach that others do not."""

from __future__ import annotations

import pytest
import torch
from strategies.bipartite import all_states, random_bipartite_energy, score_table
from sweeps import slow

from lmbm_torch.energies import BipartiteEnergy
from lmbm_torch.inference.sampling import gibbs, tempering
from lmbm_torch.inference.sampling.tempering import Ladder

CHAINS = 10_000
STATES = all_states(3)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def distribution(energy: BipartiteEnergy) -> torch.Tensor:
    """p(v) of each example, (batch, states)."""
    return score_table(energy).logsumexp(2).softmax(1)


def number(units: torch.Tensor) -> torch.Tensor:
    return (units * 2 ** torch.arange(units.shape[-1]).flip(0)).sum(-1)


def machines(seed: int, batch_size: int = 2) -> list[BipartiteEnergy]:
    """Three that share nothing but their sizes: neighbours on a path as far from each other as can be."""
    return [random_bipartite_energy(seed + k, 3, 2, batch_size, coupling=1.0 + k) for k in range(3)]


@pytest.mark.parametrize("num_steps", [1, 2, 3])
def test_the_joint_distribution_of_all_replicas_is_left_as_it_is(num_steps):
    *path, energy = machines(3 * num_steps)
    marginals = torch.stack([distribution(each) for each in (*path, energy)])
    drawn = torch.stack(
        [torch.multinomial(each, CHAINS, replacement=True, generator=seeded(0)).T for each in marginals]
    )
    found = tempering.sample(energy, num_steps, path=path, init=STATES[drawn], generator=seeded(1))
    assert ((found.swap_rate > 0.005) | found.swap_rate.isnan()).all()
    assert found.swap_rate.isnan().tolist() == [False, num_steps == 1]
    reached = number(found.visible)
    for first, second in ((0, 1), (1, 2), (0, 2)):
        for example in range(2):
            pairs = 8 * reached[first, :, example] + reached[second, :, example]
            frequency = torch.bincount(pairs, minlength=64).double() / CHAINS
            expected = torch.outer(marginals[first, example], marginals[second, example]).flatten()
            error = (expected * (1 - expected) / CHAINS).sqrt()
            assert ((frequency - expected).abs() <= 5 * error + 1 / CHAINS).all()


def test_replicas_start_as_if_nothing_were_coupled_and_find_their_distributions():
    *path, energy = machines(0)
    found = tempering.sample(energy, 30, path=path, num_chains=CHAINS, generator=seeded(0))
    for replica, each in zip(found.visible, (*path, energy), strict=True):
        for states, expected in zip(number(replica).T, distribution(each), strict=True):
            frequency = torch.bincount(states, minlength=8).double() / CHAINS
            assert ((frequency - expected).abs() <= 5 * (expected * (1 - expected) / CHAINS).sqrt()).all()


def test_exchanges_carry_chains_across_what_they_cannot_cross_alone():
    # All visible units on or all off, equally likely, and a Gibbs step never goes from one to the other.
    energy = BipartiteEnergy(torch.full((1, 10), -6.0), torch.full((1, 1), -60.0), torch.full((10, 1), 12.0))
    path = tempering.path_from_base(energy, 9, base=torch.zeros(1, 10))
    start = torch.ones(10, 400, 1, 10)
    alone = gibbs.sample(energy, 100, init=start[-1], generator=seeded(0)).visible
    found = tempering.sample(energy, 100, path=path, init=start, generator=seeded(0))
    assert alone.double().mean() > 0.99
    assert abs(found.visible[-1].double().mean() - 0.5) < 0.1


@pytest.mark.parametrize(
    ("scale", "steps", "is_hard"),
    [(0.0, 1, False), (1e-3, 10, False), (10.0, 150, True), slow(40.0, 3000, True)],
)
def test_it_finds_the_distribution_at_both_ends_of_coupling(scale, steps, is_hard):
    weak = random_bipartite_energy(0, 4, 3, 1, bias=0.3)
    coupling = weak.coupling * (scale / weak.coupling.abs().max())
    # Biases cancel the couplings' mean, so that there are several peaks.
    visible, hidden = weak.visible - coupling.sum(1) / 2, weak.hidden - coupling.sum(0) / 2
    energy = BipartiteEnergy(visible, hidden, coupling)
    expected = distribution(energy)[0]
    start = torch.ones(21, 2000, 1, 4)
    path = tempering.path_from_base(energy, 20, base=torch.zeros(1, 4, dtype=torch.float64))
    found = tempering.sample(energy, steps, path=path, init=start, generator=seeded(0)).visible[-1]
    alone = gibbs.sample(energy, steps, init=start[-1], generator=seeded(0)).visible
    error = 5 * (expected * (1 - expected) / 2000).sqrt() + 1 / 2000
    are_near = [
        bool(
            ((torch.bincount(number(each[:, 0].long()), minlength=16) / 2000 - expected).abs() <= error).all()
        )
        for each in (found, alone)
    ]
    assert are_near == [True, not is_hard]


def test_a_path_begins_without_coupling_and_ends_one_step_before_the_energy():
    energy = random_bipartite_energy(0, 3, 2, 2)
    base = torch.tensor([[1.0, 0.0, -2.0]], dtype=torch.float64)
    path = tempering.path_from_base(energy, 4, base)
    assert not path[0].coupling.any()
    assert torch.equal(path[0].visible, base.expand(2, -1))
    for place, each in enumerate(path):
        torch.testing.assert_close(each.coupling, place / 4 * energy.coupling)
        torch.testing.assert_close(each.hidden, place / 4 * energy.hidden)
    assert torch.equal(tempering.path_from_base(energy, 1)[0].visible, energy.visible)


@pytest.mark.parametrize("first", [0, 1])
def test_fields_go_with_the_states_that_are_exchanged(first):
    energies = machines(0) + machines(7)
    ladder = Ladder.of(energies, 50)
    visible = STATES[torch.randint(8, (6, 100), generator=seeded(0))].double()
    moved, fields, accepted = ladder.exchange(visible, ladder.hidden_fields(visible), first, seeded(1))
    assert accepted.any()
    assert not accepted.all()
    torch.testing.assert_close(fields, ladder.hidden_fields(moved))
    # Nothing is lost, and with an odd start the two outer replicas stay what they are.
    assert torch.equal(moved.sum(0), visible.sum(0))
    if first:
        assert torch.equal(moved[[0, -1]], visible[[0, -1]])


@pytest.mark.usefixtures("no_shape_checks")
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("num_steps", {"num_steps": 0}),
        ("num_chains", {"num_chains": 0}),
        ("path", {"path": []}),
        (r"path\[1\].hidden", {"path": [machines(0)[0], random_bipartite_energy(0, 3, 4, 2)]}),
        ("init", {"init": torch.zeros(2, 5, 2, 3)}),
        ("init", {"init": torch.full((3, 5, 2, 3), 2)}),
    ],
)
def test_refuses(name, settings):
    *path, energy = machines(0)
    with pytest.raises(ValueError, match=rf"^{name}: expected"):
        tempering.sample(energy, **{"num_steps": 1, "path": path, **settings})


@pytest.mark.usefixtures("no_shape_checks")
@pytest.mark.parametrize("base", [torch.zeros(1, 4).double(), torch.full((1, 3), torch.inf).double()])
def test_refuses_a_base(base):
    with pytest.raises(ValueError, match=r"^base: expected"):
        tempering.path_from_base(machines(0)[0], 3, base)
