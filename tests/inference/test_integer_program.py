"""Mixed-integer programming against enumeration."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies.directed import random_known
from strategies.pairwise import clique_energies, pairwise_energies, random_pairwise_energy
from sweeps import thorough

from lmbm_torch.energies import CliqueEnergy
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.inference.relaxations import integer_program

DECODERS = ((integer_program.decode, exact.decode), (integer_program.decode_hinge, exact.decode_hinge))
FORMS = (
    {"coupling": 0.3},
    {"coupling": 1.0, "density": 0.4},
    {"coupling": 1.0, "per_example": True},
    {"coupling": 3.0, "density": 0.7, "per_example": True},
)


def assert_agrees(came, expected):
    """The same optimum, proven; its labels are worth what it says."""
    assert came.status.exact.all()
    assert came.status.converged.all()
    torch.testing.assert_close(came.objective, expected.objective, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(came.bound, expected.objective, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("seed", thorough(range(25), 8))
@pytest.mark.parametrize(("decode", "enumerate_all"), DECODERS)
def test_equals_enumeration_on_five_hundred_problems(seed, decode, enumerate_all):
    energy = random_pairwise_energy(seed, 1 + seed % 12, 20, **FORMS[seed % len(FORMS)])
    assert_agrees(decode(energy), enumerate_all(energy))


@given(clique_energies(max_order=6), st.integers(0, 2**32 - 1), st.booleans())
@pytest.mark.parametrize(("decode", "enumerate_all"), DECODERS)
def test_cliques_of_any_order_equal_enumeration(decode, enumerate_all, energy, seed, partly):
    known = random_known(seed, energy) if partly else None
    found, best = decode(energy, known=known), enumerate_all(energy, known=known)
    largest = 1 + float(energy.weight.abs().sum())
    assert found.status.exact.all()
    torch.testing.assert_close(found.objective, best.objective, rtol=0, atol=1e-6 * largest)
    torch.testing.assert_close(found.bound, best.objective, rtol=0, atol=1e-5 * largest)


@pytest.mark.parametrize("decode", [integer_program.decode, integer_program.decode_hinge])
def test_too_large_a_clique_is_refused(decode):
    with pytest.raises(ValueError, match=r"^cliques: expected at most 12 labels in each, got 13"):
        decode(CliqueEnergy((tuple(range(13)),), torch.ones(1)))


@pytest.mark.parametrize(("decode", "enumerate_all"), DECODERS)
def test_known_labels_are_kept(decode, enumerate_all):
    energy = random_pairwise_energy(0, 7, 6)
    known = random_known(1, energy)
    found = decode(energy, known=known)
    assert_agrees(found, enumerate_all(energy, known=known))
    assert (found.labels[~known.isnan()] == known[~known.isnan()]).all()
    with pytest.raises(ValueError, match=r"^known: expected"):
        decode(energy, known=torch.full((6, 7), 0.5))


# Scores this small are proven before the first node is searched.
@pytest.mark.parametrize(
    ("decode", "enumerate_all", "limit"),
    [
        (*DECODERS[0], {"time_limit": 1e-3}),
        (*DECODERS[1], {"time_limit": 1e-3}),
        (*DECODERS[1], {"node_limit": 1}),
    ],
)
def test_a_search_that_meets_its_limit_says_so(decode, enumerate_all, limit):
    energy = random_pairwise_energy(0, 20, 2, coupling=1.0, dtype=torch.float32)
    found, best = decode(energy, **limit), enumerate_all(energy)
    assert not found.status.converged.any()
    assert not found.status.exact.any()
    sign = 1 if decode is integer_program.decode else -1
    assert (sign * (found.bound - best.objective) >= -1e-4).all()
    assert (sign * (best.objective - found.objective) >= -1e-4).all()
    assert found.bound.isfinite().all()
    torch.testing.assert_close(found.status.residual, (found.bound - found.objective).abs())


@pytest.mark.parametrize(("decode", "enumerate_all"), DECODERS)
def test_a_search_that_ends_within_its_limits_is_proven(decode, enumerate_all):
    energy = random_pairwise_energy(3, 6, 4)
    assert_agrees(decode(energy, node_limit=10_000, time_limit=60.0), enumerate_all(energy))


@pytest.mark.parametrize("limit", [{"node_limit": 0}, {"time_limit": 0.0}])
@pytest.mark.parametrize("decode", [integer_program.decode, integer_program.decode_hinge])
def test_refuses_what_is_no_limit(decode, limit):
    (name,) = limit
    with pytest.raises(ValueError, match=rf"^{name}: expected"):
        decode(random_pairwise_energy(0, 3), **limit)


def test_scores_of_frustrated_models_are_proven_by_cycles_without_a_search():
    energy = random_pairwise_energy(0, 18, 3, coupling=0.25)
    found = integer_program.decode(energy)
    assert_agrees(found, exact.decode(energy))
    assert (found.nodes <= 1).all()


@given(pairwise_energies(max_labels=5, max_batch=2, dtypes=(torch.float32,)))
@settings(max_examples=10)
def test_float32(energy):
    found = integer_program.decode(energy)
    assert found.objective.dtype == found.bound.dtype == found.status.residual.dtype == torch.float32
    torch.testing.assert_close(found.objective, energy.score(found.labels), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.objective, exact.decode(energy).objective, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("scale", [1e-9, 1e9])
def test_weights_of_any_size(scale):
    energy = random_pairwise_energy(0, 6)
    scaled = replace(
        energy, unary=scale * energy.unary, pairwise=scale * energy.pairwise, constant=scale * energy.constant
    )
    expected = exact.decode(energy).labels
    assert integer_program.decode(scaled).labels.equal(expected)
    losses = integer_program.decode_hinge(scaled, scale).objective
    torch.testing.assert_close(losses, scale * exact.decode_hinge(energy).objective)


def test_the_margin_counts():
    energy = random_pairwise_energy(2, 6)
    for margin in (0.1, 5.0):
        assert_agrees(integer_program.decode_hinge(energy, margin), exact.decode_hinge(energy, margin))


@pytest.mark.parametrize("decode", [integer_program.decode, integer_program.decode_hinge])
def test_refuses_what_is_no_energy(decode):
    energy = random_pairwise_energy(0, 3)
    with pytest.raises(ValueError, match=r"^unary: expected finite values"):
        decode(replace(energy, unary=energy.unary * torch.nan))
    with pytest.raises(ValueError, match=r"^pairwise: expected a symmetric matrix"):
        decode(replace(energy, pairwise=energy.pairwise.triu()))


@pytest.mark.parametrize("margin", [0.0, -1.0, float("nan"), float("inf")])
def test_refuses_a_margin_that_is_not_positive(margin):
    with pytest.raises(ValueError, match=r"^margin: expected"):
        integer_program.decode_hinge(random_pairwise_energy(0, 3), margin)


def test_losses_of_ordinary_weights_beside_a_huge_one_are_feasible():
    # HiGHS drops what is small beside the field of label 1, and known labels pay the largest losses.
    cliques = (
        (4, 3),
        (2, 3, 5, 0),
        (0, 3, 4),
        (5, 3),
        (1, 6, 3, 4, 5),
        (2, 0, 4, 1, 6),
        *((i,) for i in range(7)),
    )
    shared = [0.027, -0.13, 0.0089, -1e-7, -0.018, 0.036]
    energy = CliqueEnergy(
        cliques, torch.tensor([[*shared, -1e-9, 1e8, 0.0, -1.0, -100.0, -0.5, 1.6]], dtype=torch.float64)
    )
    known = torch.tensor([[torch.nan, 1.0, 0.0, torch.nan, 1.0, 1.0, torch.nan]], dtype=torch.float64)
    found = integer_program.decode_hinge(energy, 20.0, known=known)
    best = exact.decode_hinge(energy, 20.0, known=known)
    torch.testing.assert_close(found.objective, best.objective)
