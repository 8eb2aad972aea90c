"""Belief propagation on pairwise energies: enumeration, message passing written out, and its own claims."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from references.scalar_messages import ScalarMessages
from strategies.directed import random_known
from strategies.pairwise import (
    all_labellings,
    pairwise_energies,
    random_forest_energy,
    random_pairwise_energy,
)

from lmbm_torch.energies import PairwiseEnergy
from lmbm_torch.inference.common.results import PairwiseMessages
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.inference.messages import pairwise_bp, tree_reweighted

ROUTINES = (pairwise_bp.marginals, pairwise_bp.max_marginals)
SEEDS = st.integers(0, 2**32 - 1)


def exact_max_marginals(energy, known):
    """σ of how much better the best labelling with a label at 1 is, and the best score."""
    labellings = all_labellings(energy.num_labels)
    scores = energy.score(labellings)
    if known is not None:
        scores = scores.masked_fill(((labellings != known) & ~known.isnan()).any(-1), -torch.inf)
    best = [scores[:, :, None].where(labellings == value, -torch.inf).amax(0) for value in (0, 1)]
    return torch.sigmoid(best[1] - best[0]), scores.amax(0)


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("with_known", [False, True])
def test_is_exact_on_five_hundred_forests(seed, with_known):
    energy = random_forest_energy(seed, 1 + seed % 10, 20, coupling=(0.3, 1.0, 3.0, 30.0)[seed % 4])
    known = random_known(seed, energy, 0.3) if with_known else None
    came, best = (routine(energy, known=known) for routine in ROUTINES)
    expected = exact.marginals(energy, known=known)
    max_labels, max_score = exact_max_marginals(energy, known)
    for result, labels, value in (
        (came, expected.labels, expected.log_partition),
        (best, max_labels, max_score),
    ):
        torch.testing.assert_close(result.labels, labels, rtol=0, atol=1e-6)
        torch.testing.assert_close(result.log_partition, value, rtol=1e-9, atol=1e-6)
        assert result.status.exact.all()
        assert result.status.converged.all()


def test_long_chains_need_as_many_iterations_as_they_have_couplings():
    labels = 300
    generator = torch.Generator().manual_seed(0)
    links = torch.diag(torch.randn(labels - 1, generator=generator).double(), 1)
    unary = torch.randn(2, labels, generator=generator).double()
    energy = PairwiseEnergy(unary, links + links.mT)
    # Forwards, a table of two entries at a time.
    spins = torch.tensor([-1.0, 1.0]).double()
    table = unary[:, :1] * spins
    for t in range(1, labels):
        pair = table[:, :, None] + links[t - 1, t] * spins[:, None] * spins
        table = pair.logsumexp(1) + unary[:, t : t + 1] * spins
    came = pairwise_bp.marginals(energy, num_iters=labels, tol=1e-12)
    torch.testing.assert_close(came.log_partition, table.logsumexp(1))
    assert came.status.exact.all()
    assert not pairwise_bp.marginals(energy, num_iters=3, tol=1e-9, newton_iters=0).status.exact.any()


@given(pairwise_energies(max_labels=5, max_batch=2), st.integers(1, 4), st.sampled_from((0.0, 0.3)))
@pytest.mark.parametrize("take_max", [False, True])
def test_equals_message_passing_written_out(take_max, energy, num_iters, damping):
    came = ROUTINES[take_max](energy, num_iters=num_iters, tol=0.0, damping=damping, keep_messages=True)
    for row in range(energy.batch_size):
        scalar = ScalarMessages.of(energy, row, take_max=take_max)
        for _ in range(int(came.status.num_iters[row])):
            scalar.iterate(damping)
        scalar.assert_has(came, row)


@settings(max_examples=5)
@given(pairwise_energies(min_labels=2, max_labels=6, max_batch=4), st.sampled_from((0.0, 0.5, 0.9)))
@pytest.mark.parametrize("take_max", [False, True])
def test_what_has_converged_is_a_fixed_point_and_what_has_not_is_none(take_max, energy, damping):
    tol = 1e-7
    came = ROUTINES[take_max](energy, num_iters=60, tol=tol, damping=damping, keep_messages=True)
    assert torch.equal(came.status.converged, came.status.residual <= tol)
    assert ((came.status.num_iters < 60) <= came.status.converged).all()
    for row in range(energy.batch_size):
        missed = ScalarMessages.of(energy, row, take_max=take_max).set_from(came, row).missed_by()
        if came.status.converged[row]:
            assert missed <= 10 * energy.num_labels * tol
        else:
            # One more iteration could at best undo what the last one missed by.
            assert missed > 0


def test_strong_couplings_may_not_converge_and_say_so():
    energy = random_pairwise_energy(0, 8, 8, coupling=3.0, per_example=True)
    plain = pairwise_bp.marginals(energy, num_iters=300, newton_iters=0)
    assert 0 < plain.status.converged.sum() < 8
    damped = pairwise_bp.marginals(energy, num_iters=300, damping=0.7)
    assert damped.status.converged.sum() > plain.status.converged.sum()
    assert not damped.status.exact.any()

    assert pairwise_bp.marginals(energy, num_iters=300).status.converged.all()


@given(pairwise_energies(max_labels=6, max_batch=3))
def test_sparse_couplings_are_those_of_a_complete_graph_that_are_zero(energy):
    # A further example that couples everything lends its places to all others.
    labels = energy.num_labels
    pairwise = energy.pairwise.expand(energy.batch_size, -1, -1)
    full = torch.ones(1, labels, labels, dtype=energy.dtype) - torch.eye(labels, dtype=energy.dtype)
    more = PairwiseEnergy(
        torch.cat([energy.unary, energy.unary[:1]]),
        torch.cat([pairwise, full]),
        torch.cat([energy.constant, energy.constant[:1]]),
    )
    for routine in ROUTINES:
        alone, together = routine(energy, num_iters=7), routine(more, num_iters=7)
        torch.testing.assert_close(together.labels[:-1], alone.labels)
        torch.testing.assert_close(together.log_partition[:-1], alone.log_partition)
        assert torch.equal(together.status.exact[:-1], alone.status.exact)


@pytest.mark.parametrize("per_example", [False, True])
def test_chunks_of_the_batch_make_no_difference(monkeypatch, per_example):
    energy = random_pairwise_energy(0, 6, 7, per_example=per_example)
    known = random_known(0, energy, 0.3)
    for routine in (*ROUTINES, tree_reweighted.marginals):
        whole = routine(energy, known=known, keep_messages=True)
        monkeypatch.setattr("lmbm_torch.inference.messages.tree_reweighted.CPU_CHUNK_BYTES", 3 * 8 * 30)
        chunks = routine(energy, known=known, keep_messages=True)
        monkeypatch.undo()
        torch.testing.assert_close(chunks.messages.to_labels, whole.messages.to_labels)
        torch.testing.assert_close(chunks.log_partition, whole.log_partition)
        for name in ("exact", "converged", "num_iters", "residual"):
            torch.testing.assert_close(getattr(chunks.status, name), getattr(whole.status, name))


def test_goes_on_from_the_messages_it_is_given():
    energy = random_pairwise_energy(0, 6, density=0.6)
    for routine in ROUTINES:
        whole = routine(energy, num_iters=9, tol=0.0, keep_messages=True)
        half = routine(energy, num_iters=4, tol=0.0, keep_messages=True)
        rest = routine(energy, num_iters=5, tol=0.0, messages=half.messages, keep_messages=True)
        torch.testing.assert_close(rest.messages.to_labels, whole.messages.to_labels)
        assert half.messages.to_labels.shape == (3, *half.messages.neighbours.shape)
        assert routine(energy, num_iters=1).messages is None
    fixed = pairwise_bp.marginals(energy, num_iters=500, tol=1e-9, damping=0.3, keep_messages=True)
    assert fixed.status.converged.all()
    again = pairwise_bp.marginals(energy, messages=fixed.messages)
    assert again.status.num_iters.tolist() == [1, 1, 1]


def test_the_bethe_approximation_has_its_gradient_at_a_fixed_point():
    energy = random_pairwise_energy(1, 5, 2, coupling=0.4)
    unary, pairwise = energy.unary.clone().requires_grad_(), energy.pairwise.clone().requires_grad_()

    def log_partition(unary, pairwise):
        symmetric = (pairwise + pairwise.mT) / 2
        result = pairwise_bp.marginals(
            replace(energy, unary=unary, pairwise=symmetric), num_iters=500, tol=1e-12
        )
        assert result.status.converged.all()
        assert not result.labels.requires_grad
        return result.log_partition.sum()

    by_unary, by_pairwise = torch.autograd.grad(log_partition(unary, pairwise), (unary, pairwise))
    torch.testing.assert_close(by_unary, 2 * pairwise_bp.marginals(energy, tol=1e-12).labels - 1)
    step = 1e-5
    for i, j in ((0, 1), (2, 4)):
        change = torch.zeros(5, 5).double()
        change[i, j] = change[j, i] = step
        rise = log_partition(energy.unary, energy.pairwise + change)
        rise = rise - log_partition(energy.unary, energy.pairwise - change)
        torch.testing.assert_close(
            by_pairwise[i, j] + by_pairwise[j, i], rise / (2 * step), rtol=1e-6, atol=1e-7
        )


@pytest.mark.parametrize("with_known", [False, True])
def test_on_a_forest_the_gradient_is_exact(with_known):
    energy = random_forest_energy(3, 7, 4)
    known = random_known(0, energy, 0.3) if with_known else None
    gradients = []
    for value in (
        lambda e: pairwise_bp.marginals(e, known=known, tol=1e-12).log_partition,
        lambda e: exact.log_partition(e, known=known),
    ):
        unary, pairwise = energy.unary.clone().requires_grad_(), energy.pairwise.clone().requires_grad_()
        total = (value(replace(energy, unary=unary, pairwise=pairwise)) * torch.arange(1.0, 5.0)).sum()
        by_unary, by_pairwise = torch.autograd.grad(total, (unary, pairwise))
        # A coupling stands in two places; how they share its gradient is no one's business.
        coupled = energy.pairwise != 0
        gradients.append((by_unary, (by_pairwise + by_pairwise.mT)[coupled]))
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("routine", ROUTINES)
@pytest.mark.parametrize("scale", [1e-6, 1e3])
def test_float32_keeps_its_digits(routine, scale):
    energy = random_forest_energy(0, 8, 4)
    fine = replace(energy, unary=scale * energy.unary, pairwise=scale * energy.pairwise)
    coarse = PairwiseEnergy(fine.unary.float(), fine.pairwise.float(), fine.constant.float())
    # What float32 has rounded before propagation is not its fault.
    fine = PairwiseEnergy(coarse.unary.double(), coarse.pairwise.double(), coarse.constant.double())
    came, expected = routine(coarse, tol=scale * 1e-6), routine(fine)
    assert came.labels.dtype == came.log_partition.dtype == came.status.residual.dtype == torch.float32
    assert came.status.exact.all()
    torch.testing.assert_close(came.labels.double(), expected.labels, rtol=1e-5, atol=1e-30)
    torch.testing.assert_close(came.log_partition.double(), expected.log_partition, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("no_shape_checks")
@pytest.mark.parametrize("routine", ROUTINES)
class TestRefusals:
    ENERGY = random_pairwise_energy(0, 4, density=0.5)

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("num_iters", 0),
            ("num_iters", 1.5),
            ("tol", -1.0),
            ("tol", math.inf),
            ("damping", -0.1),
            ("damping", 1.0),
            ("damping", math.nan),
            ("known", torch.zeros(3, 5)),
            ("known", torch.full((3, 4), 0.5)),
        ],
    )
    def test_settings(self, routine, name, value):
        with pytest.raises(ValueError, match=f"^{name}: expected"):
            routine(self.ENERGY, **{name: value})

    def test_messages(self, routine):
        kept = routine(self.ENERGY, keep_messages=True).messages
        to_labels, others = kept.to_labels, kept.neighbours.flip(0)
        for strange, name in (
            (PairwiseMessages(kept.neighbours, to_labels[:2]), "to_labels"),
            (PairwiseMessages(kept.neighbours, to_labels.float()), "to_labels"),
            (PairwiseMessages(kept.neighbours, to_labels * math.nan), "to_labels"),
            (PairwiseMessages(others, to_labels), "neighbours"),
        ):
            with pytest.raises(ValueError, match=rf"^messages\.{name}: expected"):
                routine(self.ENERGY, messages=strange)

    def test_energies(self, routine):
        with pytest.raises(ValueError, match=r"^energy: expected float32 or float64, got torch\.float16"):
            routine(random_pairwise_energy(0, 4, dtype=torch.float16))
        with pytest.raises(ValueError, match=r"^pairwise: expected a symmetric matrix"):
            routine(replace(self.ENERGY, pairwise=self.ENERGY.pairwise.triu()))
