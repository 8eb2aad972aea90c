"""Routines with their settings, what they take and what they return go to other processes."""

from __future__ import annotations

import pickle
from functools import partial

import torch

from contracts.kinds import CHAINS, SEQUENTIAL
from contracts.results import assert_same, tensors_of
from contracts.routines import every_row


@every_row
def test_routines_energies_and_results_are_pickled(row):
    case = row.few_cases()[0]
    routine = pickle.loads(pickle.dumps(partial(row.function, **row.settings)))
    assert (routine.func, routine.keywords.keys()) == (row.function, row.settings.keys())
    result = row.raw(case.energy, case.known)
    assert_same(tensors_of(pickle.loads(pickle.dumps(result))), tensors_of(result), rtol=0, atol=0)
    # Conditionals of the tests are local functions.
    if row.kind not in (SEQUENTIAL, CHAINS):
        energy = pickle.loads(pickle.dumps(case.energy))
        assert_same(row(energy, case.known), row(case.energy, case.known), **row.limits)


def test_an_energy_with_gradients_is_pickled_as_torch_does_its_tensors():
    from lmbm_torch.energies import PairwiseEnergy

    energy = PairwiseEnergy(torch.ones(1, 2, requires_grad=True), torch.zeros(2, 2))
    assert pickle.loads(pickle.dumps(energy)).unary.requires_grad
