"""Draws by enumeration against the distribution that they are from."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from problems.draws import deviation
from problems.rules import random_rules
from strategies.bipartite import all_states, random_bipartite_energy
from strategies.directed import random_directed_energy
from strategies.pairwise import random_pairwise_energy

from lmbm_torch.constraints import Constraints
from lmbm_torch.energies import BipartiteEnergy
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.inference.under_rules import constrained

NUM_SAMPLES = 4000
ENERGIES = [
    random_pairwise_energy(0, 6, 2),
    random_directed_energy(1, 6, 2),
    random_bipartite_energy(2, 6, 3, 2),
]


def rules_of(seed):
    generator = np.random.default_rng(seed)
    while (rules := random_rules(generator, 6)) is None:
        pass
    return rules


@pytest.mark.parametrize("chunk_bytes", [exact.CPU_CHUNK_BYTES, 600])
@pytest.mark.parametrize("energy", ENERGIES, ids=lambda energy: type(energy).__name__)
def test_draws_are_from_the_allowed_labellings_as_often_as_is_probable(energy, chunk_bytes, monkeypatch):
    monkeypatch.setattr(exact, "CPU_CHUNK_BYTES", chunk_bytes)
    rules, labels = rules_of(3), all_states(6)
    known = torch.full((2, 6), torch.nan).double()
    known[1, 0] = 1
    is_bipartite = isinstance(energy, BipartiteEnergy)
    scores = -energy.free_energy(labels[:, None]) if is_bipartite else energy.score(labels[:, None])
    allowed = torch.from_numpy(~rules.violated(labels.numpy()).any(1))[:, None]
    allowed = allowed & (known.isnan() | (labels[:, None] == known)).all(-1)
    probabilities = scores.masked_fill(~allowed, -torch.inf).softmax(0)
    restricted = constrained.restricted(energy, rules, known=known)
    generator = torch.Generator().manual_seed(0)
    drawn = exact.sample(restricted, NUM_SAMPLES, known=known, generator=generator)
    for row in range(2):
        assert abs(deviation(drawn[:, row], labels, probabilities[:, row])) < 3


def test_where_nothing_is_possible_nothing_is_drawn():
    rules = Constraints.of("at_most_one(a, b)", ("a", "b", "c"))
    known = torch.tensor([[torch.nan] * 3, [1, 1, torch.nan]]).double()
    energy = constrained.restricted(random_pairwise_energy(0, 3, 2), rules, known=known)
    with pytest.raises(ValueError, match="energy: expected at least one allowed labelling for every example"):
        exact.sample(energy, 3, known=known)


def test_a_labelling_without_mass_is_never_drawn_at_either_end_of_the_shares():
    log_weights = torch.tensor([[-torch.inf, 0.0, -torch.inf, 1.0, -torch.inf]])
    shares = torch.tensor([[0.0, 1 - 2**-53]], dtype=torch.float64)
    assert exact._inverse(log_weights, shares).tolist() == [[1, 3]]
