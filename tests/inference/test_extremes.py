"""At the ends of floating point inference refuses or is right: never exact beside NaN, infinity or errors."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from lmbm_torch.checks import check_finite
from lmbm_torch.energies import BipartiteEnergy, ChainEnergy, DirectedEnergy, PairwiseEnergy, TreeEnergy
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.inference.graphs import elimination
from lmbm_torch.inference.messages import matrix_bp, mean_field
from lmbm_torch.inference.relaxations import integer_program, lp_relaxation
from lmbm_torch.inference.sampling import ancestral
from lmbm_torch.inference.search import beam_search, branch_and_bound
from lmbm_torch.inference.trees import chain_dp, tree_dp

LENGTHS = torch.tensor([4])
ORDERING = torch.arange(4)
PARENTS = torch.tensor([-1, 0, 1, 1])


def pairwise(size, dtype=torch.float32, seed=0):
    couplings = noise(size, 4, 4, dtype=dtype, seed=seed).triu(1)
    return PairwiseEnergy(noise(size, 1, 4, dtype=dtype, seed=seed), couplings + couplings.mT)


def noise(size, *shape, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return (size * torch.randn(*shape, generator=generator, dtype=torch.float64).clamp(-1, 1)).to(dtype)


def directed(size, dtype=torch.float32):
    return DirectedEnergy(noise(size, 1, 4, dtype=dtype), noise(size, 4, 4, dtype=dtype).tril(-1), ORDERING)


def chain(size, dtype=torch.float32, seed=0):
    return ChainEnergy(
        noise(size, 1, 4, 3, dtype=dtype, seed=seed), noise(size, 3, 3, dtype=dtype, seed=seed), LENGTHS
    )


def tree(size, dtype=torch.float32):
    return TreeEnergy(noise(size, 1, 4, 2, dtype=dtype), noise(size, 2, 2, dtype=dtype), PARENTS)


def bipartite(size, dtype=torch.float32):
    parts = (noise(size, *shape, dtype=dtype) for shape in ((1, 4), (1, 3), (4, 3)))
    return BipartiteEnergy(*parts)


ROUTINES = [
    (pairwise, exact.decode),
    (pairwise, exact.marginals),
    (pairwise, elimination.decode),
    (pairwise, elimination.marginals),
    (pairwise, mean_field.marginals),
    (pairwise, integer_program.decode),
    (pairwise, lp_relaxation.decode),
    (directed, branch_and_bound.decode),
    (directed, branch_and_bound.decode_hinge),
    (directed, beam_search.decode),
    (directed, partial(ancestral.marginals, num_samples=10)),
    (chain, chain_dp.decode),
    (chain, chain_dp.marginals),
    (tree, tree_dp.decode),
    (tree, tree_dp.marginals),
    (bipartite, matrix_bp.marginals),
    (bipartite, exact.marginals),
]
every_routine = pytest.mark.parametrize(("make", "routine"), ROUTINES)


def parts(result):
    """The numbers of a result."""
    return [value for value in vars(result).values() if isinstance(value, torch.Tensor)]


@every_routine
@pytest.mark.parametrize("size", [3e38, 1e38, 1e30])
def test_what_overflows_is_refused(make, routine, size):
    with pytest.raises(ValueError, match=r"expected magnitudes of at most 1e\+24, got"):
        routine(make(size))


@every_routine
@pytest.mark.parametrize("size", [1e4, 1e8, 1e15, 9e23])
def test_what_is_large_stays_finite(make, routine, size):
    for value in parts(routine(make(size))):
        assert value.isfinite().all()


# Chains keep half precision in float32.
@pytest.mark.parametrize(("make", "routine"), [each for each in ROUTINES if each[0] is not chain])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_refused(make, routine, dtype):
    with pytest.raises(ValueError, match=r"energy: expected float32 or float64, got torch\.b?float16"):
        routine(make(1.0, dtype))


@pytest.mark.parametrize("size", [1e3, 1e5, 1e8])
def test_marginals_of_chains_of_large_potentials(size):
    for seed in range(20):
        energy = chain(size, seed=seed)
        found, expected = chain_dp.marginals(energy), chain_dp.marginals(energy.to(torch.float64))
        assert found.edges.max() <= 1 + 1e-5
        torch.testing.assert_close(found.edges.double(), expected.edges, rtol=0, atol=1e-4)
        torch.testing.assert_close(found.edges.sum((-1, -2)), torch.ones(1, 3), rtol=0, atol=1e-4)


def test_forbidden_states_beside_large_potentials():
    energy = chain(1e5)
    energy.unary[0, 0, 1] = -torch.inf
    found = chain_dp.marginals(energy)
    assert found.states[0, 0, 1] == 0
    assert found.edges.max() <= 1 + 1e-6


@pytest.mark.parametrize("routine", [integer_program.decode, lp_relaxation.decode])
def test_one_weight_far_above_the_others_is_not_what_exactness_is_measured_by(routine):
    for seed in range(10):
        energy = pairwise(1e-4, torch.float64, seed)
        energy.unary[0, 0] = 1e6
        found, truth = routine(energy), exact.decode(energy)
        assert found.bound >= truth.objective
        if found.status.exact:
            torch.testing.assert_close(found.objective, truth.objective, rtol=0, atol=1e-9)


def test_log_probabilities_of_a_beam_are_exact():
    energy = directed(6.0, torch.float64)
    found = beam_search.decode(energy, width=16)
    torch.testing.assert_close(found.objective, energy.score(found.labels), rtol=1e-13, atol=1e-13)


def test_a_view_with_a_negative_bit():
    energy = pairwise(1.0)
    view = torch.complex(torch.zeros(1, 4), -energy.unary).conj().imag
    assert view.is_neg()
    check_finite("unary", view)
    found = exact.decode(PairwiseEnergy(view, energy.pairwise))
    assert torch.equal(found.labels, exact.decode(energy).labels)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_marginals_of_enormous_chains_are_distributions_that_are_not_called_exact(dtype):
    generator = torch.Generator().manual_seed(0)
    unary, transition = (
        torch.randn(shape, generator=generator, dtype=dtype) for shape in ((20, 6, 3), (3, 3))
    )
    for scale, is_exact in ((1e3, True), (1e12, False), (1e23, False)):
        came = chain_dp.marginals(ChainEnergy(scale * unary, scale * transition))
        assert (came.status.exact == is_exact).all()
        for values in (came.states.sum(-1), came.edges.sum((-2, -1))):
            torch.testing.assert_close(values, torch.ones_like(values))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1e12, 1e18, 1e22])
def test_enormous_biases_decide_every_pair_of_units(scale, dtype):
    generator = torch.Generator().manual_seed(0)
    visible, hidden = (scale * torch.randn(40, 6, generator=generator) for _ in range(2))
    energy = BipartiteEnergy(visible.to(dtype), hidden.to(dtype), torch.full((6, 6), 1e-3, dtype=dtype))
    signs = (visible > 0).to(dtype), (hidden > 0).to(dtype)
    torch.testing.assert_close(matrix_bp.moments(energy)[1], signs[0].mT @ signs[1])
    found = matrix_bp.marginals(energy)
    assert torch.equal(found.visible, signs[0])
    assert torch.equal(found.hidden, signs[1])
