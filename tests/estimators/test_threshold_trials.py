"""Labellings at all thresholds of a label, beside a decoding at each."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from strategies.directed import random_directed_energy

from lmbm_torch.estimators.wrappers.threshold_tuning import decode_thresholds
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.losses import local_hinge

MARGIN = 0.7
GRID = MARGIN * torch.arange(-19, 20, dtype=torch.float64) / 20


class Decoder:
    """Of least hinge loss by enumeration; ``proves`` says of how many examples that is known."""

    def __init__(self, proves: float = 1.0) -> None:
        self.proves, self.examples = proves, 0

    def __call__(self, energy):
        self.examples += len(energy.unary)
        found = exact.decode_hinge(energy, MARGIN)
        is_known = torch.arange(len(energy.unary)) >= (1 - self.proves) * len(energy.unary)
        return replace(found, status=replace(found.status, exact=is_known))


def losses(energy, label, threshold, labels):
    shift = torch.zeros_like(energy.unary)
    shift[:, label] = threshold
    return local_hinge(replace(energy, unary=energy.unary - shift), labels, MARGIN)


@pytest.mark.parametrize("coupling", [0.0, 0.1, 1.0, 30.0])
@pytest.mark.parametrize("seed", range(4))
def test_no_labelling_is_better_at_any_threshold(seed, coupling):
    energy = random_directed_energy(seed, 5, 40, coupling=coupling, num_cliques=seed % 2)
    for label in range(5):
        decode = Decoder()
        found = decode_thresholds(decode, energy, label, GRID, MARGIN)
        assert found.shape == (39, 40, 5)
        for threshold, labels in zip(GRID, found, strict=True):
            shift = torch.zeros_like(energy.unary)
            shift[:, label] = threshold
            best = exact.decode_hinge(replace(energy, unary=energy.unary - shift), MARGIN).objective
            torch.testing.assert_close(losses(energy, label, threshold, labels), best)
        assert decode.examples < 39 * 40 / 3


def test_what_is_not_proven_settles_its_own_threshold_alone():
    energy = random_directed_energy(0, 4, 10)
    decode = Decoder(proves=0.0)
    found = decode_thresholds(decode, energy, 1, GRID, MARGIN)
    assert decode.examples == 39 * 10
    for threshold, labels in zip(GRID, found, strict=True):
        expected = decode(replace(energy, unary=energy.unary - threshold * torch.eye(4)[1].double())).labels
        assert labels.equal(expected)


def test_a_single_threshold_is_decoded():
    energy = random_directed_energy(1, 3, 6)
    found = decode_thresholds(Decoder(), energy, 0, GRID[19:20], MARGIN)
    assert found[0].equal(exact.decode_hinge(energy, MARGIN).labels)
