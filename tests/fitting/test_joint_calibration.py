"""Two scales in equal mixture: joint confidences agree with the share of right answers."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import combinations_with_replacement

import numpy as np
import pytest
import torch
from torch.nn.functional import logsigmoid

from lmbm_torch.calibration.scales import (
    FACTORS,
    AnEnergy,
    Calibration,
    Right,
    best_scales,
    joint_scales,
    label_scales,
    two_factors,
)
from lmbm_torch.energies import DirectedEnergy, PairwiseEnergy
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.persistence.archives import pack, unpack


def drawn(instances: int, easy: float, hard: float, seed: int = 0) -> tuple[DirectedEnergy, torch.Tensor]:
    """Labels of which half of the instances are easy in all, and a model that knows no such thing."""
    generator = torch.Generator().manual_seed(seed)
    unary = torch.randn(instances, 8, generator=generator, dtype=torch.float64)
    scale = torch.where(torch.arange(instances) % 2 == 0, easy, hard)[:, None]
    labels = torch.bernoulli(torch.sigmoid(2 * scale * unary), generator=generator)
    return DirectedEnergy(unary, torch.zeros(8, 8).double(), torch.arange(8)), labels


def log_probs(margins: torch.Tensor) -> torch.Tensor:
    """Of labels with these local margins, under each factor."""
    return torch.stack([logsigmoid(2 * factor * margins).sum(1) for factor in FACTORS])


def test_the_pair_is_the_most_likely_of_those_with_the_right_confidence():
    generator = torch.Generator().manual_seed(1)
    truth, answer = 0.5 + torch.randn(2, 40, 3, generator=generator, dtype=torch.float64)
    right = torch.rand(40, generator=generator) < 0.3
    found = two_factors(log_probs(truth), log_probs(answer), Right(right, torch.ones(40).double()))
    values = {}
    share = (float(right.sum()) + 1) / 42
    error = (share * (1 - share) / 40) ** 0.5
    for pair in combinations_with_replacement(FACTORS, 2):
        log_prob = [logsigmoid(2 * factor * truth).sum(1).exp() for factor in pair]
        confidence = np.mean([float(logsigmoid(2 * f * answer).sum(1).exp().mean()) for f in pair])
        away = max(0.0, abs(confidence - share) - error)
        prior = 0.5 * float(np.square(np.log(pair)).sum())
        values[pair] = (-away, float(((log_prob[0] + log_prob[1]) / 2).log().sum()) - prior)
    best = max(values, key=lambda pair: values[pair])
    assert found == best


def test_easy_and_hard_instances_are_told_apart():
    energy, labels = drawn(4000, 2.0, 0.5)
    answers = (energy.unary > 0).double()
    held_out = [
        (energy.select(slice(0, 2000)), labels[:2000]),
        (energy.select(slice(2000, None)), labels[2000:]),
    ]
    found = joint_scales(held_out, [answers[:2000], answers[2000:]])
    plain = label_scales(held_out)
    low, high = (found.factors * found.scale.mean()).tolist()
    assert low == pytest.approx(0.5, rel=0.2)
    assert high == pytest.approx(2.0, rel=0.2)
    other, truth = drawn(4000, 2.0, 0.5, seed=1)
    given = (other.unary > 0).double()
    right = float((given == truth).all(1).double().mean())
    members = found.apply_all(other)
    confidence = float(torch.stack([each.log_prob(given).exp() for each in members]).mean())
    assert abs(confidence - right) < 0.02 < right - float(plain.apply(other).log_prob(given).exp().mean())
    mixed = torch.stack([each.log_prob(truth) for each in members]).exp().mean(0).log().mean()
    assert mixed > plain.apply(other).log_prob(truth).mean() + 0.1


@pytest.mark.parametrize("right", [0.0, 1.0])
def test_answers_that_are_always_the_same_make_no_certainty(right):
    margins = torch.full((20, 2), 0.3 if right else -0.3, dtype=torch.float64)
    margins, answers = log_probs(margins), log_probs(margins.abs())
    low, high = two_factors(margins, answers, Right(torch.full((20,), bool(right)), torch.ones(20).double()))
    confidence = np.mean([float(torch.sigmoid(torch.tensor(0.6 * factor)) ** 2) for factor in (low, high)])
    assert 0.9 < confidence < 1 if right else low == min(FACTORS)


def loss_of(
    found: Calibration, start: Calibration, energy: AnEnergy, truth: torch.Tensor, answers: torch.Tensor
) -> float:
    """What is to be least, by enumeration."""
    members = [
        Calibration(found.scale * factor, found.shift * factor, found.coupling_scale * factor).apply(energy)
        for factor in found.factors.tolist()
    ]
    of_truth, of_answers = (
        torch.stack([each.score(labels) - exact.log_partition(each) for each in members])
        for labels in (truth, answers)
    )
    right = (truth == answers).all(1).double()
    share = (float(right.sum()) + 1) / (len(right) + 2)
    away = (of_answers.exp().mean() - share) / (share * (1 - share) / len(right)) ** 0.5
    relative = found.scale / start.scale
    if not isinstance(energy, DirectedEnergy):
        relative = torch.cat([relative, torch.tensor([found.coupling_scale / start.coupling_scale])])
    prior = 50 * ((relative - 1).square().sum() + (found.shift - start.shift).square().sum())
    prior = prior + 0.5 * found.factors.log().square().sum()
    return float(-torch.logaddexp(*of_truth).sum() + prior + 5 * away.square())


def machine_drawn(instances: int) -> tuple[PairwiseEnergy, torch.Tensor]:
    """A machine with labels of which half are drawn at twice, half at half its log-potentials."""
    generator = torch.Generator().manual_seed(1)
    unary = torch.randn(instances, 8, generator=generator, dtype=torch.float64)
    energy = PairwiseEnergy(unary, 0.2 * (torch.ones(8, 8) - torch.eye(8)).double())
    labels = torch.empty_like(unary)
    for start, factor in enumerate((2.0, 0.5)):
        scaled = Calibration.of_scale(factor, 8).apply(energy.select(slice(start, None, 2)))
        labels[start::2] = exact.sample(scaled, 1, generator=generator)[0].double()
    return energy, labels


@pytest.mark.parametrize(
    "draw", [partial(drawn, easy=2.0, hard=0.5), machine_drawn], ids=["network", "machine"]
)
def test_the_scales_are_the_best_together_for_complete_instances(draw):
    energy, labels = draw(400)
    answers = exact.decode(energy).labels.double()
    # More are right than the likelihood would have it.
    answers[100:130] = labels[100:130]
    hidden = labels.clone()
    hidden[:100, 2] = torch.nan
    found, start = joint_scales([(energy, hidden)], [answers]), label_scales([(energy, hidden)])
    judged = energy.select(slice(100, None)), labels[100:], answers[100:]
    least = loss_of(found, start, *judged)
    one = replace(start, factors=torch.tensor([0.8, 1.5]).double())
    assert least < loss_of(one, start, *judged) - 5
    random = torch.Generator().manual_seed(0)
    for _ in range(20):
        step = 0.03 * torch.randn(2, 8, generator=random, dtype=torch.float64)
        wider = found.factors * (1 + 0.03 * torch.randn(2, generator=random, dtype=torch.float64))
        near = Calibration(found.scale + step[0], found.shift + step[1], found.coupling_scale, wider)
        assert loss_of(near, start, *judged) > least
    for change in ([1.05, 1.0], [0.95, 1.0], [1.0, 1.05], [1.0, 0.95]):
        near = replace(found, factors=found.factors * torch.tensor(change))
        assert loss_of(near, start, *judged) > least
    with pytest.raises(ValueError, match="expected instances without missing labels"):
        joint_scales([(energy.select(slice(0, 100)), hidden[:100])], [answers[:100]])


def test_the_best_scales_are_joint_where_labellings_are_summed_and_some_are_complete():
    energy, labels = drawn(60, 2.0, 0.5)

    def answer(energy):
        return (energy.unary > 0).double()

    assert len(best_scales([(energy, labels)], answer).factors) == 2
    hidden = labels.clone()
    hidden[:, 1] = torch.nan
    assert len(best_scales([(energy, hidden)], answer).factors) == 1
    wide = PairwiseEnergy(torch.randn(20, 23).double(), torch.zeros(23, 23).double())
    assert len(best_scales([(wide, answer(wide))], answer).factors) == 1


def test_members_are_scaled_as_a_whole():
    energy = DirectedEnergy(torch.randn(5, 3), torch.randn(3, 3).tril(-1), torch.arange(3))
    scale, shift = torch.tensor([0.5, 1.0, 2.0]).double(), torch.tensor([0.1, 0.0, -0.1]).double()
    both = Calibration(scale, shift, 1.0, torch.tensor([0.5, 2.0]).double())
    labels = torch.randint(0, 2, (5, 3))
    margins = Calibration(scale, shift, 1.0).apply(energy).local_margins(labels)
    for factor, member in zip((0.5, 2.0), both.apply_all(energy), strict=True):
        torch.testing.assert_close(member.local_margins(labels), factor * margins)
    with pytest.raises(ValueError, match="factors: expected a single factor for a single energy, got 2"):
        both.apply(energy)
    assert torch.equal(unpack(pack(both)).factors, both.factors)


@pytest.mark.parametrize("labels", [3, 12])
def test_members_of_a_machine_are_normalised_and_found_among_those_it_mixes(labels):
    """Labels drawn half of them at another temperature: the factors are found, and probabilities add up."""
    generator = torch.Generator().manual_seed(2)
    unary = torch.randn(3000, labels, generator=generator, dtype=torch.float64)
    upper = torch.randn(labels, labels, generator=generator, dtype=torch.float64).triu(1) / 4
    energy = PairwiseEnergy(unary, upper + upper.mT)
    easy = Calibration.of_scale(2.0, labels).apply(energy.select(slice(0, None, 2)))
    hard = Calibration.of_scale(0.5, labels).apply(energy.select(slice(1, None, 2)))
    drawn = torch.empty(3000, labels, dtype=torch.float64)
    for start, part in enumerate((easy, hard)):
        drawn[start::2] = exact.sample(part, 1, generator=generator)[0].double()
    answers = exact.decode(energy).labels
    halves = slice(0, 1500), slice(1500, None)
    held_out = [(energy.select(rows), drawn[rows]) for rows in halves]
    found = joint_scales(held_out, [answers[rows] for rows in halves])
    low, high = (found.factors * found.scale.mean()).tolist()
    assert low == pytest.approx(0.5, rel=0.3)
    assert high == pytest.approx(2.0, rel=0.3)
    members = found.apply_all(energy)
    for member in members:
        torch.testing.assert_close(exact.log_partition(member), torch.zeros(3000).double())
    right = float((answers == drawn).all(1).double().mean())
    confidence = float(torch.stack([each.score(answers).exp() for each in members]).mean())
    assert abs(confidence - right) < 0.03


def test_machines_of_too_many_labels_are_refused():
    energy = PairwiseEnergy(torch.zeros(4, 23), torch.zeros(23, 23))
    with pytest.raises(ValueError, match=r'"joint" takes .* 22 labels.* got 23'):
        joint_scales([(energy, torch.zeros(4, 23))], [torch.zeros(4, 23)])
