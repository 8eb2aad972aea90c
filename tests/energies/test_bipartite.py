"""BipartiteEnergy against a scalar loop and enumeration, its invariances, and everything it refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies.bipartite import (
    all_states,
    bipartite_energies,
    permuted_units,
    random_bipartite_energy,
    random_units,
    score_table,
)

from lmbm_torch.energies import BipartiteEnergy
from lmbm_torch.energies.base import to_spins
from lmbm_torch.energies.bipartite import softplus

SEEDS = st.integers(0, 2**32 - 1)


def scalar_score(energy: BipartiteEnergy, example: int, visible: list[int], hidden: list[int]) -> float:
    """score(v, h) by the definition: one example, plain numbers."""
    total = 0.0
    for i, v in enumerate(visible):
        total += v * float(energy.visible[example, i])
        for j, h in enumerate(hidden):
            total += v * h * float(energy.coupling[i, j])
    return total + sum(h * float(energy.hidden[example, j]) for j, h in enumerate(hidden))


@given(bipartite_energies(), SEEDS)
def test_score_equals_a_scalar_loop(energy, seed):
    visible, hidden = random_units(seed, energy)
    scores = energy.score(visible, hidden)
    torch.testing.assert_close(energy.energy(visible, hidden), -scores)
    for example, score in enumerate(scores.tolist()):
        expected = scalar_score(energy, example, visible[example].tolist(), hidden[example].tolist())
        assert score == pytest.approx(expected, rel=1e-12, abs=1e-12)


@given(bipartite_energies())
def test_free_energy_sums_the_hidden_units_out(energy):
    table = score_table(energy)
    visible, hidden = all_states(energy.num_visible), all_states(energy.num_hidden)
    torch.testing.assert_close(-energy.free_energy(visible[:, None]).mT, table.logsumexp(2))
    torch.testing.assert_close(-energy.swap().free_energy(hidden[:, None]).mT, table.logsumexp(1))


@given(bipartite_energies())
def test_conditional_distributions_are_those_of_the_enumeration(energy):
    table = score_table(energy)
    visible, hidden = all_states(energy.num_visible), all_states(energy.num_hidden)
    expected = table.softmax(2) @ hidden.double()
    torch.testing.assert_close(energy.hidden_given_visible(visible[:, None]).transpose(0, 1), expected)
    expected = table.softmax(1).mT @ visible.double()
    torch.testing.assert_close(energy.visible_given_hidden(hidden[:, None]).transpose(0, 1), expected)


@given(bipartite_energies(), SEEDS)
def test_swapping_sides_leaves_the_model(energy, seed):
    visible, hidden = random_units(seed, energy)
    swapped = energy.swap()
    assert (swapped.num_visible, swapped.num_hidden) == (energy.num_hidden, energy.num_visible)
    torch.testing.assert_close(swapped.score(hidden, visible), energy.score(visible, hidden))
    torch.testing.assert_close(swapped.visible_given_hidden(visible), energy.hidden_given_visible(visible))
    twice = swapped.swap()
    assert all(
        torch.equal(getattr(twice, name), getattr(energy, name)) for name in ("visible", "hidden", "coupling")
    )


@given(bipartite_energies(), SEEDS)
def test_renaming_units_leaves_the_score(energy, seed):
    visible, hidden = random_units(seed, energy)
    generator = torch.Generator().manual_seed(seed)
    orders = [torch.randperm(n, generator=generator) for n in (energy.num_visible, energy.num_hidden)]
    renamed = permuted_units(energy, *orders)
    torch.testing.assert_close(
        renamed.score(visible[:, orders[0]], hidden[:, orders[1]]), energy.score(visible, hidden)
    )


@given(bipartite_energies(), SEEDS)
def test_exchanging_0_and_1_of_visible_units_shifts_the_score_by_a_constant(energy, seed):
    visible, hidden = random_units(seed, energy)
    flip = random_units(seed + 1, energy)[0][0]
    sign = 1 - 2 * flip.double()
    flipped = BipartiteEnergy(
        sign * energy.visible,
        energy.hidden + flip.double() @ energy.coupling,
        sign[:, None] * energy.coupling,
    )
    constant = energy.visible @ flip.double()
    torch.testing.assert_close(
        flipped.score(visible ^ flip, hidden) + constant, energy.score(visible, hidden)
    )


@given(bipartite_energies(), SEEDS)
def test_as_spins(energy, seed):
    """Unary b/2 + Σ W/4, pairwise W/4, constant Σ b_v/2 + Σ b_h/2 + Σ W/4."""
    visible, hidden = random_units(seed, energy)
    spins = torch.cat([to_spins(visible, torch.float64), to_spins(hidden, torch.float64)], 1)
    quarter = energy.coupling / 4
    unary = torch.cat([energy.visible / 2 + quarter.sum(1), energy.hidden / 2 + quarter.sum(0)], 1)
    constant = energy.visible.sum(1) / 2 + energy.hidden.sum(1) / 2 + quarter.sum()
    pairs = torch.einsum(
        "bi,ij,bj->b", spins[:, : energy.num_visible], quarter, spins[:, energy.num_visible :]
    )
    torch.testing.assert_close((unary * spins).sum(1) + pairs + constant, energy.score(visible, hidden))


@given(bipartite_energies(), SEEDS)
def test_adding_the_hamming_loss_to_the_unaries_adds_it_to_the_score(energy, seed):
    visible, hidden = random_units(seed, energy)
    truth = random_units(seed + 1, energy)[0]
    augmented = energy.add_unary(1 - 2 * truth.double())
    torch.testing.assert_close(
        augmented.score(visible, hidden) + truth.sum(1),
        energy.score(visible, hidden) + (visible ^ truth).sum(1),
    )
    torch.testing.assert_close(
        augmented.free_energy(visible), energy.free_energy(visible) - (visible ^ truth).sum(1) + truth.sum(1)
    )
    shared = torch.ones(1, energy.num_visible).double()
    torch.testing.assert_close(energy.add_unary(shared).visible, energy.visible + 1)


@given(bipartite_energies(), SEEDS)
def test_select_takes_examples(energy, seed):
    visible, hidden = random_units(seed, energy)
    rows = torch.randint(energy.batch_size, (4,), generator=torch.Generator().manual_seed(seed))
    for chosen in (rows, slice(0, 1)):
        torch.testing.assert_close(
            energy.select(chosen).score(visible[chosen], hidden[chosen]),
            energy.score(visible, hidden)[chosen],
        )


def test_leading_axes_are_samples_that_share_the_batch():
    energy = random_bipartite_energy(0, 4, 3)
    drawn = [random_units(seed, energy) for seed in range(6)]
    visible, hidden = (torch.stack(side).unflatten(0, (2, 3)) for side in zip(*drawn, strict=True))
    for method, arguments in (
        (energy.score, (visible, hidden)),
        (energy.free_energy, (visible,)),
        (energy.hidden_given_visible, (visible,)),
        (energy.visible_given_hidden, (hidden,)),
    ):
        together = method(*arguments).flatten(0, 1)
        alone = torch.stack([method(*row) for row in zip(*(a.flatten(0, 1) for a in arguments), strict=True)])
        torch.testing.assert_close(together, alone)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float32, torch.float64])
def test_labels_may_have_any_dtype(dtype):
    energy = random_bipartite_energy(0, 4, 3, dtype=torch.float32)
    visible, hidden = random_units(1, energy)
    for came, expected in (
        (energy.score(visible.to(dtype), hidden.to(dtype)), energy.score(visible, hidden)),
        (energy.free_energy(visible.to(dtype)), energy.free_energy(visible)),
    ):
        assert came.dtype == torch.float32
        assert torch.equal(came, expected)


def test_score_of_probabilities_is_the_expected_score():
    energy = random_bipartite_energy(0, 4, 3)
    generator = torch.Generator().manual_seed(1)
    q, r = (torch.rand(side.shape, generator=generator).double() for side in (energy.visible, energy.hidden))
    visible, hidden = all_states(4), all_states(3)
    weights = (q[:, None] * visible + (1 - q[:, None]) * (1 - visible)).prod(-1)
    hidden_weights = (r[:, None] * hidden + (1 - r[:, None]) * (1 - hidden)).prod(-1)
    expected = torch.einsum("bv,bh,bvh->b", weights, hidden_weights, score_table(energy))
    torch.testing.assert_close(energy.score(q, r), expected)


class TestGradients:
    def test_free_energy(self):
        energy = random_bipartite_energy(0, 4, 3, 2)
        visible, _ = random_units(1, energy)

        def free_energy(*tensors):
            return BipartiteEnergy(*tensors).free_energy(visible)

        tensors = [t.requires_grad_() for t in (energy.visible, energy.hidden, energy.coupling)]
        assert torch.autograd.gradcheck(free_energy, tensors)

    def test_of_the_free_energy_are_the_hidden_probabilities(self):
        energy = random_bipartite_energy(0, 4, 3, coupling=30.0)
        energy.hidden.requires_grad_()
        visible, _ = random_units(1, energy)
        (gradient,) = torch.autograd.grad(-energy.free_energy(visible).sum(), energy.hidden)
        torch.testing.assert_close(gradient, energy.hidden_given_visible(visible).detach())


class TestExtremes:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_a_large_free_energy_is_that_of_the_best_hidden_state(self, dtype):
        energy = BipartiteEnergy(
            torch.tensor([[1e4, -1e4]], dtype=dtype),
            torch.tensor([[1e4, -1e4, 150.0]], dtype=dtype),
            torch.tensor([[200.0, 200.0, -200.0], [0.0, -200.0, 200.0]], dtype=dtype),
        )
        visible = torch.tensor([[1, 0]])
        assert energy.free_energy(visible).item() == -(1e4 + 1e4 + 200)
        assert energy.hidden_given_visible(visible).tolist()[0][:2] == [1.0, 0.0]
        assert energy.hidden_given_visible(visible)[0, 2].item() == pytest.approx(
            torch.tensor(-50.0).double().exp().item()
        )

    def test_softplus_is_right_to_the_last_bits(self):
        fields = torch.linspace(-60, 60, 4801, dtype=torch.float64)
        torch.testing.assert_close(
            softplus(fields), torch.logaddexp(fields, torch.zeros_like(fields)), rtol=1e-14, atol=0
        )
        assert softplus(torch.tensor([-1e4, 1e4, 3e38])).tolist() == [0.0, 1e4, pytest.approx(3e38)]


VALID = random_bipartite_energy(3, 4, 2)
FIELDS = {"visible": VALID.visible, "hidden": VALID.hidden, "coupling": VALID.coupling}


@pytest.mark.usefixtures("no_shape_checks")
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("visible", {"visible": VALID.visible[0]}),
        ("visible", {"visible": VALID.visible[:0]}),
        ("visible", {name: tensor.long() for name, tensor in FIELDS.items()}),
        ("hidden", {"hidden": VALID.hidden[:1]}),
        ("hidden", {"hidden": VALID.hidden[:, :0]}),
        ("hidden", {"hidden": VALID.hidden.float()}),
        ("hidden", {"hidden": VALID.hidden.to("meta")}),
        ("coupling", {"coupling": VALID.coupling.mT}),
        ("coupling", {"coupling": VALID.coupling.expand(3, 4, 2)}),
        ("coupling", {"coupling": VALID.coupling.float()}),
        ("coupling", {"coupling": VALID.coupling.to("meta")}),
    ],
)
def test_construction_refuses(name, changes):
    with pytest.raises(ValueError, match=f"^{name}: expected"):
        BipartiteEnergy(**{**FIELDS, **changes})


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("name", list(FIELDS))
def test_check_values_refuses_what_is_not_finite(name, bad):
    tensor = FIELDS[name].clone()
    tensor[-1, -1] = bad
    with pytest.raises(ValueError, match=f"^{name}: expected finite values"):
        replace(VALID, **{name: tensor}).check_values()
    VALID.check_values()


@pytest.mark.usefixtures("no_shape_checks")
@pytest.mark.parametrize(
    "unary",
    [
        torch.zeros(2, 4).double(),
        torch.zeros(3, 2).double(),
        torch.zeros(4).double(),
        torch.zeros(3, 4),
        torch.zeros(3, 4, device="meta").double(),
    ],
)
def test_add_unary_refuses(unary):
    with pytest.raises(ValueError, match=r"^unary: expected"):
        VALID.add_unary(unary)
