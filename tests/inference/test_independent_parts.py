"""What is known, and what rules say, takes a model apart; the parts' answers are those of enumeration."""

from __future__ import annotations

from dataclasses import replace
from time import process_time

import pytest
import torch
from strategies.directed import random_directed_energy
from strategies.pairwise import random_pairwise_energy

from lmbm_torch import inference
from lmbm_torch.constraints import Constraints
from lmbm_torch.energies import DirectedEnergy, PairwiseEnergy
from lmbm_torch.inference.common.limits import LIMITS
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.inference.relaxations.semidefinite import decoding as semidefinite
from lmbm_torch.inference.routes import answers, parts, table
from lmbm_torch.inference.search import undirected_branch_and_bound
from lmbm_torch.inference.under_rules import constrained

LABELS, BATCH = 14, 5
# Labels of two blocks, one by one, and a label that stands alone.
BLOCKS = (torch.arange(0, 12, 2), torch.arange(1, 13, 2), torch.tensor([12]), torch.tensor([13]))
NAMES = [f"label_{label}" for label in range(LABELS)]


def torn(energy):
    """The same energy without what couples labels of different blocks."""
    same = torch.zeros(LABELS, LABELS, dtype=torch.bool)
    for block in BLOCKS:
        same[block[:, None], block] = True
    if isinstance(energy, DirectedEnergy):
        return replace(energy, parents=energy.parents * same)
    return replace(energy, pairwise=energy.pairwise * same)


def bridged(energy):
    """Blocks that one label, the 13th, couples (of a directed model as a parent): apart where it is known."""
    name = "parents" if isinstance(energy, DirectedEnergy) else "pairwise"
    weights, kept = getattr(energy, name), getattr(torn(energy), name).clone()
    kept[..., :, 12] = weights[..., :, 12]
    if name == "pairwise":
        kept[..., 12, :] = weights[..., 12, :]
    return replace(energy, **{name: kept})


MACHINES = {
    "pairwise": random_pairwise_energy(0, LABELS, BATCH, coupling=0.8),
    "coupled by example": random_pairwise_energy(1, LABELS, BATCH, coupling=0.8, per_example=True),
    "directed": random_directed_energy(0, LABELS, BATCH),
}


def known_of(energy, bridge):
    """Other labels known in other examples; of all of them, or of all but the last, the bridge."""
    known = torch.full((BATCH, LABELS), torch.nan, dtype=energy.dtype)
    known[: BATCH - 1, 12] = bridge
    known[0, 0], known[1, 1], known[2, 5], known[2, 4] = 1, 0, 1, 0
    return known


CASES = {
    f"{name}, {how}": (made(energy), known_of(energy, bridge) if bridge is not None else None)
    for name, energy in MACHINES.items()
    for how, made, bridge in (("torn", torn, None), ("torn and known", torn, 1), ("bridged", bridged, 0))
}


@pytest.fixture(autouse=True)
def nothing_is_enumerated_as_a_whole(monkeypatch):
    """Parts are; the searches of wholes find nothing soon."""
    sizes = dict.fromkeys(("kernel", "enumeration", "hinge", "narrow", "elimination"), 7)
    changed = replace(LIMITS, treewidth=1, soon_nodes=1, **sizes)
    monkeypatch.setattr(table, "LIMITS", changed)
    monkeypatch.setattr(answers, "LIMITS", changed)


@pytest.fixture
def is_split(monkeypatch):
    """How many examples were taken apart."""
    counts = []

    def counted(*args, **kwargs):
        found, connected = parts.splits(*args, **kwargs)
        counts.append(sum(len(split.rows) for split in found))
        return found, connected

    monkeypatch.setattr(answers, "splits", counted)
    return lambda: max(counts, default=0)


@pytest.mark.parametrize("case", CASES)
def test_the_best_labelling_is_that_of_enumeration(case, is_split):
    energy, known = CASES[case]
    found, best = inference.decode(energy, known=known), exact.decode(energy, known=known)
    torch.testing.assert_close(found.objective, best.objective)
    assert torch.equal(found.labels, best.labels)
    assert found.status.exact.all()
    assert found.status.converged.all()
    torch.testing.assert_close(found.bound, best.objective)
    assert is_split() >= BATCH - 3


@pytest.mark.parametrize("case", CASES)
def test_the_least_hinge_loss_is_that_of_enumeration(case, is_split):
    energy, known = CASES[case]
    found = inference.decode_hinge(energy, 0.7, known=known)
    best = exact.decode_hinge(energy, 0.7, known=known)
    torch.testing.assert_close(found.objective, best.objective)
    assert found.status.exact.all()
    if "torn" in case:
        assert is_split() >= BATCH - 3


@pytest.mark.parametrize("case", CASES)
def test_sums_are_those_of_enumeration(case, is_split):
    energy, known = CASES[case]
    found, right = inference.marginals(energy, known=known), exact.marginals(energy, known=known)
    torch.testing.assert_close(found.labels, right.labels)
    torch.testing.assert_close(found.log_partition, right.log_partition)
    torch.testing.assert_close(inference.log_partition(energy, known=known), right.log_partition)
    assert found.status.exact.all()
    assert "of each independent part" in found.method
    assert is_split() >= BATCH - 1


@pytest.mark.parametrize("name", MACHINES)
def test_gradients_reach_all_that_is_summed(name):
    energy, known = torn(MACHINES[name]), known_of(MACHINES[name], 1)
    weights = "parents" if name == "directed" else "pairwise"

    def gradients(log_partition):
        tensors = [getattr(energy, each).clone().requires_grad_() for each in ("unary", weights)]
        own = replace(energy, **dict(zip(("unary", weights), tensors, strict=True)))
        return torch.autograd.grad(log_partition(own, known=known).sum(), tensors)

    coupled = getattr(energy, weights) != 0
    ours, right = gradients(inference.log_partition), gradients(exact.log_partition)
    torch.testing.assert_close(ours[0], right[0])
    # A coupling stands at two places, and which of them it is read from is nobody's concern.
    ours, right = (
        (table + table.mT if name != "directed" else table) * coupled for _, table in (ours, right)
    )
    torch.testing.assert_close(ours, right)


RULES = {
    "within blocks": ["label_0 -> label_2", "at_most(2, label_1, label_3, label_5, label_7)"],
    "of a block and a label": ["exactly_one(label_1, label_3, label_12)", "label_4 -> not label_13"],
    "that fix labels": ["label_12", "label_12 -> not label_6", "at_least(2, label_0, label_2, label_4)"],
}


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("case", CASES)
def test_under_rules_all_is_that_of_enumeration(case, rules, is_split):
    energy, known = CASES[case]
    constraints = Constraints.of(RULES[rules], NAMES)
    if rules == "that fix labels":
        known = None
    possible = constrained.restricted(energy, constraints)
    best = exact.decode(possible, known=known)
    found = inference.decode(energy, known=known, constraints=constraints)
    torch.testing.assert_close(found.objective, best.objective)
    assert torch.equal(found.labels, best.labels)
    assert found.status.exact.all()
    right = exact.marginals(possible, known=known)
    sums = inference.marginals(energy, known=known, constraints=constraints)
    torch.testing.assert_close(sums.labels, right.labels)
    torch.testing.assert_close(sums.log_partition, right.log_partition)
    log_partition = inference.log_partition(energy, known=known, constraints=constraints)
    torch.testing.assert_close(log_partition, right.log_partition)
    hinge = inference.decode_hinge(energy, 0.7, known=known, constraints=constraints)
    worse = constrained.decode_loss(
        energy, constraints, lambda one, known: exact.decode_hinge(one, 0.7, known=known), known=known
    )
    torch.testing.assert_close(hinge.objective, worse.objective)
    assert not constraints.violated(hinge.labels.numpy()).any()
    assert is_split()


@pytest.mark.parametrize("name", MACHINES)
def test_samples_are_of_all_parts(name, is_split):
    energy, known = torn(MACHINES[name]), known_of(MACHINES[name], 1)
    constraints = Constraints.of(RULES["within blocks"], NAMES)
    generator = torch.Generator().manual_seed(0)
    drawn = inference.sample(energy, 4000, constraints=constraints, known=known, generator=generator)
    assert not constraints.violated(drawn.flatten(0, 1).numpy()).any()
    right = exact.marginals(constrained.restricted(energy, constraints), known=known)
    torch.testing.assert_close(drawn.double().mean(0), right.labels, rtol=0, atol=0.04)
    fixed = ~known.isnan()
    assert (drawn[:, fixed] == known[fixed]).all()
    assert is_split() >= BATCH - 1


def test_a_part_that_is_limited_says_so(monkeypatch):
    energy = random_pairwise_energy(3, 48, 3, coupling=1.5)
    pairwise = energy.pairwise.clone()
    pairwise[:40, 40:], pairwise[40:, :40] = 0, 0
    energy = replace(energy, pairwise=pairwise)
    monkeypatch.undo()
    found = inference.decode(energy, node_limit=20)
    assert not (found.status.exact | found.status.converged).any()
    assert (found.bound > found.objective).all()
    torch.testing.assert_close(found.status.residual, found.bound - found.objective)
    assert (semidefinite.decode(energy).objective <= found.bound + 1e-9).all()


def test_rules_and_known_labels_that_contradict_each_other_are_named():
    energy = torn(MACHINES["pairwise"])
    rules = Constraints.of(["at_least(2, label_0, label_2, label_4)", "label_1 -> label_3"], NAMES)
    known = torch.full((BATCH, LABELS), torch.nan, dtype=energy.dtype)
    known[2, 0], known[2, 2] = 0, 0
    for routine in (inference.decode, inference.marginals, inference.log_partition, inference.decode_hinge):
        with pytest.raises(ValueError, match=r"known\[2\].*at_least"):
            routine(energy, known=known, constraints=rules)


def test_blocks_too_large_together_are_decided_and_counted_one_by_one():
    """200 labels in dense blocks of 10: what 100,000 nodes of a search of the whole do not prove."""
    block = random_pairwise_energy(5, 10, 3, coupling=2.0).pairwise
    pairwise = torch.block_diag(*[block] * 20)
    unary = torch.randn(3, 200, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    energy = PairwiseEnergy(unary, pairwise)
    parts = PairwiseEnergy(unary.reshape(60, 10), block)
    whole = undirected_branch_and_bound.decode(energy, node_limit=100_000)
    assert not whole.status.exact.any()
    start = process_time()
    found = inference.decode(energy, node_limit=2000)
    own = process_time() - start
    start = process_time()
    undirected_branch_and_bound.decode(energy, node_limit=100_000)
    assert own < process_time() - start
    best = exact.decode(parts)
    assert found.status.exact.all()
    torch.testing.assert_close(found.objective, best.objective.view(3, 20).sum(1))
    sums, right = inference.marginals(energy), exact.marginals(parts)
    torch.testing.assert_close(sums.labels, right.labels.view(3, 200))
    torch.testing.assert_close(sums.log_partition, right.log_partition.view(3, 20).sum(1))
