"""Branch and bound against enumeration, against greedy decoding, and against what its certificates claim."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from interpreted import without_numba
from strategies.directed import (
    COUPLINGS,
    directed_energies,
    energies_with_known,
    random_directed_energy,
    random_known,
)
from sweeps import thorough

from lmbm_torch.energies import DirectedEnergy
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.inference.search import beam_search, branch_and_bound
from lmbm_torch.kernels import installed

DOUBLE = directed_energies(max_labels=7, dtypes=(torch.float64,))
# Many labellings tie, but for the round-off of the losses.
TIED = directed_energies(max_labels=7, resolution=0.1, dtypes=(torch.float64,))
# The decoders with the sign that makes their objective a loss, and the least loss of a right branch.
DECODERS = ((branch_and_bound.decode_hinge, 1, 1.0), (branch_and_bound.decode, -1, math.log(2)))


def losses(energy: DirectedEnergy, labels: torch.Tensor, sign: int) -> torch.Tensor:
    """What the decoder of this sign minimises."""
    if sign < 0:
        return -energy.log_prob(labels)
    return (1 - energy.local_margins(labels)).clamp(min=0).sum(-1)


def enumerated(energy: DirectedEnergy, sign: int, **options) -> torch.Tensor:
    """The losses that enumeration finds."""
    decode = exact.decode_hinge if sign > 0 else exact.decode
    return sign * decode(energy, **options).objective


# 14 · 6 · 4 · 7 = 2,352 models and inputs, each decoded by both objectives, with and without known labels.
@pytest.mark.parametrize("num_cliques", [0, 5], ids=["pairs", "cliques"])
@pytest.mark.parametrize("per_example", [False, True], ids=["shared", "per-example"])
@pytest.mark.parametrize("num_labels", thorough([1, 2, 3, 5, 8, 12, 4, 6, 7, 9, 10, 11, 13, 14], 6))
def test_equals_enumeration(num_labels, per_example, num_cliques):
    for seed, coupling in enumerate(COUPLINGS):
        energy = random_directed_energy(
            seed, num_labels, 7, coupling=coupling, per_example=per_example, num_cliques=num_cliques
        )
        for known in (None, random_known(seed, energy, share=0.4)):
            for decode, sign, _ in DECODERS:
                found = decode(energy, known=known)
                torch.testing.assert_close(sign * found.objective, enumerated(energy, sign, known=known))
                torch.testing.assert_close(sign * found.objective, losses(energy, found.labels, sign))
                assert found.bound.tolist() == found.objective.tolist()
                assert found.status.exact.all()
                assert found.status.converged.all()
                if known is not None:
                    given = ~known.isnan()
                    assert found.labels[given].tolist() == known[given].tolist()


@given(energies_with_known(DOUBLE), st.integers(1, 128), st.sampled_from((0.5, 1.0, 4.0)))
def test_top_k_are_the_best_of_the_enumeration(drawn, top_k, margin):
    energy, known = drawn
    top_k = min(top_k, 2 ** int(known.isnan().sum(1).min()))
    for found, best in (
        (
            branch_and_bound.decode_hinge(energy, margin, known=known, top_k=top_k),
            exact.decode_hinge(energy, margin, known=known, top_k=top_k),
        ),
        (
            branch_and_bound.decode(energy, known=known, top_k=top_k),
            exact.decode(energy, known=known, top_k=top_k),
        ),
    ):
        assert found.labels.shape == best.labels.shape
        torch.testing.assert_close(found.objective, best.objective)
        torch.testing.assert_close(found.bound, best.bound)
        assert found.status.exact.all()
        for labellings in found.labels.reshape(energy.batch_size, top_k, -1).tolist():
            assert len(set(map(tuple, labellings))) == top_k


def least_chain_losses(energy: DirectedEnergy) -> torch.Tensor:
    """Hinge losses of the best labellings where label i has the one parent i − 1, by dynamic programming."""
    spins = torch.tensor([-1.0, 1.0], dtype=energy.dtype)
    best = (1 - energy.unary[:, :1] * spins).clamp(min=0)
    for label in range(1, energy.num_labels):
        field = energy.unary[:, label, None] + energy.parents[label, label - 1] * spins
        best = (best[..., None] + (1 - field[..., None] * spins).clamp(min=0)).amin(1)
    return best.amin(1)


@pytest.mark.parametrize("coupling", [0.1, 1.0, 5.0])
def test_equals_dynamic_programming_on_long_chains(coupling):
    generator = torch.Generator().manual_seed(0)
    weights = coupling * torch.randn(29, generator=generator, dtype=torch.float64)
    unary = torch.randn(4, 30, generator=generator, dtype=torch.float64)
    energy = DirectedEnergy(unary, weights.diag(-1), torch.arange(30))
    found = branch_and_bound.decode_hinge(energy)
    torch.testing.assert_close(found.objective, least_chain_losses(energy))
    assert found.status.exact.all()


@given(energies_with_known(DOUBLE), st.sampled_from((0.3, 1.0, 2.0, 3.5)))
def test_a_cutoff_finds_what_is_below_it_and_else_the_greedy_labelling(drawn, cutoff):
    energy, known = drawn
    greedy = beam_search.decode(energy, known=known).labels
    for decode, sign, right_branch in DECODERS:
        found, ceiling = decode(energy, cutoff=cutoff, known=known), cutoff * right_branch
        loss, bound = sign * found.objective, sign * found.bound
        best = enumerated(energy, sign, known=known)
        below = best < ceiling
        torch.testing.assert_close(loss[below], best[below])
        torch.testing.assert_close(bound[below], best[below])
        assert found.labels[~below].tolist() == greedy[~below].tolist()
        torch.testing.assert_close(bound[~below], torch.full_like(bound[~below], ceiling))
        assert found.status.exact.tolist() == (loss <= bound).tolist()
        assert found.status.converged.all()


def test_a_greedy_labelling_that_meets_the_cutoff_is_proven():
    energy = DirectedEnergy(torch.tensor([[0.0], [-0.5]]), torch.zeros(1, 1), torch.arange(1))
    found = branch_and_bound.decode_hinge(energy, cutoff=1.0)
    assert found.status.exact.tolist() == [True, True]
    assert found.objective.tolist() == [1.0, 0.5]
    found = branch_and_bound.decode_hinge(energy, cutoff=0.5)
    assert found.status.exact.tolist() == [False, True]
    assert found.bound.tolist() == [0.5, 0.5]
    assert found.labels.tolist() == [[1], [0]]


def hard_energy() -> DirectedEnergy:
    """Fields far within the margin, so that a right branch costs hardly more than a left one."""
    energy = random_directed_energy(0, 12, 50, coupling=0.1)
    return replace(energy, unary=0.1 * energy.unary)


@pytest.mark.parametrize("cutoff", [1, 2])
def test_theorem_9_bounds_the_nodes(cutoff):
    energy = hard_energy()
    # Those at depth d have fewer than S right branches behind them; at the last depth they are the leaves.
    depths = range(1, energy.num_labels + 1)
    reachable = sum(math.comb(depth, right) for depth in depths for right in range(cutoff))
    for decode, _, _ in DECODERS:
        assert (decode(energy, cutoff=float(cutoff)).nodes <= reachable).all()
        assert (decode(energy).nodes > reachable).any()


@given(energies_with_known(DOUBLE), st.integers(1, 80))
def test_certificates_are_true_under_a_node_limit(drawn, node_limit):
    energy, known = drawn
    greedy = beam_search.decode(energy, known=known).labels
    for decode, sign, _ in DECODERS:
        found = decode(energy, node_limit=node_limit, known=known)
        loss, bound = sign * found.objective, sign * found.bound
        best = enumerated(energy, sign, known=known)
        torch.testing.assert_close(loss, losses(energy, found.labels, sign))
        assert (bound <= best + 1e-9).all()
        assert (best <= loss + 1e-9).all()
        assert (loss <= losses(energy, greedy, sign) + 1e-9).all()
        assert (found.nodes <= max(node_limit, energy.num_labels)).all()
        assert torch.equal(found.status.exact, loss == bound)
        assert (found.status.exact | ~found.status.converged).all()
        torch.testing.assert_close(found.status.residual, loss - bound)
        if node_limit <= energy.num_labels:
            assert found.labels.tolist() == greedy.tolist()


def test_node_limits_end_hard_searches_and_leave_easy_ones():
    energy = hard_energy()
    nodes = branch_and_bound.decode_hinge(energy).nodes
    limit = int(nodes.median())
    limited = branch_and_bound.decode_hinge(energy, node_limit=limit)
    assert torch.equal(limited.nodes, nodes.clamp(max=limit))
    assert torch.equal(limited.status.converged, nodes <= limit)
    assert torch.equal(limited.status.exact, nodes <= limit)


@given(energies_with_known(DOUBLE | TIED), st.integers(1, 40), st.sampled_from((None, 0.5, 2.0)))
def test_the_bound_holds_for_every_labelling_left_out(drawn, node_limit, cutoff):
    energy, known = drawn
    count = 2 ** known.isnan().sum(1)
    top_k = min(3, int(count.min()))
    for decode, sign, _ in DECODERS:
        found = decode(energy, known=known, top_k=top_k, node_limit=node_limit, cutoff=cutoff)
        loss = sign * found.objective.reshape(energy.batch_size, top_k)
        assert torch.equal(loss, loss.sort(1).values)
        for example in range(energy.batch_size):
            row = slice(example, example + 1)
            every = exact.decode_hinge if sign > 0 else exact.decode
            listed = every(energy.select(row), known=known[row], top_k=int(count[example]))
            chosen = set(map(tuple, found.labels[example].reshape(top_k, -1).tolist()))
            labellings = listed.labels.reshape(-1, energy.num_labels).tolist()
            assert chosen <= set(map(tuple, labellings))
            assert len(chosen) == top_k
            for labelling, value in zip(labellings, listed.objective.reshape(-1).tolist(), strict=True):
                if tuple(labelling) not in chosen:
                    assert sign * value >= sign * found.bound[example] - 1e-9


def test_a_tie_goes_to_one():
    energy = DirectedEnergy(torch.zeros(1, 3), torch.zeros(3, 3), torch.arange(3))
    for decode, _, _ in DECODERS:
        assert decode(energy).labels.tolist() == [[1, 1, 1]]
        assert decode(energy, top_k=3).labels.tolist() == [[[1, 1, 1], [1, 1, 0], [1, 0, 1]]]


def test_objectives_are_rounded_to_the_energy_s_own_precision():
    energy = random_directed_energy(0, 8, 20, dtype=torch.float32)
    wide = replace(energy, unary=energy.unary.double(), parents=energy.parents.double())
    for decode, sign, _ in DECODERS:
        found = decode(energy, top_k=4)
        assert found.objective.dtype == found.bound.dtype == found.status.residual.dtype == torch.float32
        assert torch.equal(found.bound, found.objective[:, -1])
        for rank in range(4):
            loss = losses(wide, found.labels[:, rank], sign).float()
            torch.testing.assert_close(sign * found.objective[:, rank], loss, rtol=2e-7, atol=0)


@pytest.mark.usefixtures("no_shape_checks")
@pytest.mark.parametrize(
    ("name", "options"),
    [
        *(("cutoff", {"cutoff": value}) for value in (0.0, -1.0, math.inf, math.nan)),
        *(("node_limit", {"node_limit": value}) for value in (0, -3, 1.0, True)),
        *(("top_k", {"top_k": value}) for value in (0, 1.0, True, 9)),
        ("top_k", {"top_k": 3, "known": torch.tensor([[1.0, 0.0, torch.nan]] * 3)}),
    ],
)
def test_refuses_options_out_of_range(name, options):
    for decode, _, _ in DECODERS:
        with pytest.raises(ValueError, match=f"^{name}: expected"):
            decode(random_directed_energy(0, 3), **options)


@pytest.mark.parametrize("margin", [0.0, -1.0, math.nan, math.inf])
def test_refuses_a_margin_that_is_not_positive(margin):
    with pytest.raises(ValueError, match=r"^margin: expected"):
        branch_and_bound.decode_hinge(random_directed_energy(0, 3), margin)


def test_without_numba_the_same_loops_run_and_say_so_once():
    energy = random_directed_energy(0, 6)
    expected = branch_and_bound.decode_hinge(energy)
    with without_numba():
        with pytest.warns(
            RuntimeWarning, match=r'some 100 times slower; pip install "lmbm-torch\[fast\]"'
        ) as told:
            found = [branch_and_bound.decode_hinge(energy) for _ in range(2)]
        assert len(told) == 1
        assert installed.compiled("search.one_side") is None
    for each in found:
        torch.testing.assert_close((each.labels, each.objective), (expected.labels, expected.objective))
        assert torch.equal(each.nodes, expected.nodes)
    assert installed.has_numba()
