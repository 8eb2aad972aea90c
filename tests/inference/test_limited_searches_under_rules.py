"""What searches under rules return where they met a limit: allowed, and no flip makes it better."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch
from strategies.pairwise import random_pairwise_energy

from lmbm_torch.constraints import Constraints
from lmbm_torch.inference.common.results import Decoding, Status
from lmbm_torch.inference.relaxations.local_polytope import hinge_loss
from lmbm_torch.inference.search import undirected_branch_and_bound
from lmbm_torch.inference.under_rules import allowed

LABELS = 16
NAMES = [f"l{label}" for label in range(LABELS)]
RULES = Constraints.of(
    [f"exactly_one({', '.join(NAMES[start : start + 4])})" for start in range(0, 12, 4)] + ["l12 -> l13"],
    NAMES,
)


def neighbours(labels: torch.Tensor, sizes: tuple[int, ...]) -> torch.Tensor:
    """All allowed labellings (number, labels) with so many labels flipped, none of which is known."""
    flipped = []
    for size in sizes:
        for places in combinations(range(1, LABELS), size):
            each = labels.clone()
            each[list(places)] = 1 - each[list(places)]
            flipped.append(each)
    every = torch.stack(flipped)
    return every[torch.from_numpy(~RULES.violated(every.numpy()).any(1))]


@pytest.mark.parametrize("seed", range(3))
def test_scores_are_not_made_better_by_flips_of_labels_or_pairs(seed):
    energy = random_pairwise_energy(seed, LABELS, 4, coupling=1.0)
    known = torch.full((4, LABELS), torch.nan).double()
    known[:, 0] = 0.0
    limited = allowed.best_scores(energy, constraints=RULES, node_limit=3, known=known, top_k=1)
    found = allowed.climbed(energy, limited, None, RULES, known)
    assert (found.objective >= limited.objective).all()
    torch.testing.assert_close(found.objective, energy.score(found.labels))
    torch.testing.assert_close(found.status.residual, found.bound - found.objective)
    assert not found.status.exact.all()
    assert not RULES.violated(found.labels.numpy()).any()
    assert (found.labels[:, 0] == 0).all()
    assert (found.bound >= found.objective).all()
    for row in (~found.status.exact).nonzero().flatten().tolist():
        others = neighbours(found.labels[row], (1, 2))
        assert energy.select([row]).score(others[:, None]).max() <= found.objective[row] + 1e-9


def test_losses_are_not_made_better_by_flips_of_labels():
    energy = random_pairwise_energy(5, LABELS, 4, coupling=1.0)
    known = torch.full((4, LABELS), torch.nan).double()
    known[:, 0] = 0.0
    limited = allowed.least_hinges(energy, constraints=RULES, margin=1.0, node_limit=3, known=known, top_k=1)
    found = allowed.climbed(energy, limited, 1.0, RULES, known)
    assert (found.labels[:, 0] == 0).all()
    assert (found.objective <= limited.objective).all()
    assert (found.objective < limited.objective).any()
    torch.testing.assert_close(found.objective, hinge_loss(energy, found.labels, 1.0))
    assert not found.status.exact.all()
    assert not RULES.violated(found.labels.numpy()).any()
    for row in (~found.status.exact).nonzero().flatten().tolist():
        others = neighbours(found.labels[row], (1,))
        losses = hinge_loss(energy.select([row] * len(others)), others, 1.0)
        assert losses.min() >= found.objective[row] - 1e-9


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_better_labelling_and_the_better_bound_are_kept(sign):
    def decoding(objective, bound):
        objective, bound = sign * torch.tensor(objective), sign * torch.tensor(bound)
        labels = torch.full((len(objective), 2), len(objective))
        nodes = torch.ones(len(objective), dtype=torch.int64)
        return Decoding(labels, objective, bound, Status(objective == bound, nodes > 1, nodes, nodes * 0.0))

    one = decoding([9.0, 1.0, 4.0, 2.0], [9.0, 8.0, 6.0, 3.0])
    other = decoding([2.0, 3.0, 3.0], [7.0, 7.0, 3.0])
    energy, asked = random_pairwise_energy(0, 2, 4), []

    def way(energy, known):
        asked.append(known.tolist())
        return other

    known = torch.tensor([[0.0, torch.nan], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
    found = undirected_branch_and_bound._further(energy, one, way, known, sign)
    assert asked == [known[1:].tolist()]
    assert (sign * found.objective).tolist() == [9.0, 2.0, 4.0, 3.0]
    assert (sign * found.bound).tolist() == [9.0, 7.0, 6.0, 3.0]
    assert found.labels[:, 0].tolist() == [4, 3, 4, 3]
    assert found.status.exact.tolist() == [True, False, False, True]
    assert found.status.residual.tolist() == [0.0, 5.0, 2.0, 0.0]
