"""Gibbs samples against the distributions that they are drawn from, within what chance allows."""

from __future__ import annotations

import pytest
import torch
from strategies.bipartite import (
    all_states,
    random_bipartite_energy,
    random_known_visible,
    random_units,
    score_table,
)

from lmbm_torch.energies import BipartiteEnergy
from lmbm_torch.inference.common.results import BipartiteSamples
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.inference.sampling import gibbs

CHAINS = 20_000


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def assert_drawn_from(states: torch.Tensor, probabilities: torch.Tensor) -> None:
    """Every state's frequency, of (chains, batch) state numbers, lies within 5 standard errors."""
    chains = len(states)
    for column, expected in zip(states.T, probabilities, strict=True):
        frequency = torch.bincount(column, minlength=len(expected)).double() / chains
        error = (expected * (1 - expected) / chains).sqrt()
        assert ((frequency - expected).abs() <= 5 * error + 1 / chains).all()


def number(units: torch.Tensor) -> torch.Tensor:
    """The place of each state in ``all_states``."""
    return (units * 2 ** torch.arange(units.shape[-1]).flip(0)).sum(-1)


def joint_number(samples: BipartiteSamples) -> torch.Tensor:
    return number(torch.cat([samples.visible, samples.hidden], -1))


@pytest.mark.parametrize("coupling", [0.3, 1.0, 3.0])
def test_one_step_has_the_transition_probabilities(coupling):
    energy = random_bipartite_energy(0, 3, 2, coupling=coupling)
    start, _ = random_units(1, energy)
    samples = gibbs.sample(energy, 1, init=start.expand(CHAINS, -1, -1), generator=seeded(2))
    visible, hidden = all_states(3), all_states(2)
    p = energy.hidden_given_visible(start)[:, None]
    to_hidden = torch.where(hidden == 1, p, 1 - p).prod(-1)
    q = energy.visible_given_hidden(hidden[:, None])
    to_visible = torch.where(visible[:, None, None] == 1, q, 1 - q).prod(-1)
    expected = torch.einsum("bh,vhb->bvh", to_hidden, to_visible)
    assert_drawn_from(joint_number(samples), expected.flatten(1))


@pytest.mark.parametrize("coupling", [0.3, 1.0, 3.0])
def test_the_joint_distribution_is_left_as_it_is(coupling):
    energy = random_bipartite_energy(3, 3, 2, coupling=coupling)
    joint = score_table(energy).flatten(1).softmax(1)
    drawn = torch.multinomial(joint, CHAINS, replacement=True, generator=seeded(0)).T
    start = all_states(3)[drawn // 4]
    samples = gibbs.sample(energy, 3, init=start, generator=seeded(1))
    assert_drawn_from(joint_number(samples), joint)


def test_long_chains_forget_their_start():
    energy = random_bipartite_energy(3, 3, 2)
    start = torch.ones(CHAINS, 3, 3)
    samples = gibbs.sample(energy, 50, init=start, generator=seeded(1))
    assert_drawn_from(joint_number(samples), score_table(energy).flatten(1).softmax(1))


def test_known_units_condition_the_samples():
    energy = random_bipartite_energy(3, 4, 2, 2)
    known = torch.tensor([[1, torch.nan, torch.nan, 0], [torch.nan, 0, 0, torch.nan]]).double()
    start = torch.where(known.isnan(), torch.zeros(CHAINS, 2, 4).double(), known)
    samples = gibbs.sample(energy, 50, init=start, generator=seeded(1), known=known)
    assert_drawn_from(joint_number(samples), score_table(energy, known).flatten(1).softmax(1))


def test_starts_as_if_nothing_were_coupled():
    energy = random_bipartite_energy(0, 3, 2, coupling=0.0).select(torch.zeros(CHAINS, dtype=torch.int64))
    samples = gibbs.sample(energy, 1, generator=seeded(0))
    assert samples.visible.shape == (CHAINS, 3)
    expected = score_table(energy.select(slice(0, 1))).flatten(1).softmax(1)
    assert_drawn_from(joint_number(samples)[:, None], expected)


def test_many_examples_are_many_chains():
    energy = random_bipartite_energy(0, 6, 5).select(torch.zeros(4000, dtype=torch.int64))
    samples = gibbs.sample(energy, 50, generator=seeded(0))
    expected = exact.marginals(energy.select(slice(0, 1)))
    for side, probability in ((samples.visible, expected.visible), (samples.hidden, expected.hidden)):
        error = (probability * (1 - probability) / 4000).sqrt()
        assert ((side.double().mean(0) - probability).abs() <= 5 * error).all()


def test_a_chain_goes_on_from_where_it_was():
    energy = random_bipartite_energy(0, 6, 5)
    whole = gibbs.sample(energy, 5, init=torch.zeros(2, 3, 6), generator=seeded(0))
    generator = seeded(0)
    half = gibbs.sample(energy, 2, init=torch.zeros(2, 3, 6), generator=generator)
    rest = gibbs.sample(energy, 3, init=half.visible, generator=generator)
    assert torch.equal(rest.visible, whole.visible)
    assert torch.equal(rest.hidden, whole.hidden)


@pytest.mark.parametrize("shape", [(), (2,), (2, 3)])
def test_leading_axes_are_chains(shape):
    energy = random_bipartite_energy(0, 6, 5)
    samples = gibbs.sample(energy, 1, init=torch.zeros(*shape, 3, 6))
    assert samples.visible.shape == (*shape, 3, 6)
    assert samples.hidden.shape == (*shape, 3, 5)
    assert samples.visible.dtype == samples.hidden.dtype == torch.int64


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extremes_are_drawn_with_certainty(dtype):
    energy = BipartiteEnergy(
        torch.tensor([[1e4, -1e4]], dtype=dtype),
        torch.tensor([[0.0, -1e4]], dtype=dtype),
        torch.tensor([[200.0, 0.0], [0.0, 200.0]], dtype=dtype),
    )
    samples = gibbs.sample(energy, 2, init=torch.ones(100, 1, 2), generator=seeded(0))
    assert (samples.visible == torch.tensor([1, 0])).all()
    assert (samples.hidden == torch.tensor([1, 0])).all()


@pytest.mark.usefixtures("no_shape_checks")
class TestRefusals:
    ENERGY = random_bipartite_energy(0, 4, 3)

    @pytest.mark.parametrize(
        "init",
        [
            torch.zeros(4),
            torch.zeros(2, 4),
            torch.zeros(5, 2, 4),
            torch.zeros(0, 3, 4),
            torch.zeros(3, 4, device="meta"),
            torch.full((3, 4), 0.5),
            torch.full((3, 4), torch.nan),
        ],
    )
    def test_init(self, init):
        with pytest.raises(ValueError, match=r"^init: expected"):
            gibbs.sample(self.ENERGY, 1, init=init)

    def test_init_against_known(self):
        known = random_known_visible(0, self.ENERGY)
        init = (1 - known).nan_to_num()
        count = int((~known.isnan()).sum())
        with pytest.raises(
            ValueError, match=rf"^init: expected the known values .* got other values for {count} "
        ):
            gibbs.sample(self.ENERGY, 1, init=init, known=known)

    @pytest.mark.parametrize("num_steps", [0, -1, 2.0, True])
    def test_num_steps(self, num_steps):
        with pytest.raises(ValueError, match=r"^num_steps: expected"):
            gibbs.sample(self.ENERGY, num_steps)
