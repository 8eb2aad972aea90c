"""Mean field on pairwise energies: a scalar loop, the bound, and what lies on its other side."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies.directed import COUPLINGS, random_known
from strategies.pairwise import pairwise_energies, random_pairwise_energy
from sweeps import thorough

from lmbm_torch.energies import PairwiseEnergy, to_factors
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.inference.graphs import tree_reweighted
from lmbm_torch.inference.messages import mean_field

SEEDS = st.integers(0, 2**32 - 1)


def scalar_mean_field(energy: PairwiseEnergy, row: int, num_iters: int) -> list[float]:
    """The means of one example after so many iterations, label by label, as spins."""
    unary = energy.unary[row].tolist()
    pairwise = (energy.pairwise if energy.pairwise.ndim == 2 else energy.pairwise[row]).tolist()
    means = [math.tanh(field) for field in unary]
    # Labels in the order of their blocks: none is coupled with an earlier one of its block in any example.
    coupled = energy.pairwise.reshape(-1, len(unary), len(unary)).ne(0).any(0).tolist()
    blocks: list[list[int]] = []
    for i in range(len(unary)):
        fitting = [block for block in blocks if not any(coupled[i][j] for j in block)]
        (fitting[0] if fitting else blocks.append([]) or blocks[-1]).append(i)
    for _ in range(num_iters):
        for i in (i for block in blocks for i in block):
            means[i] = math.tanh(unary[i] + sum(w * m for w, m in zip(pairwise[i], means, strict=True)))
    return means


@given(pairwise_energies(), st.integers(1, 5))
def test_equals_a_scalar_loop(energy, num_iters):
    result = mean_field.marginals(energy, num_iters=num_iters, tol=0.0)
    for row in range(energy.batch_size):
        expected = torch.tensor(scalar_mean_field(energy, row, num_iters)).double()
        torch.testing.assert_close(2 * result.labels[row] - 1, expected)


@given(pairwise_energies(), SEEDS)
def test_bound_is_below_the_log_partition_and_never_falls(energy, seed):
    known = random_known(seed, energy, 0.3)
    init = torch.rand(energy.unary.shape, generator=torch.Generator().manual_seed(seed)).double()
    init = torch.where(known.isnan(), init, known.nan_to_num())
    bounds = [
        mean_field.marginals(energy, num_iters=num_iters, init=init, known=known).log_partition
        for num_iters in (1, 2, 3, 5, 10, 50)
    ]
    for earlier, later in zip(bounds, [*bounds[1:], exact.log_partition(energy, known=known)], strict=True):
        assert (later - earlier >= -1e-9 * (1 + later.abs())).all()


@pytest.mark.parametrize("seed", thorough(range(10), 5))
@pytest.mark.parametrize("coupling", COUPLINGS)
@pytest.mark.parametrize("with_known", [False, True])
def test_the_log_partition_lies_between_mean_field_and_trees(seed, coupling, with_known):
    form = {"density": (0.3, 1.0)[seed % 2], "per_example": seed % 3 == 0}
    energy = random_pairwise_energy(seed, 2 + seed, 8, coupling=coupling, **form)
    known = random_known(seed, energy, 0.3) if with_known else None
    lower = mean_field.marginals(energy, known=known).log_partition
    value = exact.log_partition(energy, known=known)
    upper = tree_reweighted.marginals(to_factors(energy), num_iters=30, known=known).log_partition
    slack = 1e-9 * (1 + value.abs())
    assert (lower <= value + slack).all()
    assert (value <= upper + slack).all()
    if coupling == 0:
        torch.testing.assert_close(lower, upper)


@given(pairwise_energies())
def test_bound_is_expected_score_plus_entropy(energy):
    result = mean_field.marginals(energy, num_iters=3)
    means = 2 * result.labels - 1
    pairs = energy.pairwise.expand(energy.batch_size, -1, -1)
    expected = (energy.unary * means).sum(1) + torch.einsum("bi,bij,bj->b", means, pairs, means) / 2
    entropy = torch.distributions.Bernoulli(result.labels).entropy().sum(1)
    torch.testing.assert_close(result.log_partition, expected + entropy + energy.constant)


@given(pairwise_energies())
def test_what_has_converged_is_a_fixed_point(energy):
    result = mean_field.marginals(energy, num_iters=2000, tol=1e-10)
    assert result.status.converged.float().mean() >= 0.5
    assert not result.status.exact.any()
    update = torch.sigmoid(2 * energy.local_fields(result.labels))
    moved = (update - result.labels).abs().amax(1)
    # A field moves by the couplings times what is left of the last iteration's moves.
    reach = 1 + 2 * energy.pairwise.abs().sum(-1).max()
    assert (moved[result.status.converged] <= 1e-9 * reach).all()


def test_frustrated_labels_settle_where_updating_them_all_at_once_would_cycle():
    pairwise = torch.tensor([[0.0, 5.0], [5.0, 0.0]]).double()
    energy = PairwiseEnergy(torch.zeros(1, 2).double(), pairwise)
    result = mean_field.marginals(energy, init=torch.tensor([[0.1, 0.9]]).double())
    assert result.status.converged.all()
    assert (result.labels > 0.99).all()


def test_starts_where_it_is_told():
    energy = PairwiseEnergy(torch.zeros(1, 2), torch.tensor([[0.0, 5.0], [5.0, 0.0]]))
    for corner in (0.0, 1.0):
        result = mean_field.marginals(energy, init=torch.full((1, 2), corner))
        assert (result.labels - corner).abs().max() < 0.01


@pytest.mark.usefixtures("no_shape_checks")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_iters", 0),
        ("tol", -1.0),
        ("init", torch.full((3, 4), 1.5).double()),
        ("init", torch.full((3, 5), 0.5).double()),
        ("init", torch.full((3, 4), 0.5)),
        ("known", torch.zeros(3, 5)),
    ],
)
def test_refuses_what_it_cannot_use(name, value):
    with pytest.raises(ValueError, match=f"^{name}: expected"):
        mean_field.marginals(random_pairwise_energy(0, 4), **{name: value})


def test_refuses_a_start_against_what_is_known():
    energy = random_pairwise_energy(0, 4)
    with pytest.raises(
        ValueError, match=r"^init: expected the known values for all known units, got other values for 12"
    ):
        mean_field.marginals(energy, init=torch.full((3, 4), 0.5).double(), known=torch.ones(3, 4))
