"""Energies restricted by rules: decided and summed over what is allowed, or refused in words."""

from __future__ import annotations

import copy
import inspect
import pickle
from typing import Any

import pytest
import torch
from contracts.test_table import public_functions
from strategies.bipartite import random_bipartite_energy
from strategies.directed import random_directed_energy
from strategies.pairwise import random_clique_energy, random_pairwise_energy

from lmbm_torch import inference
from lmbm_torch.constraints import Constraints
from lmbm_torch.energies import ChainEnergy
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.inference.under_rules import constrained

LABELS, MARGIN = 6, 0.7
NAMES = [f"label_{label}" for label in range(LABELS)]
RULES = Constraints.of(["label_0 -> label_1", "at_most_one(label_2, label_3, label_4)"], NAMES)
ENERGIES = {
    "pairwise": random_pairwise_energy(0, LABELS),
    "directed": random_directed_energy(0, LABELS),
    "cliques": random_clique_energy(0, LABELS),
    "bipartite": random_bipartite_energy(0, LABELS, 3),
}
STATES = torch.cartesian_prod(*[torch.arange(2)] * LABELS)
ALLOWED = STATES[torch.from_numpy(~RULES.violated(STATES.numpy()).any(1))]


def of_allowed(values):
    """(allowed, batch) of a function of labels (labellings, batch, labels)."""
    return lambda energy: values(energy, ALLOWED[:, None].expand(-1, energy.batch_size, -1))


scores = of_allowed(lambda energy, labels: constrained.restricted(energy, RULES).score(labels))
hinges = of_allowed(lambda energy, labels: (MARGIN - energy.local_margins(labels)).clamp(min=0).sum(-1))


@pytest.mark.parametrize("kind", ENERGIES)
@pytest.mark.parametrize("routines", [exact, inference])
def test_what_is_allowed_is_decided_and_summed(routines, kind):
    energy = ENERGIES[kind]
    restricted = constrained.restricted(energy, RULES)
    found, values = routines.decode(restricted), scores(energy)
    torch.testing.assert_close(found.objective, values.amax(0))
    assert torch.equal(found.labels, ALLOWED[values.argmax(0)])
    sums = routines.marginals(restricted)
    torch.testing.assert_close(sums.log_partition, values.logsumexp(0))
    torch.testing.assert_close(routines.log_partition(restricted), values.logsumexp(0))
    torch.testing.assert_close(sums.labels, torch.einsum("nb,ni->bi", values.softmax(0), ALLOWED.double()))
    if kind == "bipartite":
        with pytest.raises(TypeError, match=r"energy: expected (one|a kind) .*, got BipartiteEnergy"):
            routines.decode_hinge(restricted, MARGIN)
    else:
        least = routines.decode_hinge(restricted, MARGIN)
        torch.testing.assert_close(least.objective, hinges(energy).amin(0))
        assert not RULES.violated(least.labels.numpy()).any()


def test_further_rules_and_known_labels_are_obeyed_too():
    energy = ENERGIES["pairwise"]
    more = Constraints.of("label_1 -> label_5", NAMES)
    both = Constraints.of([*RULES.rules, *more.rules], NAMES)
    known = torch.full_like(energy.unary, torch.nan)
    known[1, 0] = 1
    restricted: Any = constrained.restricted(energy, RULES)
    found = inference.decode(energy=restricted, known=known, constraints=more)
    right = inference.decode(energy, known=known, constraints=both)
    assert torch.equal(found.labels, right.labels)
    assert found.labels[1, [0, 1, 5]].all()


@pytest.mark.parametrize("kind", ENERGIES)
def test_routines_that_know_no_rules_say_so(kind):
    restricted = constrained.restricted(ENERGIES[kind], RULES)
    able = {"exact", "routes", "constrained", "bayes", "mixture"}
    sizes = {"num_samples": 2, "num_steps": 1}
    tried = 0
    for name, function in public_functions().items():
        parameters = inspect.signature(function).parameters.values()
        needed = [each.name for each in parameters if each.default is each.empty][1:]
        if not able.isdisjoint(name.split(".")) or not {*needed} <= {*sizes}:
            continue
        tried += 1
        with pytest.raises(TypeError, match="energy: expected one without rules"):
            function(restricted, **{size: sizes[size] for size in needed})
    assert tried > 30


def test_too_few_allowed_labellings_are_refused():
    energy = ENERGIES["pairwise"]
    restricted: Any = constrained.restricted(energy, RULES)
    known = torch.full_like(energy.unary, torch.nan)
    known[0, 0], known[0, 1] = 1, 0
    for routine in (exact.decode, exact.marginals, exact.log_partition, exact.decode_hinge):
        with pytest.raises(ValueError, match=r"expected .*for every example, got fewer for 1"):
            routine(restricted, known=known)
    with pytest.raises(ValueError, match=r"known\[0\].*contradiction"):
        inference.decode(restricted, known=known)
    assert exact.decode(restricted, top_k=len(ALLOWED)).labels.shape[1] == len(ALLOWED)
    with pytest.raises(ValueError, match=r"top_k: expected \d+ allowed labellings"):
        exact.decode(restricted, top_k=len(ALLOWED) + 1)


def test_no_rules_restrict_nothing():
    energy, none = ENERGIES["pairwise"], Constraints((), tuple(NAMES))
    for routine in (inference.marginals, inference.log_partition, inference.decode, inference.decode_hinge):
        whatever = routine(energy, constraints=none)
        right = routine(energy)
        name = next((each for each in ("labels", "objective") if hasattr(right, each)), None)
        pairs = (whatever, right) if name is None else (getattr(whatever, name), getattr(right, name))
        torch.testing.assert_close(*pairs)


def test_copies_are_restricted_too():
    restricted = constrained.restricted(ENERGIES["pairwise"], RULES)
    for other in (copy.deepcopy(restricted), pickle.loads(pickle.dumps(restricted))):
        assert torch.equal(exact.decode(other).labels, exact.decode(restricted).labels)
    assert not hasattr(restricted, "pairwise")


def test_local_normalisation_refuses_states_that_nothing_may_follow():
    unary, transition = torch.zeros(1, 3, 2), torch.zeros(2, 2)
    transition[0] = -torch.inf
    with pytest.raises(ValueError, match="energy: expected an allowed successor of every state"):
        ChainEnergy(unary, transition).locally_normalised()
    transition[0, 1] = 0
    assert (
        ChainEnergy(unary, transition).locally_normalised().score(torch.tensor([[0, 1, 1]])).isfinite().all()
    )
