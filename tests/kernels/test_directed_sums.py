"""The compiled sums over prefixes of directed models are those of the enumeration of all labellings."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies.directed import directed_energies
from torch import Tensor

from lmbm_torch.energies import DirectedEnergy
from lmbm_torch.inference.common.results import Marginals
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.inference.enumeration import kernels as pairwise_enumeration

WITHOUT_CLIQUES = directed_energies(max_labels=7, max_batch=20, dtypes=(torch.float64, torch.float32)).filter(
    lambda energy: not energy.cliques
)


def with_least(labels: int, energy: DirectedEnergy, known: Tensor | None = None) -> Marginals:
    """The marginals where the kernel takes so many labels or more."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pairwise_enumeration, "LEAST_LABELS", labels)
        return exact.marginals(energy, known=known)


def network(labels: int, strength: float, dtype: torch.dtype = torch.float64) -> DirectedEnergy:
    generator = torch.Generator().manual_seed(labels)
    unary, parents = (torch.randn(*size, labels, generator=generator) for size in ((3,), (labels,)))
    return DirectedEnergy(
        (strength * unary).to(dtype), (strength * parents).tril(-1).to(dtype), torch.arange(labels)
    )


@given(WITHOUT_CLIQUES)
def test_they_are_those_of_enumeration(energy):
    found, expected = with_least(1, energy), with_least(99, energy)
    torch.testing.assert_close(found.labels, expected.labels)
    torch.testing.assert_close(found.log_partition, expected.log_partition, atol=1e-5, rtol=0)
    assert torch.equal(found.status.num_iters, expected.status.num_iters)
    assert found.status.exact.all()


@pytest.mark.parametrize("strength", [0.0, 0.3, 3.0, 1e4])
def test_many_labels_are_summed_to_the_last_digits(strength):
    energy = network(13, strength)
    torch.testing.assert_close(
        with_least(1, energy).labels, with_least(99, energy).labels, atol=1e-13, rtol=0
    )


def test_single_precision_is_rounded_once():
    energy = network(14, 0.5, torch.float32)
    double = exact.marginals(DirectedEnergy(energy.unary.double(), energy.parents.double(), energy.ordering))
    assert torch.equal(exact.marginals(energy).labels, double.labels.float())


def test_what_it_does_not_suit_is_enumerated(monkeypatch):
    few, many = network(10, 0.3), network(11, 0.3)
    assert pairwise_enumeration.marginals(few) is None
    assert pairwise_enumeration.marginals(many) is not None
    with_cliques = DirectedEnergy(
        many.unary, many.parents, many.ordering, ((0, 1, 2),), torch.ones(1).double()
    )
    assert pairwise_enumeration.marginals(with_cliques) is None
    monkeypatch.setattr(pairwise_enumeration, "compiled", lambda *_: None)
    assert pairwise_enumeration.marginals(many) is None


def test_values_are_checked_before():
    energy = network(12, 0.3)
    with pytest.raises(ValueError, match="NaN"):
        exact.marginals(DirectedEnergy(energy.unary * torch.nan, energy.parents, energy.ordering))
    with pytest.raises(ValueError, match="expected at most 22 free labels"):
        exact.marginals(network(23, 0.3))


@given(WITHOUT_CLIQUES, st.data())
def test_they_are_those_of_enumeration_given_what_is_known(energy, data):
    rows = st.lists(
        st.sampled_from([0.0, 1.0, torch.nan]), min_size=energy.num_labels, max_size=energy.num_labels
    )
    known = torch.tensor([data.draw(rows) for _ in range(energy.batch_size)]).to(energy.dtype)
    found, expected = (with_least(labels, energy, known) for labels in (1, 99))
    torch.testing.assert_close(found.labels, expected.labels)
    torch.testing.assert_close(found.log_partition, expected.log_partition)
    assert torch.equal(found.status.num_iters, expected.status.num_iters)


@pytest.mark.parametrize("strength", [0.0, 0.3, 3.0])
def test_what_is_known_and_improbable_is_summed_to_the_last_digits(strength):
    energy = network(13, strength)
    energy.unary[:, 3:6] = 15.0
    known = torch.full_like(energy.unary, torch.nan)
    known[:, 3:6], known[1:, 0], known[2, 12] = 0.0, 1.0, 0.0
    found, expected = (with_least(labels, energy, known) for labels in (1, 99))
    assert (found.log_partition < -60).all()
    assert pairwise_enumeration.marginals(energy, known) is not None
    torch.testing.assert_close(found.labels, expected.labels, atol=1e-12, rtol=0)
    torch.testing.assert_close(found.log_partition, expected.log_partition)


def test_what_is_too_improbable_for_sums_is_left_to_logarithms():
    energy = network(12, 300.0)
    best = exact.decode(energy).labels.double()
    assert pairwise_enumeration.marginals(energy, best) is not None
    assert pairwise_enumeration.marginals(energy, 1 - best) is None
