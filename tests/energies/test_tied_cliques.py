"""Cliques as users name them, what ties them, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from strategies.pairwise import all_labellings

from lmbm_torch.energies import Clause, CliqueEnergy, TiedCliques, from_markov_logic


def test_cliques_are_free_and_plain_unless_said_otherwise():
    tied = TiedCliques(3, ((0, 1), (2,), (0, 1)))
    assert tied.groups == (0, 1, 2)
    assert tied.coefficients == (1.0, 1.0, 1.0)
    assert tied.columns == (None, None, None)
    assert tied.num_weights == 3
    assert tied.largest == 2


def test_a_weight_couples_if_one_of_its_cliques_does():
    tied = TiedCliques(4, ((0,), (1, 2), (3,), (0, 1, 2), (3,)), groups=(0, 1, 1, 2, 3))
    np.testing.assert_array_equal(tied.couples, [False, True, True, False])
    assert tied.num_weights == 4
    assert tied.largest == 3


def test_no_clique_at_all():
    tied = TiedCliques.of(2, ())
    assert (tied.num_weights, tied.largest, tied.couples.tolist()) == (0, 0, [])


def test_names_of_cliques():
    assert TiedCliques.of(3, "pairwise").cliques == ((0, 1), (0, 2), (1, 2))
    named = TiedCliques.of(3, [[0, 2], [1]], groups=[0, 0], columns=[None, 4])
    assert named == TiedCliques(3, ((0, 2), (1,)), (0, 0), columns=(None, 4))
    assert TiedCliques.of(3, named) is named


@pytest.mark.parametrize(
    "clauses",
    [
        [Clause((0,), (1,)), Clause((1,), (2,)), Clause((0, 1, 2), formula=1), Clause((), (2,), 2)],
        # One formula's parities that meet another's, an atom that stands twice, a clause that is always true.
        [Clause((0, 0), (1,)), Clause((1,), (0,), 1), Clause((2,), (2,)), Clause((2, 1), formula=1)],
    ],
)
def test_a_formula_scores_its_true_groundings_up_to_a_constant(clauses):
    tied = TiedCliques.from_markov_logic(clauses, 3)
    weights = torch.linspace(-1, 2, tied.num_weights, dtype=torch.float64)
    coefficients = torch.tensor(tied.coefficients, dtype=torch.float64)
    energy = CliqueEnergy(tied.cliques, weights[list(tied.groups)] * coefficients, num_labels=3)
    grounded = from_markov_logic(clauses, weights, 3)
    labels = all_labellings(3)
    difference = grounded.score(labels) - energy.score(labels)
    torch.testing.assert_close(difference, grounded.constant.expand_as(difference))
    assert not torch.allclose(energy.score(labels), torch.zeros_like(difference))


@pytest.mark.parametrize(
    ("message", "arguments"),
    [
        ("num_labels: expected", {"num_labels": 0}),
        ("cliques: expected distinct labels below 3", {"cliques": ((0, 3),)}),
        ("cliques: expected distinct labels below 3", {"cliques": ((1, 1),)}),
        ("cliques: expected distinct labels below 3", {"cliques": ((),)}),
        ("groups: expected shape", {"groups": (0,)}),
        ("groups: expected all numbers from", {"groups": (0, 2)}),
        ("coefficients: expected shape", {"coefficients": (1.0,)}),
        ("coefficients: expected finite", {"coefficients": (1.0, np.nan)}),
        ("columns: expected None or", {"columns": (None, -1)}),
    ],
)
def test_construction_refuses(message, arguments):
    with pytest.raises(ValueError, match=message):
        TiedCliques(**{"num_labels": 3, "cliques": ((0, 1), (2,)), **arguments})


@pytest.mark.parametrize(
    ("message", "arguments"),
    [
        ("cliques: expected 'pairwise'", {"cliques": "chain"}),
        ("cliques: expected tied cliques of 3", {"cliques": TiedCliques(2, ((0, 1),))}),
        ("without further groups", {"cliques": TiedCliques(3, ((0, 1),)), "groups": (0,)}),
    ],
)
def test_names_that_are_refused(message, arguments):
    with pytest.raises(ValueError, match=message):
        TiedCliques.of(3, **arguments)


@pytest.mark.parametrize(
    ("message", "clauses"),
    [
        ("clauses: formulas", []),
        (r"can be false, got \[0\]", [Clause((0,), formula=1)]),
        (r"can be false, got \[0\]", [Clause((1,), (1,)), Clause((0,), formula=1)]),
        (r"can be false, got \[1\]", [Clause((0,)), Clause((1,), (1,), formula=1)]),
    ],
)
def test_formulas_that_learn_nothing_are_refused(message, clauses):
    with pytest.raises(ValueError, match=message):
        TiedCliques.from_markov_logic(clauses, 3)
