"""Beam search against enumeration and against a plain greedy loop."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies.directed import directed_energies, energies_with_known, random_directed_energy

from lmbm_torch.energies import DirectedEnergy
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.inference.search import beam_search

DOUBLE = directed_energies(max_labels=6, dtypes=(torch.float64,))


@given(energies_with_known(DOUBLE))
def test_width_one_asks_each_label_once(drawn):
    energy, known = drawn
    labels = known.nan_to_num().clone()
    for label in energy.ordering.tolist():
        asked = (energy.local_fields(labels)[:, label] >= 0).to(labels.dtype)
        labels[:, label] = asked.where(known[:, label].isnan(), known[:, label])
    for found in (beam_search.decode(energy, known=known), beam_search.decode_hinge(energy, known=known)):
        assert found.labels.tolist() == labels.tolist()


@given(energies_with_known(DOUBLE), st.integers(1, 9), st.sampled_from((0.5, 1.0, 4.0)))
def test_objectives_bounds_and_certificates_are_true(drawn, width, margin):
    energy, known = drawn
    found, best = beam_search.decode(energy, width, known=known), exact.decode(energy, known=known)
    torch.testing.assert_close(found.objective, energy.log_prob(found.labels))
    assert (found.objective <= best.objective + 1e-6).all()
    assert (found.bound >= best.objective - 1e-6).all()
    torch.testing.assert_close(found.objective[found.status.exact], best.objective[found.status.exact])

    found = beam_search.decode_hinge(energy, margin, width, known=known)
    best = exact.decode_hinge(energy, margin, known=known)
    loss = (margin - energy.local_margins(found.labels)).clamp(min=0).sum(-1)
    torch.testing.assert_close(found.objective, loss)
    assert (found.objective >= best.objective - 1e-9).all()
    assert (found.bound <= best.objective + 1e-9).all()
    torch.testing.assert_close(found.objective[found.status.exact], best.objective[found.status.exact])
    torch.testing.assert_close(found.status.residual, found.objective - found.bound)

    given = ~known.isnan()
    assert found.labels[given].tolist() == known[given].tolist()


@given(energies_with_known(DOUBLE))
def test_a_beam_of_all_labellings_is_exact(drawn):
    energy, known = drawn
    found = beam_search.decode_hinge(energy, width=2**energy.num_labels, known=known)
    assert found.status.exact.all()
    torch.testing.assert_close(found.bound, found.objective)
    torch.testing.assert_close(found.objective, exact.decode_hinge(energy, known=known).objective)


def test_a_tie_goes_to_one():
    energy = DirectedEnergy(torch.zeros(1, 3), torch.zeros(3, 3), torch.arange(3))
    assert beam_search.decode(energy).labels.tolist() == [[1, 1, 1]]
    assert beam_search.decode_hinge(energy, width=4).labels.tolist() == [[1, 1, 1]]


def test_nodes_are_the_prefixes_that_were_continued():
    energy = random_directed_energy(0, 4)
    assert beam_search.decode(energy).nodes.tolist() == [4] * 3
    assert beam_search.decode(energy, 3).nodes.tolist() == [1 + 2 + 3 + 3] * 3
    assert beam_search.decode(energy, 100).nodes.tolist() == [1 + 2 + 4 + 8] * 3
    first_known = torch.full((3, 4), torch.nan).double()
    first_known[1, energy.ordering[0]] = 1
    assert beam_search.decode(energy, 100, known=first_known).nodes.tolist() == [15, 1 + 1 + 2 + 4, 15]


def test_an_easy_example_is_certified_and_a_hard_one_is_not():
    # Label 0 says 1, weakly; label 1 then has to disagree with its own, strong evidence.
    unary = torch.tensor([[0.1, -5.0], [3.0, 3.0]])
    parents = torch.tensor([[0.0, 0.0], [4.9, 0.0]])
    energy = DirectedEnergy(unary, parents, torch.arange(2))
    greedy = beam_search.decode_hinge(energy)
    assert greedy.status.exact.tolist() == [False, True]
    assert greedy.labels.tolist() == [[1, 0], [1, 1]]
    torch.testing.assert_close(greedy.bound, torch.tensor([1.1, 0.0]))
    wide = beam_search.decode_hinge(energy, width=2)
    assert wide.labels.tolist() == [[0, 0], [1, 1]]
    assert wide.status.exact.all()


@pytest.mark.usefixtures("no_shape_checks")
@pytest.mark.parametrize("width", [0, -1, 1.0, True])
def test_refuses_widths_that_are_no_counts(width):
    with pytest.raises(ValueError, match=r"^width: expected"):
        beam_search.decode(random_directed_energy(0, 3), width)


@pytest.mark.parametrize("margin", [0.0, -1.0, float("nan"), float("inf")])
def test_refuses_a_margin_that_is_not_positive(margin):
    with pytest.raises(ValueError, match=r"^margin: expected"):
        beam_search.decode_hinge(random_directed_energy(0, 3), margin)
