"""The search along edges visits the nodes of the search over all labels, and finds the same."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies.directed import directed_energies, energies_with_known

from lmbm_torch.energies import DirectedEnergy
from lmbm_torch.inference.search import branch_and_bound
from lmbm_torch.kernels.search import few_parents

SHARED = directed_energies(max_labels=8, max_batch=6, dtypes=(torch.float64,)).filter(
    lambda energy: energy.parents.ndim == 2 and not energy.cliques
)
DECODERS = (branch_and_bound.decode_hinge, branch_and_bound.decode)


def decoded_along_edges(decode, energy: DirectedEnergy, **options):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(few_parents, "LABELS", 0)
        patch.setattr(few_parents, "DENSITY", 1.0)
        return decode(energy, **options)


@pytest.mark.parametrize("decode", DECODERS)
@given(
    energies_with_known(SHARED),
    st.sampled_from((None, 0.5, 2.0)),
    st.sampled_from((None, 1, 10, 40)),
    st.integers(1, 5),
)
def test_both_make_the_same_search(decode, drawn, cutoff, node_limit, top_k):
    energy, known = drawn
    top_k = min(top_k, 2 ** int(known.isnan().sum(1).min()))
    options = {"cutoff": cutoff, "node_limit": node_limit, "known": known, "top_k": top_k}
    came, expected = decoded_along_edges(decode, energy, **options), decode(energy, **options)
    for name in ("labels", "nodes"):
        assert torch.equal(getattr(came, name), getattr(expected, name)), name
    assert torch.equal(came.status.converged, expected.status.converged)
    assert torch.equal(came.status.exact, expected.status.exact)
    torch.testing.assert_close(came.objective, expected.objective)
    torch.testing.assert_close(came.bound, expected.bound)


def many_labels(labels: int, batch: int = 3) -> DirectedEnergy:
    """Every label with three parents of its own choice, coupled so that greed does not suffice."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.rand(labels, labels, generator=generator, dtype=torch.float64)
    is_parent = drawn.tril(-1) >= drawn.tril(-1).sort(1).values[:, [-3]].clamp(min=1e-9)
    weight = 0.4 * torch.randn(labels, labels, generator=generator, dtype=torch.float64)
    unary = torch.randn(batch, labels, generator=generator, dtype=torch.float64)
    return DirectedEnergy(unary, weight * is_parent, torch.arange(labels))


@pytest.mark.parametrize("size", [few_parents.LABELS - 1, few_parents.LABELS])
def test_its_loss_is_that_of_its_labels_and_above_its_bound(size):
    energy = many_labels(size)
    found = branch_and_bound.decode_hinge(energy, node_limit=5000)
    loss = (1 - energy.local_margins(found.labels)).clamp(min=0).sum(1)
    torch.testing.assert_close(found.objective, loss)
    assert (found.bound <= found.objective).all()
    assert (found.nodes <= 5000).all()
    flipped = torch.stack([found.labels] * size)
    flipped[torch.arange(size), :, torch.arange(size)] ^= 1
    losses = torch.stack([(1 - energy.local_margins(each)).clamp(min=0).sum(1) for each in flipped])
    assert (losses >= found.bound).all()


def test_it_serves_what_has_many_labels_and_few_parents(monkeypatch):
    served = []
    real = few_parents.search_rows
    monkeypatch.setattr(few_parents, "search_rows", lambda *args: served.append(True) or real(*args))
    branch_and_bound.decode_hinge(many_labels(few_parents.LABELS), node_limit=1000)
    assert served
    served.clear()
    branch_and_bound.decode_hinge(many_labels(few_parents.LABELS - 1), node_limit=1000)
    assert not served
