"""Joint-distribution tests of samplers (Geweke 2004): labels and what they depend on, drawn in two ways.

A random thing θ is drawn first (the biases of a machine, or which of its units are known), then labels y
given θ by enumeration: (θ, y) has a joint distribution. A sampler that leaves p(y | θ) as it is may move y
by any number of its steps, and the pair has the same joint distribution still. Both ways are compared by
the means of products of y with itself and with θ. Unlike a comparison with one energy's distribution, a
mistake in a few of the energies that may be drawn is enough to be seen.
"""

from __future__ import annotations

import pytest
import torch
from strategies.bipartite import all_states, score_table
from torch import Tensor

from lmbm_torch.energies import BipartiteEnergy, DirectedEnergy, PairwiseEnergy
from lmbm_torch.inference.sampling import ancestral, gibbs, tempering
from lmbm_torch.inference.sampling.tempering import Ladder

VISIBLE, HIDDEN = 4, 3
COUPLING = 3.0 * torch.randn(VISIBLE, HIDDEN, generator=torch.Generator().manual_seed(7)).double()
STATES = all_states(VISIBLE)
SIZES = [8000, pytest.param(50_000, marks=pytest.mark.slow)]


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def machines(count: int) -> BipartiteEnergy:
    """Of the same coupling, with random biases."""
    drawn = [1.5 * torch.randn(count, units, generator=seeded(units)).double() for units in (VISIBLE, HIDDEN)]
    return BipartiteEnergy(*drawn, COUPLING)


def from_scores(scores: Tensor, seed: int) -> Tensor:
    """One row of ``STATES`` for each row of scores."""
    return STATES[torch.multinomial(scores.softmax(1), 1, generator=seeded(seed))[:, 0]]


def of_machines(energy: BipartiteEnergy, known: Tensor | None = None, seed: int = 0) -> Tensor:
    """Visible units by enumeration."""
    return from_scores(score_table(energy, known).logsumexp(2), seed)


def products(labels: Tensor, given: Tensor) -> Tensor:
    """Of labels with each other and with what they depend on, one row for each draw."""
    both = torch.cat([labels.double(), given], 1)
    pairs = labels.double()[:, :, None] * both[:, None]
    return pairs.flatten(1)


def assert_same_joint_distribution(start: Tensor, moved: Tensor, given: Tensor) -> None:
    """Within five standard errors, which those of paired differences are."""
    difference = products(moved, given) - products(start, given)
    error = difference.std(0) / len(difference) ** 0.5
    assert (difference.mean(0).abs() <= 5 * error + 1e-9).all()
    # A sampler that leaves everything where it is would pass.
    assert (moved != start).any(1).double().mean() > 0.2


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("num_steps", [1, 2])
def test_gibbs_of_hidden_units(size, num_steps):
    energy = machines(size)
    start = of_machines(energy)
    moved = gibbs.sample(energy, num_steps, init=start, generator=seeded(1)).visible
    assert_same_joint_distribution(start, moved, torch.cat([energy.visible, energy.hidden], 1))


@pytest.mark.parametrize("size", SIZES)
def test_gibbs_with_known_units(size):
    energy = machines(size)
    known = torch.where(
        torch.rand(size, VISIBLE, generator=seeded(3)) < 0.3, of_machines(energy).double(), torch.nan
    )
    start = of_machines(energy, known)
    moved = gibbs.sample(energy, 1, init=start, known=known, generator=seeded(1)).visible
    given = torch.cat([energy.visible, known.nan_to_num(0.5)], 1)
    assert_same_joint_distribution(start, moved, given)


@pytest.mark.parametrize("size", SIZES)
def test_gibbs_of_labels(size):
    unary = torch.randn(size, VISIBLE, generator=seeded(0)).double()
    pairwise = torch.randn(VISIBLE, VISIBLE, generator=seeded(1)).double().triu(1)
    energy = PairwiseEnergy(unary, pairwise + pairwise.mT)
    start = from_scores(energy.score(STATES[:, None].expand(-1, size, -1)).T, 0)
    moved = gibbs.sample(energy, 1, init=start, generator=seeded(1))
    assert_same_joint_distribution(start, moved, unary)


@pytest.mark.parametrize("size", SIZES)
def test_tempering(size):
    """Every replica, and each with its neighbour; the even pairs and the odd ones are exchanged."""
    energy = machines(size)
    path = tempering.path_from_base(energy, 2, base=torch.tensor([[1.0, 0.0, -1.0, 2.0]]).double())
    start = torch.stack([of_machines(each, seed=seed) for seed, each in enumerate((*path, energy))])
    moved = tempering.sample(energy, 2, path=path, init=start[:, None], generator=seeded(1))
    given = torch.cat([energy.visible, energy.hidden], 1)
    for replica, (before, after) in enumerate(zip(start, moved.visible[:, 0], strict=True)):
        neighbour = (replica + 1) % 3
        assert_same_joint_distribution(before, after, given)
        difference = products(after, moved.visible[neighbour, 0].double()) - products(
            before, start[neighbour].double()
        )
        error = difference.std(0) / size**0.5
        assert (difference.mean(0).abs() <= 5 * error + 1e-9).all()


@pytest.mark.parametrize("size", SIZES)
def test_the_chains_of_training(size):
    """Shared by all batches: of one machine, here of each of several that are drawn."""
    energy = machines(size)
    start = of_machines(energy)
    ladder = Ladder.of([energy], 1)
    hidden = gibbs.draw(energy.hidden_given_visible(start), seeded(1))
    by_draws = gibbs.draw(energy.visible_given_hidden(hidden), seeded(2))
    fields = ladder.hidden_fields(start[None].double())
    by_ladder = ladder.gibbs_step(fields, seeded(3))[0]
    given = torch.cat([energy.visible, energy.hidden], 1)
    for moved in (by_draws, by_ladder):
        assert_same_joint_distribution(start, moved.long(), given)


@pytest.mark.parametrize("size", SIZES)
def test_ancestral_samples(size):
    """Drawn afresh: two independent draws of the joint distribution."""
    parents = 1.5 * torch.randn(VISIBLE, VISIBLE, generator=seeded(0)).double().tril(-1)
    bias = torch.randn(size, VISIBLE, generator=seeded(1)).double()
    energy = DirectedEnergy(bias, parents, torch.arange(VISIBLE))
    start = from_scores(energy.score(STATES[:, None].expand(-1, size, -1)).T, 0)
    moved = ancestral.sample(energy, 1, generator=seeded(1))[0]
    assert_same_joint_distribution(start, moved, bias)
