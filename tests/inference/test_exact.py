"""Enumeration against plain loops over itertools.product."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from itertools import product
from typing import ClassVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies.chain import random_chain_energy
from strategies.directed import directed_energies, energies_with_known, random_directed_energy, random_known
from strategies.tree import random_tree_energy

from lmbm_torch.energies import BaseEnergy, DirectedEnergy
from lmbm_torch.energies.base import to_spins
from lmbm_torch.inference.enumeration import exact

DOUBLE = directed_energies(max_labels=5, max_batch=3, dtypes=(torch.float64,))
# Sums of these are exact, so that ties are ties in any order of summation.
TIED = directed_energies(max_labels=5, max_batch=3, resolution=0.5)


def agreeing(known: torch.Tensor) -> list[torch.Tensor]:
    """For each example its labellings in order of their number, label 0 the most significant bit."""
    options = [[(0, 1) if value != value else (int(value),) for value in row] for row in known.tolist()]
    return [torch.tensor(list(product(*row))) for row in options]


def brute_force(energy: DirectedEnergy, known: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """For each example its labellings and their log-probabilities."""
    return [
        (labellings, energy.select(slice(example, example + 1)).log_prob(labellings[:, None])[:, 0])
        for example, labellings in enumerate(agreeing(known))
    ]


@pytest.fixture(params=[64, 2**12])
def chunk_bytes(request, monkeypatch):
    """Chunks of one to sixteen labellings, and of many."""
    monkeypatch.setattr(exact, "CPU_CHUNK_BYTES", request.param)


@pytest.mark.usefixtures("chunk_bytes")
class TestAgainstLoops:
    @given(energies_with_known(DOUBLE))
    def test_log_partition_and_marginals(self, drawn):
        energy, known = drawn
        result = exact.marginals(energy, known=known)
        torch.testing.assert_close(exact.log_partition(energy, known=known), result.log_partition)
        for example, (labellings, scores) in enumerate(brute_force(energy, known)):
            torch.testing.assert_close(result.log_partition[example], scores.logsumexp(0))
            expected = (scores.softmax(0)[:, None] * labellings).sum(0)
            torch.testing.assert_close(result.labels[example], expected)
            assert result.status.num_iters[example] == len(labellings)

    @given(energies_with_known(TIED), st.sampled_from((0.5, 1.0, 4.0)))
    def test_decode_hinge_finds_the_least_and_of_equals_the_first(self, drawn, margin):
        energy, known = drawn
        result = exact.decode_hinge(energy, margin, known=known)
        for example, labellings in enumerate(agreeing(known)):
            margins = energy.select(slice(example, example + 1)).local_margins(labellings[:, None])[:, 0]
            losses = (margin - margins).clamp(min=0).sum(-1).tolist()
            assert result.objective[example] == result.bound[example] == min(losses)
            assert result.labels[example].tolist() == labellings[losses.index(min(losses))].tolist()

    @given(energies_with_known(DOUBLE), st.integers(1, 6))
    def test_top_k_are_the_best_of_the_enumeration(self, drawn, top_k):
        energy, known = drawn
        top_k = min(top_k, 2 ** int(known.isnan().sum(1).min()))
        result = exact.decode(energy, known=known, top_k=top_k)
        for example, (labellings, scores) in enumerate(brute_force(energy, known)):
            best = scores.topk(top_k).values
            torch.testing.assert_close(result.objective.reshape(-1, top_k)[example], best)
            torch.testing.assert_close(result.bound[example], best[-1])
            chosen = result.labels.reshape(energy.batch_size, top_k, -1)[example]
            torch.testing.assert_close(energy.log_prob(chosen[:, None])[:, example], best)
            assert set(map(tuple, chosen.tolist())) <= set(map(tuple, labellings.tolist()))
            assert len(set(map(tuple, chosen.tolist()))) == top_k

    @given(TIED)
    def test_all_labellings_come_in_order_of_loss_then_number(self, energy):
        count = 2**energy.num_labels
        result = exact.decode_hinge(energy, top_k=count)
        labellings = agreeing(torch.full((1, energy.num_labels), torch.nan))[0]
        losses = (1 - energy.local_margins(labellings[:, None])).clamp(min=0).sum(-1).T
        ranked, order = losses.sort(dim=1, stable=True)
        assert result.objective.tolist() == ranked.tolist()
        assert result.labels.tolist() == labellings[order].tolist()

    def test_log_partition_is_differentiable(self):
        energy = random_directed_energy(0, 4, 2, num_cliques=2)
        known = random_known(1, energy)
        assert energy.clique_weight is not None

        def log_partition(unary, parents, clique_weight):
            earlier = energy.parents != 0
            changed = DirectedEnergy(unary, parents * earlier, energy.ordering, energy.cliques, clique_weight)
            return exact.log_partition(changed, known=known)

        tensors = [energy.unary, energy.parents, energy.clique_weight]
        assert torch.autograd.gradcheck(log_partition, [t.clone().requires_grad_() for t in tensors])


@dataclass(frozen=True)
class Ising(BaseEnergy):
    """A pairwise energy written here: enumeration must not depend on the model being directed."""

    unary: torch.Tensor
    pairwise: torch.Tensor
    PER_EXAMPLE: ClassVar[dict[str, int]] = {"unary": 2}

    def score(self, labels: torch.Tensor) -> torch.Tensor:
        spins = to_spins(labels, self.dtype)
        return ((self.unary + spins @ self.pairwise / 2) * spins).sum(-1)


def test_marginals_of_an_undirected_energy_are_the_gradient_of_its_log_partition():
    generator = torch.Generator().manual_seed(0)
    unary = torch.randn(3, 6, generator=generator, dtype=torch.float64, requires_grad=True)
    pairwise = torch.randn(6, 6, generator=generator, dtype=torch.float64).triu(1)
    energy = Ising(unary, pairwise + pairwise.mT)
    (mean_spin,) = torch.autograd.grad(exact.log_partition(energy).sum(), unary)
    result = exact.marginals(energy)
    torch.testing.assert_close(result.labels, (1 + mean_spin) / 2)
    assert not result.labels.requires_grad


def test_a_directed_model_is_normalised():
    energy = random_directed_energy(0, 10, coupling=3.0)
    torch.testing.assert_close(exact.log_partition(energy), torch.zeros(3).double(), rtol=0, atol=1e-7)


def test_known_labels_are_not_enumerated():
    energy = random_directed_energy(0, 40)
    known = torch.zeros(3, 40).double()
    known[0, [3, 17]] = torch.nan
    result = exact.decode(energy, known=known)
    assert result.status.num_iters.tolist() == [4, 1, 1]
    torch.testing.assert_close(result.objective, energy.log_prob(result.labels))


def test_labels_that_all_examples_know_alike():
    energy = random_directed_energy(0, 5)
    row = torch.tensor([torch.nan, 1, torch.nan, 0, torch.nan]).double()
    known = row.repeat(3, 1)
    alone = [exact.decode(energy.select(slice(i, i + 1)), known=known[:1], top_k=3) for i in range(3)]
    together = exact.decode(energy, known=known, top_k=3)
    assert together.labels.tolist() == torch.cat([result.labels for result in alone]).tolist()
    assert together.status.num_iters.tolist() == [8, 8, 8]
    torch.testing.assert_close(
        exact.log_partition(energy, known=known), exact.marginals(energy, known=known).log_partition
    )


def test_the_gradient_costs_one_number_per_chunk_and_example(monkeypatch):
    energy = random_directed_energy(0, 10)
    energy.unary.requires_grad_()
    monkeypatch.setattr(exact, "CPU_CHUNK_BYTES", 32 * 3 * 10 * 8)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: saved.append(tensor.numel()) or tensor, lambda tensor: tensor
    ):
        total = exact.log_partition(energy)
    # 32 chunks are merged; each merger keeps its two arguments and maybe its result, of 3 examples.
    assert sum(saved) <= 31 * 3 * 3
    total.sum().backward()
    assert energy.unary.grad is not None


def test_refuses_too_many_labellings():
    energy = random_directed_energy(0, 23)
    with pytest.raises(ValueError, match=r"^energy: expected at most 22 free labels .* got 23"):
        exact.log_partition(energy)


@pytest.mark.parametrize("top_k", [0, -1, 3])
def test_refuses_more_labellings_than_there_are(top_k):
    energy = random_directed_energy(0, 3)
    known = torch.full((3, 3), torch.nan)
    known[1, :2] = 1
    with pytest.raises(ValueError, match=r"^top_k: expected 1 to 2"):
        exact.decode(energy, known=known, top_k=top_k)


@pytest.mark.parametrize("margin", [0.0, -1.0, float("nan"), float("inf")])
def test_refuses_a_margin_that_is_not_positive(margin):
    with pytest.raises(ValueError, match=r"^margin: expected"):
        exact.decode_hinge(random_directed_energy(0, 3), margin)


@pytest.mark.parametrize(
    "energy", [random_chain_energy(0, 4, 2, 3), random_tree_energy(0)], ids=["chain", "tree"]
)
@pytest.mark.parametrize("routine", [exact.log_partition, exact.marginals, exact.decode])
def test_labels_of_several_states_are_refused(no_shape_checks, energy, routine):
    with pytest.raises(TypeError, match=type(energy).__name__):
        routine(energy)


def test_a_gradient_of_one_chunk_needs_no_compiler_of_torch():
    code = (
        "import sys, torch; from lmbm_torch.energies import PairwiseEnergy;"
        "from lmbm_torch.inference.enumeration import exact;"
        "unary = torch.zeros(1, 3, requires_grad=True);"
        "exact.log_partition(PairwiseEnergy(unary, torch.zeros(3, 3))).sum().backward();"
        "print('torch._dynamo' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["False"]
