"""The compiled enumeration under rules against all allowed labellings, one by one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from strategies.pairwise import all_labellings, random_pairwise_energy

from lmbm_torch import inference
from lmbm_torch.constraints import Constraints
from lmbm_torch.inference.enumeration import kernels as pairwise_enumeration
from lmbm_torch.inference.search import undirected_branch_and_bound
from lmbm_torch.inference.under_rules import allowed

pytest.importorskip("numba")


def rules(num_labels: int, seed: int) -> Constraints:
    """Between none and several, of all kinds."""
    names = [f"l{label}" for label in range(num_labels)]
    random = np.random.default_rng(seed)
    one, other = random.choice(num_labels, 2, replace=False)
    few = ", ".join(names[label] for label in random.choice(num_labels, min(4, num_labels), replace=False))
    every = [f"{names[one]} -> not {names[other]}", f"at_least(1, {few})", f"at_most_one({few})", names[one]]
    return Constraints.of([rule for rule in every if random.random() < 0.5], names)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("coupling", [0.1, 10.0])
@pytest.mark.parametrize("num_labels", [2, 3, 8, 9, 12])
def test_the_best_allowed_labelling_is_found(num_labels, coupling, dtype):
    for seed in range(6):
        energy = random_pairwise_energy(seed, num_labels, 7, coupling=coupling).to(dtype)
        assert pairwise_enumeration.suits(energy)
        held = rules(num_labels, seed)
        found = allowed.enumerated(energy, held)
        every = all_labellings(num_labels)
        obeys = torch.from_numpy(~held.violated(every[:, 0].long().numpy()).any(1))
        best = energy.score(every[obeys].to(dtype)).amax(0)
        assert not held.violated(found.labels.numpy()).any()
        torch.testing.assert_close(found.objective, best)
        torch.testing.assert_close(energy.score(found.labels), best)
        assert found.status.exact.all()


def test_rules_do_not_lead_to_a_search_where_enumeration_is_faster(monkeypatch):
    energy, held = random_pairwise_energy(0, 14, 5, coupling=1.0), rules(14, 3)
    searched = undirected_branch_and_bound.decode(energy, constraints=held)
    monkeypatch.setattr(undirected_branch_and_bound, "decode", None)
    found = inference.decode(energy, constraints=held)
    torch.testing.assert_close(found.objective, searched.objective)
    with pytest.raises(ValueError, match="constraints: expected rules over 14 labels, got 9"):
        inference.decode(energy, constraints=rules(9, 3))
