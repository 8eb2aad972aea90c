"""Chains by dynamic programming against enumeration, at every strength, length and precision."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies.chain import (
    SCALES,
    chain_energies,
    labellings,
    random_chain_energy,
    with_states_renamed,
)
from strategies.pairwise import random_pairwise_energy

from lmbm_torch.energies import ChainEnergy, PairwiseEnergy
from lmbm_torch.energies.chain import PADDING
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.inference.trees import chain_dp, chain_steps

FORMS = [
    (scale, per_step, forbidden) for scale in SCALES for per_step in (False, True) for forbidden in (0, 0.4)
]


def expected_marginals(energy: ChainEnergy, example: int) -> tuple[torch.Tensor, ...]:
    """Log partition, nodes, edges and entropy of one chain by enumeration."""
    labels, scores = labellings(energy, example)
    log_partition = scores.logsumexp(0)
    probability = (scores - log_partition).exp()
    states = torch.arange(energy.num_states)
    is_state = (labels[..., None] == states).double()
    nodes = torch.einsum("n,nts->ts", probability, is_state)
    edges = torch.einsum("n,ntr,nts->trs", probability, is_state[:, :-1], is_state[:, 1:])
    return log_partition, nodes, edges, torch.special.entr(probability).sum()


@pytest.mark.parametrize(("scale", "per_step", "forbidden"), FORMS)
def test_500_chains_equal_enumeration(scale, per_step, forbidden):
    for seed, (length, states) in enumerate(((4, 3), (6, 2), (3, 4), (1, 3), (5, 1))):
        energy = random_chain_energy(
            seed, length, states, batch_size=5, scale=scale, per_step=per_step, forbidden=forbidden
        )
        result, entropy = chain_dp.marginals(energy), chain_dp.entropy(energy)
        best = chain_dp.decode(energy)
        for example in range(energy.batch_size):
            log_partition, nodes, edges, expected_entropy = expected_marginals(energy, example)
            torch.testing.assert_close(result.log_partition[example], log_partition)
            torch.testing.assert_close(result.states[example], nodes)
            torch.testing.assert_close(result.edges[example], edges)
            torch.testing.assert_close(entropy[example], expected_entropy)
            labels, scores = labellings(energy, example)
            torch.testing.assert_close(best.objective[example], scores.max())
            winners = labels[scores >= scores.max() - 1e-9 * scores.max().abs()]
            assert (winners == best.labels[example]).all(1).any()
        torch.testing.assert_close(chain_dp.log_partition(energy), result.log_partition)
        assert torch.equal(best.bound, best.objective)
        for status in (result.status, best.status):
            assert status.exact.all()
            assert status.num_iters.tolist() == energy.lengths.tolist()


@given(chain_energies(), st.integers(2, 6))
def test_the_best_few_are_distinct_sorted_and_those_of_enumeration(energy, top_k):
    counts = [int(labellings(energy, example)[1].isfinite().sum()) for example in range(energy.batch_size)]
    if max(counts) < top_k:
        with pytest.raises(ValueError, match=rf"^top_k: expected at most {max(counts)}, .* got {top_k}"):
            chain_dp.decode(energy, top_k=top_k)
        return
    found = chain_dp.decode(energy, top_k=top_k)
    assert found.labels.shape == (energy.batch_size, top_k, energy.max_length)
    assert torch.equal(found.bound, found.objective[:, -1])
    torch.testing.assert_close(chain_dp.decode(energy).objective, found.objective[:, 0])
    for example in range(energy.batch_size):
        # Chains of fewer labellings have padding in the last places.
        count = min(counts[example], top_k)
        labels, objective = found.labels[example], found.objective[example]
        assert (labels[count:] == PADDING).all()
        assert (objective[count:] == -torch.inf).all()
        assert len(labels[:count].unique(dim=0)) == count
        torch.testing.assert_close(objective[:count], labellings(energy, example)[1].topk(count).values)
        for rank in range(count):
            beside = found.labels[:, 0].index_put((torch.tensor([example]),), labels[rank])
            torch.testing.assert_close(energy.score(beside)[example], objective[rank])


def test_ties_go_to_the_lower_state_of_the_last_position():
    # Labellings 01 and 10 tie.
    energy = ChainEnergy(torch.zeros(1, 2, 2), torch.tensor([[0.0, 1.0], [1.0, 0.0]]))
    assert chain_dp.decode(energy).labels.tolist() == [[1, 0]]


@given(chain_energies())
def test_padding_never_matters(energy):
    inside = energy.inside
    transition = energy.transition
    if transition.ndim == 4:
        transition = transition.where(inside[:, 1:, None, None], 5.0)
    longer = ChainEnergy(
        torch.nn.functional.pad(energy.unary.where(inside[..., None], -3.0), (0, 0, 0, 1), value=9.0),
        transition if transition.ndim == 2 else torch.nn.functional.pad(transition, (0, 0, 0, 0, 0, 1)),
        energy.lengths,
    )
    length = energy.max_length
    padded, result = chain_dp.marginals(longer), chain_dp.marginals(energy)
    torch.testing.assert_close(padded.log_partition, result.log_partition)
    torch.testing.assert_close(padded.states[:, :length], result.states)
    torch.testing.assert_close(padded.edges[:, : length - 1], result.edges)
    assert not padded.states[~longer.inside].any()
    assert not padded.edges[~longer.inside[:, 1:]].any()
    labels = chain_dp.decode(longer).labels
    assert torch.equal(labels[:, :length], chain_dp.decode(energy).labels)
    assert (labels[~longer.inside] == PADDING).all()
    torch.testing.assert_close(chain_dp.entropy(longer), chain_dp.entropy(energy))


@given(chain_energies())
def test_batch_of_one_equals_batch_of_many(energy):
    together, best, entropy = chain_dp.marginals(energy), chain_dp.decode(energy), chain_dp.entropy(energy)
    for example in range(energy.batch_size):
        row = slice(example, example + 1)
        alone = chain_dp.marginals(energy.select(row))
        torch.testing.assert_close(alone.log_partition, together.log_partition[row])
        torch.testing.assert_close(alone.states, together.states[row])
        torch.testing.assert_close(alone.edges, together.edges[row])
        torch.testing.assert_close(chain_dp.decode(energy.select(row)).objective, best.objective[row])
        torch.testing.assert_close(chain_dp.entropy(energy.select(row)), entropy[row])


@given(chain_energies())
def test_the_gradient_is_the_marginals(energy):
    unary, transition = energy.unary.clone().requires_grad_(), energy.transition.clone().requires_grad_()
    chain_dp.log_partition(replace(energy, unary=unary, transition=transition)).sum().backward()
    result = chain_dp.marginals(energy)
    torch.testing.assert_close(unary.grad, result.states)
    edges = result.edges if energy.transition.ndim == 4 else result.edges.sum((0, 1))
    # With chains of one position alone nothing flows there.
    came = torch.zeros_like(transition) if transition.grad is None else transition.grad
    torch.testing.assert_close(came, edges)


@pytest.mark.parametrize("routine", [chain_dp.log_partition, chain_dp.entropy])
@pytest.mark.parametrize("scale", [0.3, 40.0])
def test_gradients_of_first_and_second_order(routine, scale):
    energy = random_chain_energy(3, 4, 3, 2, ragged=False)
    spread = torch.eye(3, dtype=torch.float64) * scale * 20
    tensors = energy.unary.requires_grad_(), (energy.transition - spread).requires_grad_()

    def value(unary, transition):
        return routine(ChainEnergy(unary, transition, torch.tensor([4, 2])))

    assert torch.autograd.gradcheck(value, tensors)
    assert torch.autograd.gradgradcheck(value, tensors)


@pytest.mark.parametrize(("scale", "per_step", "forbidden"), FORMS)
def test_float32_is_as_good_as_its_log_potentials(scale, per_step, forbidden):
    energy = random_chain_energy(5, 40, 5, scale=scale, per_step=per_step, forbidden=forbidden)
    rounded = ChainEnergy(energy.unary.float(), energy.transition.float(), energy.lengths)
    same = ChainEnergy(rounded.unary.double(), rounded.transition.double(), energy.lengths)
    came, expected = chain_dp.marginals(rounded), chain_dp.marginals(same)
    # Rounding of a potential moves a log-probability by as much.
    atol = 1e-5 * max(1, scale**0.5)
    torch.testing.assert_close(came.log_partition, expected.log_partition.float(), rtol=1e-6, atol=40 * atol)
    torch.testing.assert_close(came.states, expected.states.float(), rtol=0, atol=atol)
    torch.testing.assert_close(came.edges, expected.edges.float(), rtol=0, atol=atol)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("spread", [0.99, 1.01, 3.0])
def test_sums_of_probabilities_are_watched_from_the_limit_of_their_range_on(spread, dtype):
    limits = torch.finfo(dtype)
    limit = math.log(limits.eps / limits.tiny) - math.log(16 * 4)
    energy = random_chain_energy(6, 60, 4, dtype=dtype)
    # The other states' probabilities underflow at first, and leaving state 0 costs all there is.
    unary = energy.unary.clone()
    unary[:, 0, 1:] -= 3 * limit
    transition = torch.zeros(4, 4, dtype=dtype)
    transition[0, 1:] = -spread * limit
    chains = chain_steps.Chains.of(ChainEnergy(unary, transition, energy.lengths))
    assert (chains.least == 0) == (spread < 1)
    messages, scale = chain_steps.forward(chains)
    # Nothing is trusted: every sum is a logsumexp.
    expected_messages, expected_scale = chain_steps.forward(replace(chains, least=math.inf))
    torch.testing.assert_close(scale, expected_scale)
    torch.testing.assert_close(torch.stack(messages), torch.stack(expected_messages))


@given(chain_energies(), st.integers(0, 2**32 - 1))
def test_renaming_states_renames_results(energy, seed):
    order = torch.randperm(energy.num_states, generator=torch.Generator().manual_seed(seed))
    renamed, result = chain_dp.marginals(with_states_renamed(energy, order)), chain_dp.marginals(energy)
    torch.testing.assert_close(renamed.states, result.states[..., order])
    torch.testing.assert_close(renamed.edges, result.edges[..., order, :][..., order])
    torch.testing.assert_close(renamed.log_partition, result.log_partition)


@pytest.mark.parametrize("forbidden", [0.0, 0.5])
@pytest.mark.parametrize("per_step", [False, True])
def test_samples_have_the_marginals(per_step, forbidden):
    energy = random_chain_energy(7, 4, 3, per_step=per_step, forbidden=forbidden)
    count = 20_000
    drawn = chain_dp.sample(energy, count, generator=torch.Generator().manual_seed(0))
    assert drawn.shape == (count, 4, 4)
    assert (drawn[:, ~energy.inside] == PADDING).all()
    assert energy.score(drawn).isfinite().all()
    expected = chain_dp.marginals(energy)
    is_state = (drawn[..., None] == torch.arange(3)).double()
    nodes = is_state.mean(0)
    edges = torch.einsum("nbtr,nbts->btrs", is_state[:, :, :-1], is_state[:, :, 1:]) / count
    # Five standard errors of a frequency, at most ½ · 5 / √count.
    assert (nodes - expected.states).abs().max() < 2.5 / count**0.5
    assert (edges - expected.edges).abs().max() < 2.5 / count**0.5
    again = chain_dp.sample(energy, count, generator=torch.Generator().manual_seed(0))
    assert torch.equal(again, drawn)


def test_chain_shaped_boltzmann_machines_agree_with_enumeration_of_their_labels():
    dense = random_pairwise_energy(8, 7)
    neighbours = torch.ones(7, 7, dtype=torch.float64).triu(1).tril(1)
    energy = PairwiseEnergy(dense.unary, dense.pairwise * (neighbours + neighbours.mT), dense.constant)
    chain = ChainEnergy.from_pairwise(energy, range(7))
    expected, result = exact.marginals(energy), chain_dp.marginals(chain)
    torch.testing.assert_close(result.states[..., 1], expected.labels)
    torch.testing.assert_close(result.log_partition, expected.log_partition)
    assert torch.equal(chain_dp.decode(chain).labels, exact.decode(energy).labels)


def test_arguments_are_left_alone_and_results_carry_no_gradient():
    energy = random_chain_energy(9, per_step=True)
    unary, transition = energy.unary.clone(), energy.transition.clone()
    learnt = replace(energy, unary=energy.unary.clone().requires_grad_())
    chain_dp.entropy(energy)
    for result in (chain_dp.marginals(learnt).states, chain_dp.decode(learnt, top_k=2).objective):
        assert not result.requires_grad
    assert torch.equal(energy.transition.nan_to_num(), transition.nan_to_num())
    assert torch.equal(learnt.unary.nan_to_num(), unary.nan_to_num())


ROUTINES = [
    chain_dp.log_partition,
    chain_dp.marginals,
    chain_dp.entropy,
    chain_dp.decode,
    lambda energy: chain_dp.sample(energy, 1),
]


@pytest.mark.parametrize("routine", ROUTINES)
def test_refuses_what_has_no_answer(routine):
    energy = random_chain_energy(0, ragged=False)
    with pytest.raises(ValueError, match=r"^unary: expected finite values or −∞"):
        routine(replace(energy, unary=torch.full_like(energy.unary, torch.nan)))
    unary = energy.unary.clone()
    unary[2, 3] = -torch.inf
    with pytest.raises(
        ValueError,
        match=r"^energy: expected an allowed labelling .* got none for 1 chains, the first in row 2",
    ):
        routine(replace(energy, unary=unary))


@pytest.mark.parametrize("is_long", [False, True])
@pytest.mark.parametrize("kind", ["shared", "per step", "known"])
def test_forbidden_transitions_are_summed_by_the_kernel(kind, is_long, monkeypatch):
    """Half of the transitions forbidden, or states known one after another: sums of 0 that lost nothing."""
    length = 300 if is_long else 5
    energy = random_chain_energy(3, length, 4, scale=3.0, per_step=kind == "per step", ragged=False)
    generator = torch.Generator().manual_seed(0)
    forbidden = torch.rand(energy.transition.shape, generator=generator) < 0.4
    forbidden[..., 0, :] = forbidden[..., 0] = False
    unary = energy.unary
    if kind == "known":
        known = torch.rand(unary.shape, generator=generator) < 0.4
        known[..., 0] = False
        unary = unary.masked_fill(known, -torch.inf)
    tables = energy.transition.masked_fill(forbidden, -torch.inf)
    energy = replace(energy, unary=unary, transition=tables)
    found, by_steps = chain_dp.marginals(energy), chain_steps.forward
    monkeypatch.setattr(chain_steps, "forward", None)
    again = chain_dp.marginals(energy)
    monkeypatch.setattr(chain_steps, "forward", by_steps)
    monkeypatch.setattr(chain_steps, "compiled", lambda *_: None)
    expected = chain_dp.marginals(energy)
    for name in ("states", "edges", "log_partition"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), rtol=1e-9, atol=1e-12)
        assert torch.equal(getattr(found, name), getattr(again, name))
    assert bool((found.edges[energy.transition.expand_as(found.edges) == -torch.inf] == 0).all())


@pytest.mark.parametrize("is_backward", [False, True])
def test_a_path_that_vanishes_for_a_while_is_summed_as_logarithms(is_backward):
    """Two states without steps between them: 100 positions favour the one, 150 positions the other."""
    unary = torch.zeros(1, 250, 2, dtype=torch.float64)
    unary[0, :100, 1] = unary[0, 100:, 0] = -10.0
    transition = torch.zeros(2, 2, dtype=torch.float64).fill_diagonal_(1.0).log()
    energy = ChainEnergy(unary.flip(1) if is_backward else unary, transition)
    found = chain_dp.marginals(energy)
    assert float(chain_dp.log_partition(energy)) == pytest.approx(-1000)
    assert float(found.log_partition) == pytest.approx(-1000)
    assert found.states[0, :, 1].tolist() == [1.0] * 250


def test_refuses_counts_that_are_none():
    energy = random_chain_energy(0)
    with pytest.raises(ValueError, match=r"^num_samples: expected"):
        chain_dp.sample(energy, 0)
    with pytest.raises(ValueError, match=r"^top_k: expected"):
        chain_dp.decode(energy, top_k=0)


def test_a_gradient_is_the_same_when_it_is_taken_again():
    torch.manual_seed(0)
    unary, transition = torch.randn(2, 4, 3, requires_grad=True), torch.randn(3, 3, requires_grad=True)
    total = chain_dp.log_partition(ChainEnergy(unary, transition)).sum()
    first = torch.autograd.grad(total, (unary, transition), retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(total, (unary, transition)), first)


@pytest.mark.parametrize("is_shared", [True, False])
def test_second_derivatives_pass_finite_differences(is_shared):
    torch.manual_seed(0)
    tables = (4, 4) if is_shared else (3, 4, 4, 4)
    inputs = torch.randn(3, 5, 4).double().requires_grad_(), torch.randn(*tables).double().requires_grad_()

    def log_partition(unary, transition):
        return chain_dp.log_partition(ChainEnergy(unary, transition, torch.tensor([5, 1, 3])))

    assert torch.autograd.gradcheck(log_partition, inputs)
    assert torch.autograd.gradgradcheck(log_partition, inputs)


LONG = """
import resource, torch
from lmbm_torch.energies import ChainEnergy
from lmbm_torch.inference.trees import chain_dp

def gradients(length):
    unary = torch.randn(1, length, 26, requires_grad=True)
    steps = torch.randn(1, length - 1, 26, 26, requires_grad=True)
    chain_dp.log_partition(ChainEnergy(unary, steps)).backward()
    torch.testing.assert_close(unary.grad.sum(-1), torch.ones(1, length))
    torch.testing.assert_close(steps.grad.sum((-2, -1)), torch.ones(1, length - 1))

torch.manual_seed(0)
gradients(5)  # compiled code is loaded
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
gradients(100_000)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**20)
"""


@pytest.mark.slow
def test_gradients_by_transitions_of_100000_steps_take_less_than_a_gibibyte():
    # Inputs and gradients alone take half of it.
    out = subprocess.run([sys.executable, "-c", LONG], check=True, capture_output=True, text=True)
    assert float(out.stdout) < 0.95
