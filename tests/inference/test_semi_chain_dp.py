"""Semi-Markov chains and their layer against enumeration of all segmentations, and their memory."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from strategies.semi_chain import coded, plain_score, random_semi_chain_energy, segmentations

from lmbm_torch import inference
from lmbm_torch.energies import ChainEnergy
from lmbm_torch.inference.trees import semi_chain_dp
from lmbm_torch.nn import SemiCRF


def every(energy, row):
    """All segmentations of a chain with their scores."""
    length = int(energy.lengths[row])
    found = list(segmentations(length, energy.max_segment, energy.num_states))
    return found, torch.stack([plain_score(energy, row, each) for each in found])


@pytest.mark.parametrize("has_segments", [True, False])
@pytest.mark.parametrize("forbidden", [0.0, 0.3])
@pytest.mark.parametrize("scale", [0.1, 3.0, 300.0])
@pytest.mark.parametrize("seed", range(3))
def test_all_answers_equal_enumeration(seed, scale, forbidden, has_segments):
    energy = random_semi_chain_energy(seed, scale=scale, forbidden=forbidden, has_segments=has_segments)
    found, best = inference.marginals(energy), inference.decode(energy)
    torch.testing.assert_close(inference.log_partition(energy), found.log_partition)
    for row in range(energy.batch_size):
        labellings, scores = every(energy, row)
        alone = energy.select(slice(row, row + 1))
        codes = torch.tensor([coded(each, energy.num_labels) for each in labellings])
        torch.testing.assert_close(alone.score(codes[:, None])[:, 0], scores)
        torch.testing.assert_close(found.log_partition[row], scores.logsumexp(0))
        torch.testing.assert_close(best.objective[row], scores.max())
        torch.testing.assert_close(alone.score(best.labels[row : row + 1])[0], scores.max())
        chances = torch.zeros(energy.num_labels, energy.num_states, dtype=torch.float64)
        for segments, weight in zip(labellings, scores.softmax(0), strict=True):
            for start, end, state in segments:
                chances[start:end, state] += weight
        torch.testing.assert_close(found.states[row], chances)


@pytest.mark.parametrize("has_segments", [True, False])
@pytest.mark.parametrize("forbidden", [0.0, 0.3])
def test_gradients_are_those_of_enumeration(forbidden, has_segments):
    energy = random_semi_chain_energy(1, forbidden=forbidden, has_segments=has_segments)
    names = ["unary", "transition", "durations", *(["segments"] if has_segments else [])]
    tensors = {name: getattr(energy, name).clone().requires_grad_() for name in names}
    own = replace(energy, **tensors)
    weights = torch.arange(1.0, 5.0, dtype=torch.float64)
    found = torch.autograd.grad(weights @ semi_chain_dp.log_partition(own), list(tensors.values()))
    total = sum(weight * every(own, row)[1].logsumexp(0) for row, weight in enumerate(weights))
    for each, expected in zip(found, torch.autograd.grad(total, list(tensors.values())), strict=True):
        # Of sums of −∞ autograd has NaN where the expectation is 0.
        torch.testing.assert_close(each, expected.nan_to_num(0.0))


def test_segments_of_one_position_are_a_chain():
    energy = random_semi_chain_energy(3, 6, 3, 1, has_segments=False)
    chain_energy = ChainEnergy(energy.unary + energy.durations, energy.transition, energy.lengths)
    chain = inference.marginals(chain_energy)
    found = inference.marginals(energy)
    torch.testing.assert_close(found.states, chain.states)
    torch.testing.assert_close(found.log_partition, chain.log_partition)
    assert torch.equal(inference.decode(energy).labels, inference.decode(chain_energy).labels)


def test_long_segments_beyond_the_chain_are_allowed():
    energy = random_semi_chain_energy(4, 3, 2, 7)
    torch.testing.assert_close(
        semi_chain_dp.log_partition(energy)[:1], every(energy, 0)[1].logsumexp(0)[None]
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"transition": torch.zeros(3, 3).double()}, "transition: expected"),
        ({"durations": torch.zeros(3, 3).double()}, "durations: expected"),
        ({"durations": torch.zeros(3, 2)}, "durations: expected"),
        ({"segments": torch.zeros(4, 5, 2, 2).double()}, "segments: expected"),
        ({"lengths": [1, 2, 3, 6]}, "lengths: expected 1 to 5"),
    ],
)
@pytest.mark.usefixtures("no_shape_checks")
def test_tensors_that_do_not_fit_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        replace(random_semi_chain_energy(0), **change)


def test_values_and_labels_are_refused_by_name():
    energy = replace(random_semi_chain_energy(0, 4), lengths=[4] * 4)
    energy = replace(energy, unary=energy.unary.nan_to_num(0.0), segments=None)
    for labels, message in (
        ([-2, 0, 0, 0], "labels: expected segments of 1 to 3 positions, the first at position 0"),
        ([0, -2, -2, -2], "labels: expected segments of 1 to 3"),
        ([0, 2, 0, 0], "labels: expected 0 to 1 or −2"),
        ([0, -1, 0, 0], "labels: expected 0 to 1 or −2"),
    ):
        with pytest.raises(ValueError, match=message):
            energy.score(torch.tensor([labels] * 4))
    for routine in (inference.log_partition, inference.marginals, inference.decode):
        with pytest.raises(ValueError, match=r"expected an allowed segmentation .* got none for 4"):
            routine(replace(energy, durations=torch.full_like(energy.durations, -torch.inf)))
        with pytest.raises(ValueError, match=r"^durations: expected"):
            routine(replace(energy, durations=torch.full_like(energy.durations, torch.nan)))
    with pytest.raises(ValueError, match="top_k: expected 1"):
        inference.decode(energy, top_k=2)


def test_the_layer_is_trained_to_find_segments():
    torch.manual_seed(0)
    crf = SemiCRF(2, max_segment=4).double()
    truth = [[(0, 3, 0), (3, 5, 0), (5, 6, 1)], [(0, 2, 1), (2, 4, 0)]]
    labels = SemiCRF.coded(truth, 6)
    emissions = torch.randn(2, 6, 2, dtype=torch.float64)
    emissions[1, 4:] = torch.nan
    optimiser = torch.optim.LBFGS(
        [*crf.parameters(), (more := torch.zeros(2, 6, 4, 2).double().requires_grad_())]
    )

    def loss():
        optimiser.zero_grad()
        squares = sum(each.square().sum() for each in (*crf.parameters(), more))
        value = 0.01 * squares - crf(emissions, labels, [6, 4], segments=more)
        value.backward()
        return value

    before = loss().item()
    for _ in range(3):
        optimiser.step(loss)
    assert loss().item() < 0.2 * before
    assert crf.decode(emissions, [6, 4], segments=more) == truth
    each = crf(emissions, labels, [6, 4], "none", segments=more)
    torch.testing.assert_close(crf(emissions, labels, [6, 4], "mean", segments=more), each.mean())
    torch.testing.assert_close(crf(emissions, labels, [6, 4], "token_mean", segments=more), each.sum() / 10)
    with pytest.raises(ValueError, match=r"expected a segment that starts at token 3, got \(4, 5, 0\)"):
        SemiCRF.coded([[(0, 3, 0), (4, 5, 0)]], 6)


LONG = """
import resource, torch
from lmbm_torch.energies import SemiChainEnergy
from lmbm_torch.inference.trees import semi_chain_dp

torch.manual_seed(0)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
tensors = [torch.randn(shape, requires_grad=True) for shape in ((1, {T}, 24), (24, 24), (100, 24))]
energy = SemiChainEnergy(*tensors)
semi_chain_dp.log_partition(energy).backward()
labels = semi_chain_dp.decode(energy).labels
assert all(bool(each.grad.isfinite().all()) for each in tensors)
torch.testing.assert_close(tensors[0].grad.sum(-1), torch.ones(1, {T}))
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**20)
"""


@pytest.mark.parametrize("length", [500, pytest.param(10_000, marks=pytest.mark.slow)])
def test_gradients_of_long_chains_take_little_memory(length):
    code = LONG.format(T=length)
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert float(out.stdout) < 0.25
