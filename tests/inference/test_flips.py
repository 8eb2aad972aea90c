"""Flips of single labels: labellings that none betters, as far as they can know."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from strategies.directed import random_known
from strategies.pairwise import random_pairwise_energy

from lmbm_torch.energies import PairwiseEnergy
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.inference.search.undirected_branch_and_bound import decode_by_flips, undirected_problem
from lmbm_torch.kernels.search.compiled import undirected as compiled
from lmbm_torch.kernels.search.plain import undirected as plain

drawn = partial(random_pairwise_energy, per_example=True)


@pytest.mark.parametrize("strength", [0.1, 1.0, 30.0])
@pytest.mark.parametrize("given", [False, True])
def test_no_flip_of_a_free_label_raises_the_score(strength, given):
    energy = drawn(1, 9, 40, coupling=strength)
    known = random_known(2, energy, 0.3) if given else None
    found = decode_by_flips(energy, known=known)
    assert torch.equal(found.objective, energy.score(found.labels))
    for label in range(9):
        other = found.labels.clone()
        other[:, label] = 1 - other[:, label]
        gain = energy.score(other) - found.objective
        free = torch.ones(40, dtype=torch.bool) if known is None else known[:, label].isnan()
        assert (gain[free] <= 1e-9 * found.bound[free]).all()
    if known is not None:
        assert (found.labels[~known.isnan()] == known[~known.isnan()]).all()
    best = exact.decode(energy, known=known)
    assert (found.objective <= best.objective + 1e-9).all()
    assert (best.objective <= found.bound + 1e-9).all()
    assert (found.objective >= best.objective - 1e-9).double().mean() > 0.75


def test_the_bound_is_tight_where_labels_do_not_depend_on_each_other():
    energy = drawn(0, 6, 40, coupling=0.0)
    found = decode_by_flips(energy)
    assert torch.equal(found.labels, (energy.unary > 0).long())
    torch.testing.assert_close(found.bound, found.objective, rtol=1e-12, atol=0)


@pytest.mark.parametrize("strength", [0.1, 1.0, 30.0])
def test_compiled_flips_are_those_of_the_plain_ones_however_many_rows(strength):
    energy = drawn(3, 12, 70, coupling=strength)
    problem = undirected_problem(energy, random_known(4, energy, 0.3))
    expected = plain.raised_scores(problem)
    assert (compiled.raised_scores(problem) == expected).all()
    alone = [decode_by_flips(energy.select(torch.tensor([row]))).labels for row in range(70)]
    assert torch.equal(torch.cat(alone), decode_by_flips(energy).labels)


def test_what_is_no_number_is_refused():
    energy = drawn(0, 3, 40)
    with pytest.raises(ValueError, match="unary"):
        decode_by_flips(PairwiseEnergy(energy.unary * float("nan"), energy.pairwise))
