"""Gibbs samples of pairwise energies against the distributions that they are drawn from."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from strategies.directed import random_known
from strategies.pairwise import all_labellings, pairwise_energies, random_pairwise_energy

from lmbm_torch.energies import PairwiseEnergy
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.inference.sampling import gibbs
from lmbm_torch.inference.sampling.gibbs import uncoupled_blocks

CHAINS = 20_000
FORMS = ({}, {"density": 0.5}, {"per_example": True})


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def number(labels: torch.Tensor) -> torch.Tensor:
    """The place of each labelling in ``all_labellings``."""
    return (labels.long() * 2 ** torch.arange(labels.shape[-1]).flip(0)).sum(-1)


def assert_drawn_from(labels: torch.Tensor, probabilities: torch.Tensor) -> None:
    """Every labelling's frequency, of (chains, batch, labels), lies within 5 standard errors."""
    for column, expected in zip(number(labels).T, probabilities, strict=True):
        frequency = torch.bincount(column, minlength=len(expected)).double() / CHAINS
        error = (expected * (1 - expected) / CHAINS).sqrt()
        assert ((frequency - expected).abs() <= 5 * error + 1 / CHAINS).all()


def distribution(energy: PairwiseEnergy) -> torch.Tensor:
    """(batch, 2^labels)."""
    return energy.score(all_labellings(energy.num_labels)).softmax(0).T


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("coupling", [0.3, 3.0])
def test_the_distribution_is_left_as_it_is(form, coupling):
    energy = random_pairwise_energy(0, 4, coupling=coupling, **form)
    start = distribution(energy)
    drawn = torch.multinomial(start, CHAINS, replacement=True, generator=seeded(0)).T
    init = all_labellings(4)[drawn].squeeze(2)
    assert_drawn_from(gibbs.sample(energy, 2, init=init, generator=seeded(1)), start)


@pytest.mark.parametrize("form", FORMS)
def test_long_chains_forget_their_start(form):
    energy = random_pairwise_energy(1, 4, coupling=0.5, **form)
    samples = gibbs.sample(energy, 40, init=torch.ones(CHAINS, 3, 4), generator=seeded(1))
    assert_drawn_from(samples, distribution(energy))


def test_one_step_draws_each_label_given_the_others():
    energy = random_pairwise_energy(2, 3)
    start = torch.tensor([[0, 1, 0], [1, 1, 1], [0, 0, 1]]).double()
    samples = gibbs.sample(energy, 1, init=start.expand(CHAINS, -1, -1), generator=seeded(0))
    expected = torch.ones(3, 8).double()
    for place, end in enumerate(all_labellings(3)[:, 0].double()):
        for i in range(3):
            # Labels up to i are drawn already.
            now = torch.cat([end[: i + 1].expand(3, -1), start[:, i + 1 :]], 1)
            p = torch.sigmoid(2 * energy.local_fields(now)[:, i])
            expected[:, place] *= p if end[i] else 1 - p
    assert_drawn_from(samples, expected)


def test_known_labels_condition_the_samples():
    energy = random_pairwise_energy(3, 4, coupling=0.5)
    known = random_known(0, energy)
    init = known.nan_to_num().expand(CHAINS, -1, -1)
    samples = gibbs.sample(energy, 40, init=init, generator=seeded(1), known=known)
    labellings = all_labellings(4)
    against = ((labellings != known) & ~known.isnan()).any(-1)
    assert_drawn_from(samples, energy.score(labellings).masked_fill(against, -torch.inf).softmax(0).T)


def test_many_examples_are_many_chains():
    energy = random_pairwise_energy(0, 6, 1, coupling=0.5)
    samples = gibbs.sample(energy.select(torch.zeros(4000, dtype=torch.int64)), 50, generator=seeded(0))
    expected = exact.marginals(energy).labels[0]
    error = (expected * (1 - expected) / 4000).sqrt()
    assert ((samples.double().mean(0) - expected).abs() <= 5 * error).all()


def test_a_chain_goes_on_from_where_it_was():
    energy = random_pairwise_energy(0, 6)
    init = torch.zeros(2, 3, 6)
    whole = gibbs.sample(energy, 5, init=init, generator=seeded(0))
    generator = seeded(0)
    half = gibbs.sample(energy, 2, init=init, generator=generator)
    assert torch.equal(gibbs.sample(energy, 3, init=half, generator=generator), whole)
    assert not init.any()
    assert whole.dtype == torch.int64


@given(pairwise_energies(max_labels=8))
def test_blocks_are_a_partition_without_couplings_inside(energy):
    blocks = [block.index for block in uncoupled_blocks(energy, None)]
    assert sorted(torch.cat(blocks).tolist()) == list(range(energy.num_labels))
    for index in blocks:
        assert not energy.pairwise[..., index, :][..., index].any()


def test_a_grid_has_two_blocks_and_a_complete_graph_one_for_each_label():
    side = 5
    place = torch.arange(side * side).reshape(side, side)
    pairwise = torch.zeros(side * side, side * side)
    for a, b in ((place[:, :-1], place[:, 1:]), (place[:-1], place[1:])):
        pairwise[a.flatten(), b.flatten()] = pairwise[b.flatten(), a.flatten()] = 0.3
    assert len(uncoupled_blocks(PairwiseEnergy(torch.zeros(1, side * side), pairwise), None)) == 2
    assert len(uncoupled_blocks(random_pairwise_energy(0, 7), None)) == 7


@pytest.mark.usefixtures("no_shape_checks")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_steps", 0),
        ("init", torch.zeros(2, 4)),
        ("init", torch.full((3, 4), 0.5)),
        ("known", torch.full((3, 4), 0.5)),
    ],
)
def test_refuses_what_it_cannot_use(name, value):
    with pytest.raises(ValueError, match=f"^{name}: expected"):
        gibbs.sample(random_pairwise_energy(0, 4), **{"num_steps": 1, name: value})
