"""The compiled search for likely labellings finds those of passes over tensors, and those of enumeration."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies.directed import random_directed_energy

from lmbm_torch.energies import DirectedEnergy
from lmbm_torch.inference.common.results import LikelyLabellings
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.inference.search import most_probable


def by_tensors(energy: DirectedEnergy, **settings) -> LikelyLabellings:
    """The reference's answer."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(most_probable, "compiled", lambda *_: None)
        return most_probable.labellings(energy, **settings)


def network(labels: int, unary: float, coupling: float, batch: int = 3) -> DirectedEnergy:
    generator = torch.Generator().manual_seed(labels)
    fields = torch.randn(batch, labels, dtype=torch.float64, generator=generator)
    parents = torch.randn(labels, labels, dtype=torch.float64, generator=generator)
    order = torch.randperm(labels, generator=generator)
    weights = torch.zeros_like(parents)
    weights[order[:, None], order] = coupling / labels**0.5 * parents.tril(-1)
    return DirectedEnergy(unary * fields, weights, order)


def assert_same(found: LikelyLabellings, expected: LikelyLabellings) -> None:
    torch.testing.assert_close(found.probability, expected.probability, rtol=1e-6, atol=1e-12)
    torch.testing.assert_close(found.mass_left, expected.mass_left, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(found.log_known, expected.log_known, rtol=1e-6, atol=1e-9)
    for name in ("exact", "converged", "num_iters"):
        assert torch.equal(getattr(found.status, name), getattr(expected.status, name))
    # Labellings of one probability are told apart by rounding.
    same = (found.labels == expected.labels).all(-1)
    assert same.double().mean() > 0.95


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    labels=st.integers(1, 8),
    cliques=st.integers(0, 3),
    per_example=st.booleans(),
    sharpness=st.sampled_from([0.1, 1.0, 5.0]),
    mass_left=st.sampled_from([0.0, 0.01, 0.3]),
    limit=st.sampled_from([1, 5, 30, 1000]),
    some_known=st.booleans(),
)
def test_it_finds_what_passes_over_tensors_find(
    seed, labels, cliques, per_example, sharpness, mass_left, limit, some_known
):
    energy = random_directed_energy(
        seed, labels, num_cliques=cliques if labels > 3 else 0, per_example=per_example
    )
    energy = replace(energy, unary=sharpness * energy.unary, parents=sharpness * energy.parents)
    known = torch.full_like(energy.unary, torch.nan)
    known[:, seed % labels] = seed % 2
    limits = {
        "known": known if some_known else None,
        "mass_left": mass_left,
        "max_labellings": limit,
    }
    found = most_probable.labellings(energy, **limits)
    assert_same(found, by_tensors(energy, **limits))
    # Against enumeration, of what agrees with the known labels.
    agreeing = exact.decode(energy, known=limits["known"], top_k=2 ** (labels - some_known))
    every = agreeing.objective.view(len(found.labels), -1).double().exp()
    every = every / every.sum(1, keepdim=True)
    count = min(found.probability.shape[1], every.shape[1])
    real = found.probability[:, :count] > 0
    if limit == 1000:
        assert (found.mass_left <= mass_left).all()
        if not some_known:
            torch.testing.assert_close(found.probability[:, :count][real], every[:, :count][real])


@pytest.mark.parametrize(
    ("labels", "unary", "coupling"), [(30, 0.3, 0.3), (61, 2.0, 1.0), (61, 0.3, 0.3), (130, 3.0, 2.0)]
)
@pytest.mark.parametrize("mass_left", [0.01, 0.3])
def test_many_labels_in_several_words_and_passes_that_are_cut(labels, unary, coupling, mass_left):
    energy = network(labels, unary, coupling)
    limits = {"mass_left": mass_left, "max_labellings": 300}
    found = most_probable.labellings(energy, **limits)
    assert_same(found, by_tensors(energy, **limits))
    # Probabilities, given that these and what is left are all, are those of the model.
    own = energy.log_prob(found.labels.movedim(1, 0)).exp().mT
    real = found.probability > 0
    torch.testing.assert_close(own[real], found.probability[real], rtol=1e-6, atol=0)


def test_probabilities_beyond_the_range_of_floats_are_told_apart():
    energy = network(1200, 0.3, 0.1, batch=2)
    limits = {"mass_left": 0.3, "max_labellings": 50}
    found = most_probable.labellings(energy, **limits)
    assert energy.log_prob(found.labels[:, 0]).max() < -300
    assert_same(found, by_tensors(energy, **limits))


@pytest.mark.parametrize("search", [most_probable.labellings, by_tensors])
def test_what_is_nearly_impossible_ends(search):
    unary = torch.tensor([[0.3, 500.0, 500.0]]).double()
    energy = DirectedEnergy(unary, torch.zeros(3, 3).double(), torch.arange(3))
    known = torch.tensor([[torch.nan, 0.0, torch.nan]]).double()
    found = search(energy, known=known, mass_left=0.1, max_labellings=30)
    assert not found.status.converged.any()
    assert found.mass_left == 1


def test_other_precisions_are_searched_in_double():
    energy = network(20, 1.0, 1.0)
    single = energy.to(torch.float32)
    found, expected = most_probable.labellings(single), by_tensors(single)
    assert found.probability.dtype == torch.float32
    assert_same(found, expected)


@pytest.mark.parametrize("limit", [5, 300])
def test_shares_are_of_what_is_known_however_improbable(limit):
    energy = network(8, 0.5, 0.5)
    energy.unary[:, energy.ordering[2]] = 130.0
    known = torch.full_like(energy.unary, torch.nan)
    known[:, energy.ordering[2]] = 0.0
    limits = {"known": known, "mass_left": 0.01, "max_labellings": limit}
    found = most_probable.labellings(energy, **limits)
    assert (found.log_known < -250).all()
    assert (found.mass_left < (1 if limit == 5 else 0.01)).all()
    assert_same(found, by_tensors(energy, **limits))
