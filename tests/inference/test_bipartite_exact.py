"""Exact inference on restricted Boltzmann machines against the table of all joint states."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from strategies.bipartite import (
    all_states,
    bipartite_energies,
    bipartite_with_known,
    random_bipartite_energy,
    random_known_visible,
    score_table,
)

from lmbm_torch.energies import BipartiteEnergy
from lmbm_torch.energies.bipartite import softplus
from lmbm_torch.inference import BipartiteMarginals, Status
from lmbm_torch.inference.common.results import BipartiteMessages
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.inference.enumeration import one_side as parts
from lmbm_torch.kernels.search import one_side
from lmbm_torch.kernels.search.records import suits
from lmbm_torch.memory import memory_budget

TIED = bipartite_with_known(bipartite_energies(resolution=0.5))


def joint_distribution(energy: BipartiteEnergy, known: torch.Tensor) -> torch.Tensor:
    """P(v, h), (batch, 2^visible, 2^hidden)."""
    return score_table(energy, known).flatten(1).softmax(1).unflatten(1, (2**energy.num_visible, -1))


@pytest.fixture(params=[64, 2**14])
def chunk_bytes(request, monkeypatch):
    """Chunks of a single labelling or a few, and of many."""
    monkeypatch.setattr(exact, "CPU_CHUNK_BYTES", request.param)


@pytest.mark.usefixtures("chunk_bytes")
class TestAgainstTheTable:
    @given(bipartite_with_known())
    def test_log_partition_and_marginals(self, drawn):
        energy, known = drawn
        result = exact.marginals(energy, known=known)
        expected = score_table(energy, known).flatten(1).logsumexp(1)
        torch.testing.assert_close(result.log_partition, expected)
        torch.testing.assert_close(exact.log_partition(energy, known=known), expected)
        joint = joint_distribution(energy, known)
        visible, hidden = all_states(energy.num_visible).double(), all_states(energy.num_hidden).double()
        torch.testing.assert_close(result.visible, joint.sum(2) @ visible)
        torch.testing.assert_close(result.hidden, joint.sum(1) @ hidden)
        pairwise = torch.einsum("bvh,vi,hj->bij", joint, visible, hidden)
        torch.testing.assert_close(exact.pairwise_marginals(energy, known=known), pairwise)
        smaller = torch.minimum(known.isnan().sum(1).max(), torch.tensor(energy.num_hidden))
        assert (result.status.num_iters <= 2**smaller).all()
        assert result.status.exact.all()

    @given(TIED)
    def test_decode_finds_the_best_of_both_sides(self, drawn):
        energy, known = drawn
        result = exact.decode(energy, known=known)
        best = score_table(energy, known).flatten(1).amax(1)
        assert torch.equal(result.objective, best)
        assert torch.equal(result.bound, best)
        assert torch.equal(energy.score(result.labels, result.hidden), best)
        assert ((result.labels == known) | known.isnan()).all()

    @given(TIED)
    def test_marginal_map_finds_the_best_of_the_visible_side(self, drawn):
        energy, known = drawn
        result = exact.marginal_map(energy, known=known)
        best = score_table(energy, known).logsumexp(2).amax(1)
        torch.testing.assert_close(result.objective, best)
        torch.testing.assert_close(result.bound, best)
        torch.testing.assert_close(-energy.free_energy(result.labels), best)
        assert ((result.labels == known) | known.isnan()).all()
        assert result.hidden is None


@given(bipartite_energies())
def test_swapping_sides_swaps_results(energy):
    one, other = exact.marginals(energy), exact.marginals(energy.swap())
    torch.testing.assert_close(one.log_partition, other.log_partition)
    torch.testing.assert_close(one.visible, other.hidden)
    torch.testing.assert_close(one.hidden, other.visible)
    torch.testing.assert_close(exact.pairwise_marginals(energy), exact.pairwise_marginals(energy.swap()).mT)
    torch.testing.assert_close(exact.decode(energy).objective, exact.decode(energy.swap()).objective)


@pytest.mark.parametrize(("num_visible", "num_hidden"), [(3, 4), (4, 3)])
class TestGradients:
    def test_log_partition_is_differentiable(self, num_visible, num_hidden):
        energy = random_bipartite_energy(0, num_visible, num_hidden, 2)
        known = random_known_visible(1, energy, 0.3)

        def log_partition(*tensors):
            return exact.log_partition(BipartiteEnergy(*tensors), known=known)

        tensors = [t.requires_grad_() for t in (energy.visible, energy.hidden, energy.coupling)]
        assert torch.autograd.gradcheck(log_partition, tensors)

    def test_marginals_are_the_gradient_of_the_log_partition(self, num_visible, num_hidden):
        energy = random_bipartite_energy(0, num_visible, num_hidden)
        known = random_known_visible(1, energy, 0.3)
        tensors = [t.requires_grad_() for t in (energy.visible, energy.hidden, energy.coupling)]
        gradients = torch.autograd.grad(exact.log_partition(energy, known=known).sum(), tensors)
        result = exact.marginals(energy, known=known)
        torch.testing.assert_close(result.visible, gradients[0])
        torch.testing.assert_close(result.hidden, gradients[1])
        torch.testing.assert_close(exact.pairwise_marginals(energy, known=known).sum(0), gradients[2])
        assert not result.visible.requires_grad


class TestReach:
    def test_only_the_smaller_side_is_enumerated(self):
        energy = random_bipartite_energy(0, 2000, 3, 2, coupling=0.05)
        assert exact.marginals(energy).status.num_iters.tolist() == [8, 8]
        assert exact.marginals(energy.swap()).status.num_iters.tolist() == [8, 8]
        fields = energy.visible_fields(all_states(3)[:, None])
        by_hand = (softplus(fields).sum(2) + all_states(3).double() @ energy.hidden.mT).logsumexp(0)
        torch.testing.assert_close(exact.log_partition(energy), by_hand)

    def test_memory_does_not_grow_with_the_larger_side(self, monkeypatch):
        energy = random_bipartite_energy(0, 8, 1000, 1, coupling=0.05)
        # What is to be differentiated has all fields in memory.
        energy.coupling.requires_grad_()
        monkeypatch.setattr(exact, "CPU_CHUNK_BYTES", 4 * 1000 * 8)
        rows = []
        score = exact.OneSide.score
        monkeypatch.setattr(
            exact.OneSide, "score", lambda side, labels: rows.append(len(labels)) or score(side, labels)
        )
        with memory_budget(4 * 1000 * 8):
            exact.log_partition(energy)
        assert rows == [4] * 64

    def test_known_units_are_not_enumerated(self):
        energy = random_bipartite_energy(0, 30, 30)
        known = torch.zeros_like(energy.visible)
        known[:, [3, 17]] = torch.nan
        result = exact.decode(energy, known=known)
        assert result.status.num_iters.tolist() == [4, 4, 4]
        torch.testing.assert_close(result.objective, energy.score(result.labels, result.hidden))
        assert exact.marginals(energy, known=known).status.num_iters.tolist() == [4, 4, 4]

    def test_refuses_too_many_states(self):
        energy = random_bipartite_energy(0, 23, 23)
        for routine in (exact.log_partition, exact.marginals, exact.decode, exact.marginal_map):
            with pytest.raises(ValueError, match=r"^energy: expected at most 22 free labels .* got 23"):
                routine(energy)

    def test_marginal_map_refuses_many_visible_units_even_with_one_hidden(self):
        with pytest.raises(ValueError, match=r"^energy: expected at most 22 free labels .* got 23"):
            exact.marginal_map(random_bipartite_energy(0, 23, 1))

    def test_decode_refuses_more_than_the_best(self):
        with pytest.raises(ValueError, match=r"^top_k: expected 1 for a bipartite energy, got 2"):
            exact.decode(random_bipartite_energy(0, 3, 3), top_k=2)


class TestCompiled:
    """With units enough on the other side a kernel takes over, which must say what the reference says."""

    @pytest.mark.parametrize(
        ("coupling", "dtype"), [(0.3, torch.float64), (8.0, torch.float64), (0.3, torch.float32)]
    )
    @pytest.mark.parametrize("num_hidden", [64, 150])
    def test_equals_the_reference(self, monkeypatch, coupling, dtype, num_hidden):
        energy = random_bipartite_energy(0, 10, num_hidden, 2, coupling=coupling, dtype=dtype)
        assert suits(energy.hidden, energy.coupling)
        came, best = exact.marginals(energy), exact.marginal_map(energy)
        monkeypatch.setattr(parts, "kernel_suits", lambda *_: False)
        expected, best_expected = exact.marginals(energy), exact.marginal_map(energy)
        assert torch.equal(best.labels, best_expected.labels)
        torch.testing.assert_close(best.objective, best_expected.objective)
        for name in ("visible", "hidden", "log_partition"):
            torch.testing.assert_close(getattr(came, name), getattr(expected, name))
        torch.testing.assert_close(exact.log_partition(energy), came.log_partition)

    def test_labellings_in_any_order_and_shared_by_examples(self):
        energy = random_bipartite_energy(1, 9, 100, 2)
        labels = all_states(9)[torch.randperm(512, generator=torch.Generator().manual_seed(0))][:, None]
        weights = torch.rand(512, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        fields = energy.hidden_fields(labels)
        sums = one_side.log_sums(labels, energy.hidden, energy.coupling)
        torch.testing.assert_close(sums, softplus(fields).sum(-1))
        expected = torch.einsum("sb,sbj->bj", weights, torch.sigmoid(fields))
        came = one_side.expected_sum(labels, weights, energy.hidden, energy.coupling)
        torch.testing.assert_close(came, expected)

    @pytest.mark.parametrize("bias", [-1e4, 1e4])
    def test_what_could_overflow_is_left_to_the_reference(self, bias):
        energy = random_bipartite_energy(2, 6, 80)
        energy = replace(energy, hidden=energy.hidden + bias)
        assert not suits(energy.hidden, energy.coupling)
        by_hand = (energy.visible * all_states(6)[:, None]).sum(-1)
        by_hand = by_hand + softplus(energy.hidden_fields(all_states(6)[:, None])).sum(-1)
        torch.testing.assert_close(exact.log_partition(energy), by_hand.logsumexp(0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extremes_neither_overflow_nor_lose_their_limits(dtype):
    generator = torch.Generator().manual_seed(0)
    energy = BipartiteEnergy(
        1e4 * torch.randn(4, 6, generator=generator).to(dtype),
        1e4 * torch.randn(4, 5, generator=generator).to(dtype),
        200 * torch.randn(6, 5, generator=generator).to(dtype),
    )
    result, best = exact.marginals(energy), exact.decode(energy)
    assert (result.log_partition >= best.objective).all()
    assert (result.log_partition <= best.objective + 11 * math.log(2)).all()
    torch.testing.assert_close(result.visible, best.labels.to(dtype))
    torch.testing.assert_close(result.hidden, best.hidden.to(dtype))


@given(bipartite_energies(couplings=(0.0,)))
def test_uncoupled_units_are_independent(energy):
    result = exact.marginals(energy)
    torch.testing.assert_close(result.visible, torch.sigmoid(energy.visible))
    torch.testing.assert_close(result.hidden, torch.sigmoid(energy.hidden))
    total = softplus(energy.visible).sum(1) + softplus(energy.hidden).sum(1)
    torch.testing.assert_close(result.log_partition, total)


class TestPairwiseFromMessages:
    """On a star, one visible unit among hidden ones, the messages of belief propagation are known."""

    @staticmethod
    def star(energy: BipartiteEnergy, keep_messages: bool = True) -> BipartiteMarginals:
        to_visible = softplus(energy.hidden + energy.coupling) - softplus(energy.hidden)
        log_odds = energy.visible + to_visible.sum(1, keepdim=True)
        cavity = log_odds - to_visible
        to_hidden = softplus(cavity + energy.coupling) - softplus(cavity)
        rows = torch.ones(energy.batch_size, dtype=torch.bool)
        return BipartiteMarginals(
            torch.sigmoid(log_odds),
            torch.sigmoid(energy.hidden + to_hidden),
            exact.log_partition(energy),
            Status(rows, rows, rows.long(), rows.to(energy.dtype)),
            BipartiteMessages(to_hidden[:, None], to_visible[:, None]) if keep_messages else None,
            energy.coupling,
        )

    @given(bipartite_energies(max_visible=1))
    def test_equals_enumeration(self, energy):
        star, expected = self.star(energy), exact.marginals(energy)
        torch.testing.assert_close(star.visible, expected.visible)
        torch.testing.assert_close(star.hidden, expected.hidden)
        torch.testing.assert_close(star.pairwise(), exact.pairwise_marginals(energy))

    def test_rounded_marginals_do_no_harm(self):
        energy = random_bipartite_energy(0, 1, 4, coupling=300.0, dtype=torch.float32)
        star = self.star(energy)
        assert ((star.hidden == 0) | (star.hidden == 1)).any()
        torch.testing.assert_close(star.pairwise(), exact.pairwise_marginals(energy))

    def test_refuses_where_none_were_kept(self):
        with pytest.raises(ValueError, match=r"^messages: expected a result with kept messages"):
            self.star(random_bipartite_energy(0, 1, 4), keep_messages=False).pairwise()
