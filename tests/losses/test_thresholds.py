"""Remark 4.2: no labelling that exact decoding prefers to the truth lets the truth pay less than T."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies.directed import random_directed_energy
from strategies.pairwise import clique_energies, labels_of, pairwise_energies, random_clique_energy

from lmbm_torch.energies import CliqueEnergy
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.losses import local_hinge
from lmbm_torch.losses.bounds import least_threshold

MARGINS = st.sampled_from((1.0, 4.0, 20.0))


@given(st.one_of(pairwise_energies(), clique_energies()), st.integers(0, 2**32 - 1), MARGINS)
def test_a_wrongly_decoded_example_pays_the_threshold(energy, seed, margin):
    labels = labels_of(seed, energy)
    threshold = least_threshold(energy, margin)
    hinge = local_hinge(energy, labels, margin)
    for decoding in (exact.decode_hinge(energy, margin), exact.decode(energy)):
        wrong = (decoding.labels != labels).any(1)
        assert (hinge[wrong] >= threshold * (1 - 1e-9)).all()


@pytest.mark.parametrize("per_example", [False, True])
def test_it_is_what_the_shared_cliques_leave_of_the_margin(per_example):
    energy = random_clique_energy(0, 4, per_example=per_example)
    rows = energy.weight.reshape(-1, len(energy.cliques)).tolist()
    pulls = [
        sum(abs(weight) for clique, weight in zip(energy.cliques, row, strict=True) if {label} < {*clique})
        for row in rows
        for label in range(4)
    ]
    assert max(pulls) > 0
    assert least_threshold(energy, 20.0).item() == pytest.approx(20 - max(pulls))
    assert least_threshold(energy, 0.1).item() == 0


def test_pairs_are_cliques():
    cliques = CliqueEnergy(((0,), (0, 1), (2, 1)), torch.tensor([9.0, -0.25, 0.5]))
    assert least_threshold(cliques, 1.0).item() == 0.25
    assert least_threshold(cliques.to_pairwise(), 1.0).item() == 0.25


def test_a_directed_model_keeps_its_margin():
    assert least_threshold(random_directed_energy(0, 4), 0.5).item() == 0.5
