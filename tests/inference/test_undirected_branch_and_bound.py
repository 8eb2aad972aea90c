"""Branch and bound on Boltzmann machines against enumeration."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from strategies.directed import random_known
from strategies.pairwise import random_pairwise_energy, renamed

from lmbm_torch.energies import PairwiseEnergy
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.inference.search import undirected_branch_and_bound

DECODERS = (
    (undirected_branch_and_bound.decode, exact.decode, 1),
    (undirected_branch_and_bound.decode_hinge, exact.decode_hinge, -1),
)
FORMS = (
    {"coupling": 0.3},
    {"coupling": 1.0, "density": 0.4},
    {"coupling": 1.0, "per_example": True},
    {"coupling": 30.0, "density": 0.7, "per_example": True},
)


def assert_agrees(came, expected):
    """The same optimum, proven."""
    assert came.status.exact.all()
    assert came.status.converged.all()
    torch.testing.assert_close(came.objective, expected.objective, rtol=1e-9, atol=1e-9)
    assert torch.equal(came.bound, came.objective)


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize(("decode", "enumerate_all", "sign"), DECODERS)
def test_equals_enumeration_on_five_hundred_problems(seed, decode, enumerate_all, sign):
    energy = random_pairwise_energy(seed, 1 + seed % 12, 20, **FORMS[seed % len(FORMS)])
    known = random_known(seed, energy, 0.3)
    for given in (None, known):
        came = decode(energy, known=given)
        assert_agrees(came, enumerate_all(energy, known=given))
        assert torch.equal(came.labels, enumerate_all(energy, known=given).labels)
    assert (came.labels[~known.isnan()] == known[~known.isnan()]).all()


@pytest.mark.parametrize(("decode", "enumerate_all", "sign"), DECODERS)
def test_labels_are_worth_what_is_said_of_them(decode, enumerate_all, sign):
    energy = random_pairwise_energy(3, 9, 10, per_example=True)
    came = decode(energy)
    hinge = (1 - energy.local_margins(came.labels)).clamp(min=0).sum(-1)
    torch.testing.assert_close(came.objective, energy.score(came.labels) if sign == 1 else hinge)


@pytest.mark.parametrize("node_limit", [1, 9, 30, 100])
@pytest.mark.parametrize(("decode", "enumerate_all", "sign"), DECODERS)
def test_a_node_limit_leaves_a_bound(node_limit, decode, enumerate_all, sign):
    energy = random_pairwise_energy(0, 10, 30, coupling=0.5)
    came, best = decode(energy, node_limit=node_limit), sign * enumerate_all(energy).objective
    # Those of the last node's labels, each tried both ways until none is settled any more.
    assert (came.nodes < node_limit + 2 * 10**2).all()
    assert (sign * came.objective <= best + 1e-9).all()
    assert (sign * came.bound >= best - 1e-9).all()
    torch.testing.assert_close(came.status.residual, (came.bound - came.objective).abs())
    assert torch.equal(came.status.exact, came.bound == came.objective)
    assert came.status.exact[came.status.converged].all()
    assert came.status.converged[came.nodes < node_limit].all()


@pytest.mark.parametrize(("decode", "enumerate_all", "sign"), DECODERS)
def test_nodes_grow_exponentially_with_the_labels(decode, enumerate_all, sign):
    nodes = [
        decode(random_pairwise_energy(0, labels, 50, coupling=0.3)).nodes.double().mean()
        for labels in (6, 10, 14)
    ]
    assert nodes[1] > 2 * nodes[0]
    assert nodes[2] > 2 * nodes[1]


@pytest.mark.parametrize(("decode", "enumerate_all", "sign"), DECODERS)
def test_each_example_has_a_search_and_a_scale_of_its_own(decode, enumerate_all, sign):
    energy = random_pairwise_energy(5, 8, 4, per_example=True)
    scale = torch.tensor([1e-9, 1.0, 1e3, 1e9]).double()
    mixed = PairwiseEnergy(
        energy.unary * scale[:, None], energy.pairwise * scale[:, None, None], energy.constant * scale
    )
    together = decode(mixed)
    for row in range(4):
        alone = decode(mixed.select(slice(row, row + 1)))
        assert torch.equal(alone.labels[0], together.labels[row])
        assert torch.equal(alone.nodes[0], together.nodes[row])
    assert_agrees(together, enumerate_all(mixed))


@pytest.mark.parametrize(("decode", "enumerate_all", "sign"), DECODERS)
def test_float32(decode, enumerate_all, sign):
    energy = random_pairwise_energy(7, 8, 6, dtype=torch.float32)
    came = decode(energy)
    assert came.objective.dtype == came.bound.dtype == came.status.residual.dtype == torch.float32
    torch.testing.assert_close(came.objective, enumerate_all(energy).objective)
    assert came.status.exact.all()


@pytest.mark.parametrize(("decode", "enumerate_all", "sign"), DECODERS)
def test_renamed_labels_are_decided_alike(decode, enumerate_all, sign):
    # So weak that no two labellings lose nothing: names decide between those that tie.
    energy = random_pairwise_energy(1, 9, 5, coupling=0.1)
    order = torch.randperm(9, generator=torch.Generator().manual_seed(0))
    came, other = decode(energy), decode(renamed(energy, order))
    assert torch.equal(other.labels, came.labels[:, order])
    torch.testing.assert_close(other.objective, came.objective)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("coupling", [1e-3, 0.1, 1.0, 100.0])
@pytest.mark.parametrize(("decode", "enumerate_all", "sign"), DECODERS)
def test_bounds_hold_from_the_root_on(decode, enumerate_all, sign, coupling, dtype):
    energy = random_pairwise_energy(4, 10, 40, coupling=coupling, per_example=True, dtype=dtype)
    best = sign * enumerate_all(energy).objective.double()
    slack = 1e-5 if dtype == torch.float32 else 1e-11
    for node_limit in (1, 25, 60):
        came = decode(energy, node_limit=node_limit)
        assert (sign * came.bound >= best - slack * (1 + coupling * 10)).all()
        assert (sign * came.objective <= best + slack * (1 + coupling * 10)).all()
    if coupling == 1e-3:
        # Evidence alone decides, and the root's bound knows.
        assert decode(energy, node_limit=1).status.exact.float().mean() > 0.9


@pytest.mark.parametrize(("decode", "enumerate_all", "sign"), DECODERS)
def test_of_labellings_that_tie_the_first_is_found(decode, enumerate_all, sign):
    # Small whole numbers: many labellings tie, all sums are exact.
    generator = torch.Generator().manual_seed(0)
    unary = torch.randint(-1, 2, (200, 7), generator=generator).double()
    upper = torch.randint(-1, 2, (200, 7, 7), generator=generator).double().triu(1)
    energy = PairwiseEnergy(unary, upper + upper.mT)
    expected = enumerate_all(energy)
    assert torch.equal(decode(energy).labels, expected.labels)
    assert (enumerate_all(energy, top_k=2).objective.diff().abs() < 1e-9).any(1).double().mean() > 0.1
    for row in (0, 7):
        assert torch.equal(decode(energy.select(slice(row, row + 1))).labels[0], expected.labels[row])


def test_the_margin_counts():
    energy = random_pairwise_energy(2, 7, 10)
    labels = []
    for margin in (0.1, 2.0, 5.0):
        came = undirected_branch_and_bound.decode_hinge(energy, margin)
        assert_agrees(came, exact.decode_hinge(energy, margin))
        labels.append(came.labels)
    assert not torch.equal(labels[0], labels[1])
    assert not torch.equal(labels[1], labels[2])


@pytest.mark.parametrize(("decode", "enumerate_all", "sign"), DECODERS)
def test_nothing_to_decide_by(decode, enumerate_all, sign):
    energy = PairwiseEnergy(torch.zeros(2, 3), torch.zeros(3, 3), torch.tensor([1.0, -2.0]))
    assert_agrees(decode(energy), enumerate_all(energy))


@pytest.mark.parametrize(("decode", "enumerate_all", "sign"), DECODERS)
def test_refuses_what_it_cannot_use(decode, enumerate_all, sign):
    energy = random_pairwise_energy(0, 4)
    with pytest.raises(ValueError, match=r"^unary: expected finite values"):
        decode(replace(energy, unary=energy.unary * torch.nan))
    with pytest.raises(ValueError, match=r"^pairwise: expected a symmetric matrix"):
        decode(replace(energy, pairwise=energy.pairwise.triu()))
    with pytest.raises(ValueError, match=r"^node_limit: expected"):
        decode(energy, node_limit=0)
    with pytest.raises(ValueError, match=r"^known: expected"):
        decode(energy, known=torch.full((3, 4), 0.5))


@pytest.mark.parametrize("margin", [0.0, -1.0, float("nan"), float("inf")])
def test_refuses_a_margin_that_is_not_positive(margin):
    with pytest.raises(ValueError, match=r"^margin: expected"):
        undirected_branch_and_bound.decode_hinge(random_pairwise_energy(0, 3), margin)
