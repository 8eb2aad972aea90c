"""Joint-distribution tests of independent draws and of training's chains, as in ``test_geweke``.

Independent draws given θ forget where they start: of two draws of y given θ, one comes by enumeration.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from test_geweke import (
    COUPLING,
    SIZES,
    STATES,
    VISIBLE,
    assert_same_joint_distribution,
    from_scores,
    machines,
    of_machines,
    seeded,
)
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

from lmbm_torch import inference
from lmbm_torch.constraints import Constraints
from lmbm_torch.energies import BipartiteEnergy, ChainEnergy, CliqueEnergy, DirectedEnergy, PairwiseEnergy
from lmbm_torch.energies.chain import PADDING
from lmbm_torch.energies.sequential import SequentialEnergy
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.inference.graphs import elimination
from lmbm_torch.inference.sampling import ancestral, gibbs
from lmbm_torch.inference.sampling.tempering import path_from_base
from lmbm_torch.inference.trees import chain_dp
from lmbm_torch.losses.contrastive import persistent_contrastive_divergence
from lmbm_torch.training.parallel_chains import ParallelChainsModule
from reproduce.gradients import gradient

NEXT = torch.ones(VISIBLE, VISIBLE).triu(1) - torch.ones(VISIBLE, VISIBLE).triu(2)
# So few that ancestral sampling looks at those alone.
ONE_PARENT = torch.tensor([[0.0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0], [1, 0, 0, 0]]).double()
RULES = Constraints.of(
    ["label_0 -> not label_2", "at_least(1, label_1, label_3)"],
    [f"label_{label}" for label in range(VISIBLE)],
)
Draws = tuple[Tensor, Tensor, Tensor]
"""Labels by enumeration, labels by the sampler, and what both were given."""


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=seeded(seed)).double()


def chain_of_labels(size: int) -> PairwiseEnergy:
    """Each coupled with the next."""
    pairwise = normal(1, VISIBLE, VISIBLE) * NEXT
    return PairwiseEnergy(normal(0, size, VISIBLE), pairwise + pairwise.mT)


def cliques(size: int) -> CliqueEnergy:
    alone = tuple((label,) for label in range(VISIBLE))
    weight = torch.cat([normal(0, size, VISIBLE), normal(1, 2).expand(size, 2)], 1)
    return CliqueEnergy((*alone, (0, 1), (1, 2, 3)), weight)


def by_enumeration(
    energy: Any, known: Tensor | None = None, rules: Constraints | None = None, seed: int = 0
) -> Tensor:
    """Labels that are neither unlike the known ones nor against the rules."""
    size = energy.batch_size
    scores = energy.score(STATES[:, None].expand(-1, size, -1)).T
    if known is not None:
        differs = (known[:, None] != STATES) & ~known.isnan()[:, None]
        scores = scores.masked_fill(differs.any(-1), -torch.inf)
    if rules is not None:
        scores = scores.masked_fill(torch.from_numpy(rules.violated(STATES.numpy()).any(1)), -torch.inf)
    return from_scores(scores, seed)


def partly_known(labels: Tensor) -> Tensor:
    return torch.where(
        torch.rand(labels.shape, generator=seeded(3), dtype=torch.float64) < 0.3, labels.double(), torch.nan
    )


def of_labels(
    sampler: Callable[..., Tensor],
    make: Callable[[int], Any],
    size: int,
    *,
    known: bool = False,
    rules: Constraints | None = None,
) -> Draws:
    """Of a sampler of one draw for each energy, of which some labels may be known."""
    energy = make(size)
    given = partly_known(by_enumeration(energy, None, rules)) if known else None
    start = by_enumeration(energy, given, rules)
    options: dict[str, Any] = {"known": given} if known else {}
    moved = sampler(energy, generator=seeded(1), **options)[0]
    theta = energy.weight[:, :VISIBLE] if isinstance(energy, CliqueEnergy) else energy.unary
    theta = theta if given is None else torch.cat([theta, given.nan_to_num(0.5)], 1)
    return start, moved, theta


def of_hidden_units(size: int) -> Draws:
    """Visible units, of which some are known, with the hidden ones summed out."""
    energy = machines(size)
    known = partly_known(of_machines(energy))
    moved = exact.sample(energy, 1, known=known, generator=seeded(1))[0]
    given = torch.cat([energy.visible, energy.hidden, known.nan_to_num(0.5)], 1)
    return of_machines(energy, known), moved, given


def constrained_draws(energy: Any, **options: Any) -> Tensor:
    return inference.sample(energy, 1, constraints=RULES, **options)


def gibbs_of_known(energy: PairwiseEnergy, *, known: Tensor, generator: torch.Generator) -> Tensor:
    start = by_enumeration(energy, known)
    return gibbs.sample(energy, 1, init=start, known=known, generator=generator)[None]


def of_sequences(size: int) -> Draws:
    """Chains of different lengths."""
    lengths = torch.randint(1, 4, (size,), generator=seeded(2))
    energy = ChainEnergy(normal(0, size, 3, 3), normal(1, 3, 3), lengths)
    labels = torch.cartesian_prod(*[torch.arange(3)] * 3)
    scores = energy.score(labels[:, None].expand(-1, size, -1)).T
    beyond = torch.arange(3) >= lengths[:, None]
    # Each chain's labellings are counted once, with 0 beyond its end.
    scores = scores.masked_fill((beyond[:, None] & (labels > 0)).any(-1), -torch.inf)
    drawn = labels[torch.multinomial(scores.softmax(1), 1, generator=seeded(3))[:, 0]]
    start = drawn.masked_fill(beyond, PADDING)
    return start, chain_dp.sample(energy, 1, generator=seeded(1))[0], energy.unary.flatten(1)


def of_networks(size: int, *, parents: Tensor, clique: bool = False) -> Draws:
    bias = normal(1, size, VISIBLE)
    with_clique: dict[str, Any] = {"cliques": ((0, 1, 3),), "clique_weight": normal(4, 1)} if clique else {}
    ordering = torch.tensor([2, 0, 3, 1])
    placed = torch.zeros_like(parents)
    placed[ordering[:, None], ordering] = 1.5 * parents
    energy = DirectedEnergy(bias, placed, ordering, **with_clique)
    return by_enumeration(energy), ancestral.sample(energy, 1, generator=seeded(1))[0], bias


def of_labels_in_turn(size: int) -> Draws:
    """Of two or three values, each by a distribution that the earlier ones move."""
    states, ordering = (2, 3, 2), (1, 2, 0)
    bias, weight = 2 * normal(0, size, 3, 3), 2 * normal(1, 3, 3, 3)

    def conditional(position: int, rows: Tensor, earlier: Tensor) -> Tensor:
        count = states[ordering[position]]
        fields = bias[rows, position, :count] + earlier.double() @ weight[position, :position, :count]
        return fields.log_softmax(-1)

    energy = SequentialEnergy(size, states, ordering, conditional)
    labels = torch.cartesian_prod(*map(torch.arange, states))
    scores = torch.stack([energy.score(each.expand(size, -1)) for each in labels], 1)
    start = labels[torch.multinomial(scores.softmax(1), 1, generator=seeded(2))[:, 0]]
    return start, ancestral.sample(energy, 1, generator=seeded(1))[0], bias.flatten(1)


DRAWS: dict[str, Callable[[int], Draws]] = {
    "exact.sample": partial(of_labels, partial(exact.sample, num_samples=1), chain_of_labels),
    "exact.sample of known": partial(of_labels, partial(exact.sample, num_samples=1), cliques, known=True),
    "exact.sample of hidden units": of_hidden_units,
    "elimination.sample": partial(of_labels, partial(elimination.sample, num_samples=1), cliques),
    "elimination.sample of known under rules": partial(
        of_labels,
        partial(elimination.sample, num_samples=1, constraints=RULES),
        chain_of_labels,
        known=True,
        rules=RULES,
    ),
    "routes.sample under rules": partial(of_labels, constrained_draws, cliques, rules=RULES),
    "routes.sample under rules of known": partial(
        of_labels, constrained_draws, chain_of_labels, known=True, rules=RULES
    ),
    "chain_dp.sample": of_sequences,
    "ancestral.sample of few parents": partial(of_networks, parents=ONE_PARENT),
    "ancestral.sample of cliques": partial(
        of_networks, parents=normal(0, VISIBLE, VISIBLE).tril(-1), clique=True
    ),
    "ancestral.sample of labels in turn": of_labels_in_turn,
    "gibbs.sample of known": partial(of_labels, gibbs_of_known, chain_of_labels, known=True),
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", DRAWS)
def test_draws(name, size):
    assert_same_joint_distribution(*DRAWS[name](size))


@pytest.mark.parametrize("name", DRAWS)
def test_a_mistake_in_one_example_of_four_is_seen(name):
    start, moved, given = DRAWS[name](SIZES[0])
    label = moved[:, 0]
    turned = torch.where(torch.rand(len(moved), generator=seeded(9)) < 1 / 4, 1 - label.clamp(0, 1), label)
    moved = torch.cat([turned[:, None], moved[:, 1:]], 1)
    with pytest.raises(AssertionError):
        assert_same_joint_distribution(start, moved, given)


def one_machine() -> BipartiteEnergy:
    return BipartiteEnergy(normal(4, 1, VISIBLE), normal(5, 1, COUPLING.shape[1]), COUPLING)


def of_one_machine(energy: BipartiteEnergy, size: int, seed: int = 0) -> Tensor:
    visible, hidden = energy.visible.expand(size, -1), energy.hidden.expand(size, -1)
    return of_machines(BipartiteEnergy(visible, hidden, energy.coupling), seed=seed)


def by_shared_chains(energy: BipartiteEnergy, start: Tensor, num_steps: int) -> Tensor:
    of_chains = energy.hidden_given_visible(start.double())
    module: Any = SimpleNamespace(num_steps=num_steps)
    return ParallelChainsModule._gibbs(module, energy, of_chains)


def by_losses(energy: BipartiteEnergy, start: Tensor) -> Tensor:
    return persistent_contrastive_divergence(energy, start.double(), start, 2)[1]


def by_gradients(energy: BipartiteEnergy, start: Tensor) -> Tensor:
    reached = gradient("pcd", energy, start.double(), num_steps=2, chains=start).reached
    assert reached is not None
    return reached


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "move",
    [partial(by_shared_chains, num_steps=1), partial(by_shared_chains, num_steps=2), by_losses, by_gradients],
)
def test_persistent_chains_of_training(move, size):
    energy = machines(size)
    start = of_machines(energy)
    torch.manual_seed(1)
    moved = move(energy, start)
    assert_same_joint_distribution(start, moved.long(), torch.cat([energy.visible, energy.hidden], 1))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("first", [0, 1])
def test_tempered_chains_of_training(first, size):
    """All replicas of all chains, of one machine."""
    energy, base = one_machine(), normal(6, 1, VISIBLE)
    replicas = [*path_from_base(energy, 2, base), energy]
    start = torch.cat([of_one_machine(each, size, seed) for seed, each in enumerate(replicas)])
    torch.manual_seed(1)
    module: Any = SimpleNamespace(num_steps=1, num_replicas=3, num_chains=size, base=base, global_step=first)
    moved = ParallelChainsModule._tempered(module, energy, start.double()).long()
    none = torch.zeros(size, 0).double()
    for before, after in zip(start.split(size), moved.split(size), strict=True):
        assert_same_joint_distribution(before, after, none)
