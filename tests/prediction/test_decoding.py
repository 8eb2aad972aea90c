"""The routine chosen for an energy decodes it exactly, whatever its kind and size."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from strategies.directed import random_directed_energy
from strategies.pairwise import random_clique_energy, random_pairwise_energy

from lmbm_torch.inference import exact
from lmbm_torch.prediction import decoding, top_k

ENERGIES = {
    "directed": random_directed_energy(0, 5),
    "pairwise": random_pairwise_energy(0, 5),
    "cliques": random_clique_energy(0, 5),
}


@pytest.mark.parametrize("kind", ENERGIES)
def test_every_kind_is_decoded_exactly(kind):
    energy = ENERGIES[kind]
    hinge, best = decoding.decode_hinge(energy, 0.5), decoding.decode(energy)
    torch.testing.assert_close(hinge.objective, exact.decode_hinge(energy, 0.5).objective)
    torch.testing.assert_close(best.objective, exact.decode(energy).objective)
    assert (hinge.status.exact & best.status.exact).all()


def test_many_labels_are_not_enumerated():
    energy = random_pairwise_energy(1, 23, batch_size=2, coupling=0.1, density=0.3)
    hinge, best = decoding.decode_hinge(energy), decoding.decode(energy)
    assert (hinge.status.exact & best.status.exact).all()
    assert hinge.nodes is not None
    assert best.nodes is not None
    torch.testing.assert_close(energy.score(best.labels), best.objective)
    assert (energy.score(best.labels) >= energy.score(hinge.labels)).all()


@pytest.mark.parametrize(
    "decode",
    [
        decoding.decode_hinge,
        decoding.decode,
        partial(top_k.decode_hinge, top_k=2),
        partial(top_k.decode, top_k=2),
    ],
)
def test_searches_end_at_their_limit_and_say_so(decode):
    limited = decode(random_directed_energy(0, 30, 2), node_limit=50)
    assert not (limited.status.exact | limited.status.converged).any()
    assert (limited.nodes < 200).all()
    few = ENERGIES["directed"]
    assert decode(few, node_limit=None).status.exact.all()


def test_searches_for_machines_end_at_their_limit_too(monkeypatch):
    monkeypatch.setattr(decoding, "MAX_ENUMERATED_LABELS", 4)
    energy = random_pairwise_energy(1, 12, batch_size=2, coupling=2.0)
    assert not decoding.decode_hinge(energy, node_limit=1).status.converged.all()
    assert decoding.decode_hinge(energy).status.exact.all()


def test_few_labels_are(monkeypatch):
    energy = random_pairwise_energy(0, 5)
    enumerated = decoding.decode_hinge(energy)
    monkeypatch.setattr(decoding, "MAX_ENUMERATED_LABELS", 4)
    solved = decoding.decode_hinge(energy)
    assert enumerated.nodes is None
    assert solved.nodes is not None
    assert torch.equal(enumerated.labels, solved.labels)
