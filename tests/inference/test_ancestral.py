"""Samples and sampled marginals against enumeration, within their own standard errors."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies.directed import directed_energies, random_directed_energy, random_labels

from lmbm_torch.inference.enumeration import exact
from lmbm_torch.inference.sampling import ancestral

FORMS = {
    "shared parents": {},
    "parents per example": {"per_example": True},
    "cliques": {"num_cliques": 6},
    "cliques per example": {"num_cliques": 6, "per_example": True},
}


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_samples_have_the_distribution(form):
    energy = random_directed_energy(3, 5, 2, coupling=0.7, **form)
    samples = ancestral.sample(energy, 20_000, generator=seeded())
    number = (samples << torch.arange(4, -1, -1)).sum(-1)
    labellings = (torch.arange(32)[:, None, None] >> torch.arange(4, -1, -1)) & 1
    expected = 20_000 * energy.log_prob(labellings).exp()
    counts = torch.stack([torch.bincount(column, minlength=32) for column in number.T], 1)
    for count, mean in zip(counts.T, expected.T, strict=True):
        rare = mean < 5
        count = torch.cat([count[~rare], count[rare].sum(0, keepdim=True)])
        mean = torch.cat([mean[~rare], mean[rare].sum(0, keepdim=True)])
        # Pearson's statistic: at 31 degrees of freedom 86 is exceeded once in a million draws.
        assert ((count - mean) ** 2 / mean).sum() < 86


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_marginals_are_exact_within_their_standard_error(form):
    energy = random_directed_energy(5, 6, 4, **form)
    result = ancestral.marginals(energy, 4000, generator=seeded())
    truth = exact.marginals(energy).labels
    assert result.standard_error is not None
    assert ((result.labels - truth).abs() <= 5 * result.standard_error + 1e-12).all()
    first = energy.ordering[0]
    torch.testing.assert_close(result.labels[:, first], truth[:, first])
    assert (result.standard_error[:, first] < 1e-9).all()
    assert (result.standard_error.amax(1) > 1e-4).all()
    torch.testing.assert_close(result.status.residual, result.standard_error.amax(1))
    assert not result.status.exact.any()
    assert (result.status.num_iters == 4000).all()
    assert (result.log_partition == 0).all()


@pytest.mark.parametrize("per_example", [False, True])
def test_the_standard_error_is_that_of_repeated_runs(per_example):
    energy = random_directed_energy(7, 5, 2, coupling=0.5, per_example=per_example)
    runs = [ancestral.marginals(energy, 50, generator=seeded(seed)) for seed in range(400)]
    spread = torch.stack([run.labels for run in runs]).std(0)
    stated = torch.stack([run.standard_error for run in runs if run.standard_error is not None])
    later = energy.ordering[1:]
    torch.testing.assert_close(stated.square().mean(0).sqrt()[:, later], spread[:, later], rtol=0.2, atol=0)


def test_no_marginals_depend_on_the_rest_of_a_batch():
    energy = random_directed_energy(3, 40, 5, coupling=0.3)
    together = ancestral.marginals(energy, 100, generator=seeded())
    alone = ancestral.marginals(energy.select(slice(3, 4)), 100, generator=seeded())
    torch.testing.assert_close(together.labels[3:4], alone.labels, rtol=0, atol=0)


def test_conditional_probabilities_vary_less_than_bits():
    energy = random_directed_energy(7, 5, 2)
    result = ancestral.marginals(energy, 1000, generator=seeded())
    bits = ancestral.sample(energy, 1000, generator=seeded()).double()
    assert result.standard_error is not None
    assert (result.standard_error < bits.std(0) / 1000**0.5).all()


def test_chunks_are_merged(monkeypatch):
    # Shared parents have no chunks.
    energy = random_directed_energy(11, 4, 3, per_example=True)
    monkeypatch.setattr(ancestral, "CHUNK_BYTES", 7 * 3 * 4 * 8)
    chunked = ancestral.marginals(energy, 100, generator=seeded())
    assert len(ancestral.sample(energy, 100, generator=seeded())) == 100
    probabilities = torch.cat([drawn for drawn, _ in ancestral._draws(energy, 100, seeded())])
    assert len(probabilities) == 100
    at = energy.positions
    torch.testing.assert_close(chunked.labels, probabilities.mean(0)[:, at])
    torch.testing.assert_close(chunked.standard_error, probabilities.std(0)[:, at] / 10)


@given(directed_energies(dtypes=(torch.float64,)), st.integers(0, 2**32 - 1))
def test_fields_one_by_one_are_the_local_fields(energy, seed):
    ordered = energy.in_order()
    labels = random_labels(seed, energy)
    spins = 2 * labels.to(energy.dtype) - 1
    fields = [ancestral.next_field(ordered, spins[:, :t]) for t in range(energy.num_labels)]
    torch.testing.assert_close(torch.stack(fields, -1), ordered.local_fields(labels))


@pytest.mark.parametrize(("routine", "least"), [(ancestral.sample, 1), (ancestral.marginals, 2)])
def test_refuses_too_few_samples(routine, least):
    energy = random_directed_energy(0, 3)
    routine(energy, least)
    with pytest.raises(ValueError, match=r"^num_samples: expected"):
        routine(energy, least - 1)


def test_few_parents_are_read_alone_and_change_nothing(monkeypatch):
    energy = random_directed_energy(0, 30)
    kept = torch.rand(energy.parents.shape, generator=seeded()) < 0.1
    sparse = replace(energy, parents=energy.parents * kept)
    assert ancestral._few_parents(sparse.in_order()) is not None
    assert ancestral._few_parents(energy.in_order()) is None
    draws = []
    for share in (ancestral._FEW, 0.0):
        monkeypatch.setattr(ancestral, "_FEW", share)
        draws.append(ancestral.sample(sparse, 200, generator=seeded()))
    assert torch.equal(*draws)
