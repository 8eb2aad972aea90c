"""PairwiseEnergy against a scalar loop, its conversions, enumeration of it, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies.directed import random_known
from strategies.pairwise import (
    all_labellings,
    exchanged,
    labels_of,
    pairwise_energies,
    random_pairwise_energy,
    renamed,
)

from lmbm_torch.energies import PairwiseEnergy
from lmbm_torch.energies.base import MarginEnergy
from lmbm_torch.inference.enumeration import exact

SEEDS = st.integers(0, 2**32 - 1)


def scalar_score(energy: PairwiseEnergy, example: int, spins: list[int]) -> float:
    """The definition: one labelling, one example, plain numbers."""
    pairwise = energy.pairwise if energy.pairwise.ndim == 2 else energy.pairwise[example]
    score = float(energy.constant[example])
    score += sum(float(energy.unary[example, i]) * spin for i, spin in enumerate(spins))
    return score + sum(
        float(pairwise[i, j]) * spins[i] * spins[j] for i, j in combinations(range(len(spins)), 2)
    )


@given(pairwise_energies(max_labels=5), SEEDS)
def test_score_equals_a_scalar_loop(energy, seed):
    labels = labels_of(seed, energy)
    for example, spins in enumerate((2 * labels - 1).tolist()):
        expected = pytest.approx(scalar_score(energy, example, spins), rel=1e-9, abs=1e-9)
        assert energy.score(labels)[example].item() == expected
        assert -energy.energy(labels)[example].item() == expected


@given(pairwise_energies(), SEEDS)
def test_margins_are_half_of_what_the_score_loses_by_a_change(energy, seed):
    labels = labels_of(seed, energy)
    margins = energy.local_margins(labels)
    torch.testing.assert_close(margins, (2 * labels - 1) * energy.local_fields(labels))
    for label in range(energy.num_labels):
        changed = labels.clone()
        changed[:, label] = 1 - changed[:, label]
        torch.testing.assert_close(2 * margins[:, label], energy.score(labels) - energy.score(changed))


@given(pairwise_energies(max_labels=4))
def test_leading_axes_are_samples_that_share_the_batch(energy):
    labellings = all_labellings(energy.num_labels)
    spread = labellings.expand(-1, energy.batch_size, -1)
    for quantity in (energy.score, energy.local_margins):
        one_by_one = torch.stack([quantity(labels) for labels in spread])
        torch.testing.assert_close(quantity(labellings), one_by_one)
        torch.testing.assert_close(quantity(spread[:, None]), one_by_one[:, None])


@given(pairwise_energies(), SEEDS)
def test_renaming_labels_keeps_scores(energy, seed):
    order = torch.randperm(energy.num_labels, generator=torch.Generator().manual_seed(seed))
    labels = labels_of(seed, energy)
    torch.testing.assert_close(renamed(energy, order).score(labels[:, order]), energy.score(labels))


@given(pairwise_energies(), SEEDS)
def test_flipping_labels_with_their_weights_keeps_scores(energy, seed):
    labels = labels_of(seed, energy)
    flip = labels_of(seed + 1, energy)[0].bool()
    torch.testing.assert_close(exchanged(energy, flip).score(labels ^ flip), energy.score(labels))


@given(pairwise_energies(), SEEDS)
def test_select_takes_examples(energy, seed):
    labels = labels_of(seed, energy)
    rows = torch.randint(energy.batch_size, (5,), generator=torch.Generator().manual_seed(seed))
    for chosen in (rows, slice(0, 1)):
        torch.testing.assert_close(energy.select(chosen).score(labels[chosen]), energy.score(labels)[chosen])


@given(pairwise_energies(), SEEDS, st.booleans())
def test_add_unary_adds_to_the_score_by_label(energy, seed, for_all):
    labels = labels_of(seed, energy)
    rows = 1 if for_all else energy.batch_size
    unary = torch.linspace(-2, 3, rows * energy.num_labels).double().reshape(rows, -1)
    torch.testing.assert_close(
        energy.add_unary(unary).score(labels), energy.score(labels) + (unary * labels).sum(-1)
    )


def test_no_constant_is_zero():
    energy = random_pairwise_energy(0, 3)
    assert PairwiseEnergy(energy.unary, energy.pairwise).constant.tolist() == [0.0, 0.0, 0.0]


class TestEnumeration:
    """Inference on the energy by enumeration, and the likelihoods that it gives."""

    def test_is_an_energy_with_margins(self):
        assert isinstance(random_pairwise_energy(0, 3), MarginEnergy)

    @given(pairwise_energies(max_labels=5))
    def test_log_partition_marginals_and_map(self, energy):
        labellings = all_labellings(energy.num_labels)
        scores = energy.score(labellings)
        result = exact.marginals(energy)
        torch.testing.assert_close(result.log_partition, scores.logsumexp(0))
        probability = scores.softmax(0)[..., None]
        torch.testing.assert_close(result.labels, (probability * labellings).sum(0))
        torch.testing.assert_close(exact.decode(energy).objective, scores.amax(0))
        hinge = (1 - energy.local_margins(labellings)).clamp(min=0).sum(-1)
        torch.testing.assert_close(exact.decode_hinge(energy).objective, hinge.amin(0))

    def test_marginals_are_the_gradient_of_the_log_partition(self):
        energy = random_pairwise_energy(0, 6)
        unary = energy.unary.clone().requires_grad_()
        log_partition = exact.log_partition(replace(energy, unary=unary))
        (mean_spin,) = torch.autograd.grad(log_partition.sum(), unary)
        torch.testing.assert_close(exact.marginals(energy).labels, (1 + mean_spin) / 2)

    def test_the_conditional_log_likelihood_is_normalised(self):
        energy = random_pairwise_energy(0, 5)
        log_likelihood = energy.score(all_labellings(5)) - exact.log_partition(energy)
        torch.testing.assert_close(log_likelihood.exp().sum(0), torch.ones(3).double())

    def test_twenty_two_labels(self):
        # A tree of dependences of which the log partition is known: log Z = K log 2 + Σ log cosh.
        couplings = torch.linspace(-1, 1, 21).double()
        pairwise = torch.diag_embed(couplings, 1) + torch.diag_embed(couplings, -1)
        energy = PairwiseEnergy(torch.zeros(1, 22).double(), pairwise)
        expected = 22 * torch.tensor(2.0).double().log() + couplings.cosh().log().sum()
        torch.testing.assert_close(exact.log_partition(energy)[0], expected)
        torch.testing.assert_close(exact.decode(energy).objective[0], couplings.abs().sum())

    def test_known_labels(self):
        energy = random_pairwise_energy(0, 5)
        known = random_known(1, energy)
        labellings = all_labellings(5)
        agree = ((labellings == known) | known.isnan()).all(-1)
        scores = energy.score(labellings).where(agree, -torch.inf)
        torch.testing.assert_close(exact.log_partition(energy, known=known), scores.logsumexp(0))


VALID = random_pairwise_energy(3, 4)
FIELDS = {"unary": VALID.unary, "pairwise": VALID.pairwise, "constant": VALID.constant}


@pytest.mark.usefixtures("no_shape_checks")
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("unary", {"unary": VALID.unary[0]}),
        ("unary", {"unary": VALID.unary[:0]}),
        ("unary", {"unary": VALID.unary.long()}),
        ("pairwise", {"pairwise": VALID.pairwise[:3]}),
        ("pairwise", {"pairwise": VALID.pairwise.expand(2, 4, 4)}),
        ("pairwise", {"pairwise": VALID.pairwise.float()}),
        ("pairwise", {"pairwise": VALID.pairwise.to("meta")}),
        ("constant", {"constant": VALID.constant[:2]}),
        ("constant", {"constant": VALID.constant.float()}),
    ],
)
def test_construction_refuses(name, changes):
    with pytest.raises(ValueError, match=f"^{name}: expected"):
        PairwiseEnergy(**{**FIELDS, **changes})


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("name", ["unary", "pairwise", "constant"])
def test_check_values_refuses_what_is_not_finite(name, bad):
    tensor = getattr(VALID, name).clone()
    tensor.view(-1)[-1] = bad
    with pytest.raises(ValueError, match=f"^{name}: expected finite values"):
        replace(VALID, **{name: tensor}).check_values()


@pytest.mark.parametrize(
    ("pairwise", "expected"), [(VALID.pairwise.triu(), "symmetric"), (torch.eye(4).double(), "zero diagonal")]
)
def test_check_values_refuses_couplings_that_are_none(pairwise, expected):
    with pytest.raises(ValueError, match=f"^pairwise: expected a {expected}"):
        replace(VALID, pairwise=pairwise).check_values()
    VALID.check_values()


@pytest.mark.usefixtures("no_shape_checks")
@pytest.mark.parametrize("unary", [torch.zeros(2, 4).double(), torch.zeros(3, 5).double(), torch.zeros(3, 4)])
def test_add_unary_refuses(unary):
    with pytest.raises(ValueError, match=r"^unary: expected"):
        VALID.add_unary(unary)
