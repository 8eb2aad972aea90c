"""DirectedEnergy against a scalar loop, its invariances, and everything it refuses."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies.directed import directed_energies, flipped, permuted, random_directed_energy, random_labels

from lmbm_torch.energies import DirectedEnergy
from lmbm_torch.energies.base import to_spins

DOUBLE = (torch.float64,)


def all_labellings(num_labels: int) -> torch.Tensor:
    return torch.tensor(list(product((0, 1), repeat=num_labels)))[:, None]


def scalar_field(energy: DirectedEnergy, example: int, label: int, spins: list[int]) -> float:
    """z_i by the definition: one label, one example, plain numbers."""

    def weight(tensor: torch.Tensor, *index: int) -> float:
        shared = tensor.ndim == len(index)
        return float(tensor[index] if shared else tensor[(example, *index)])

    position = {name: place for place, name in enumerate(energy.ordering.tolist())}
    field = float(energy.unary[example, label])
    for parent in range(energy.num_labels):
        field += weight(energy.parents, label, parent) * spins[parent]
    for index, clique in enumerate(energy.cliques):
        if max(clique, key=position.__getitem__) == label:
            assert energy.clique_weight is not None
            field += weight(energy.clique_weight, index) * math.prod(spins[i] for i in clique if i != label)
    return field


@given(directed_energies(max_labels=5, max_batch=3, dtypes=DOUBLE), st.integers(0, 2**32 - 1))
def test_local_fields_equal_a_scalar_loop(energy, seed):
    labels = random_labels(seed, energy)
    fields = energy.local_fields(labels)
    margins = energy.local_margins(labels)
    for example, row in enumerate((2 * labels - 1).tolist()):
        for label in range(energy.num_labels):
            expected = scalar_field(energy, example, label, row)
            assert fields[example, label].item() == pytest.approx(expected, rel=1e-9, abs=1e-9)
            assert margins[example, label].item() == pytest.approx(row[label] * expected, rel=1e-9, abs=1e-9)


@given(directed_energies(dtypes=DOUBLE))
def test_probabilities_sum_to_one(energy):
    total = energy.log_prob(all_labellings(energy.num_labels)).exp().sum(0)
    torch.testing.assert_close(total, torch.ones_like(total), rtol=0, atol=1e-7)


@given(directed_energies(max_labels=4, dtypes=DOUBLE))
def test_leading_axes_are_samples_that_share_the_batch(energy):
    labellings = all_labellings(energy.num_labels)
    spread = labellings.expand(-1, energy.batch_size, -1)
    torch.testing.assert_close(energy.log_prob(labellings), energy.log_prob(spread))
    one_by_one = torch.stack([energy.log_prob(labels) for labels in spread])
    torch.testing.assert_close(energy.log_prob(spread), one_by_one)
    torch.testing.assert_close(energy.log_prob(spread[:, None]), one_by_one[:, None])


def test_one_label_is_logistic_regression():
    energy = random_directed_energy(0, 1, batch_size=5)
    log_odds = energy.log_prob(torch.ones(5, 1)) - energy.log_prob(torch.zeros(5, 1))
    torch.testing.assert_close(log_odds, 2 * energy.unary[:, 0])
    torch.testing.assert_close(energy.log_prob(torch.ones(5, 1)).exp(), torch.sigmoid(2 * energy.unary[:, 0]))


@given(directed_energies(dtypes=DOUBLE), st.integers(0, 2**32 - 1))
def test_renaming_labels_renames_fields(energy, seed):
    order = torch.randperm(energy.num_labels, generator=torch.Generator().manual_seed(seed))
    labels = random_labels(seed, energy)
    renamed = permuted(energy, order)
    renamed.check_values()
    torch.testing.assert_close(renamed.local_fields(labels[:, order]), energy.local_fields(labels)[:, order])


@given(directed_energies(dtypes=DOUBLE), st.integers(0, 2**32 - 1))
def test_flipping_labels_with_their_weights_leaves_the_distribution(energy, seed):
    labels = random_labels(seed, energy)
    flip = random_labels(seed + 1, energy)[0].bool()
    torch.testing.assert_close(flipped(energy, flip).log_prob(labels ^ flip), energy.log_prob(labels))


@given(directed_energies(dtypes=DOUBLE), st.integers(0, 2**32 - 1))
def test_in_order_renames_by_position(energy, seed):
    labels = random_labels(seed, energy)
    ordered = energy.in_order()
    ordered.check_values()
    order = energy.ordering
    assert ordered.ordering.tolist() == list(range(energy.num_labels))
    assert all(list(clique) == sorted(clique) for clique in ordered.cliques)
    torch.testing.assert_close(ordered.local_fields(labels[:, order]), energy.local_fields(labels)[:, order])


@given(directed_energies(dtypes=DOUBLE), st.integers(0, 2**32 - 1))
def test_select_takes_examples(energy, seed):
    labels = random_labels(seed, energy)
    rows = torch.randint(energy.batch_size, (5,), generator=torch.Generator().manual_seed(seed))
    for chosen in (rows, slice(0, 1)):
        torch.testing.assert_close(
            energy.select(chosen).log_prob(labels[chosen]), energy.log_prob(labels)[chosen]
        )


def test_score_is_the_log_probability_and_energy_its_negative():
    energy = random_directed_energy(1, 5, num_cliques=3)
    labels = random_labels(2, energy)
    torch.testing.assert_close(energy.score(labels), energy.log_prob(labels))
    torch.testing.assert_close(energy.energy(labels), -energy.log_prob(labels))


def test_spins():
    labels = torch.tensor([0.0, 1.0, torch.nan], dtype=torch.float64)
    torch.testing.assert_close(
        to_spins(labels), torch.tensor([-1.0, 1.0, torch.nan]).double(), equal_nan=True
    )
    assert to_spins(labels.numpy()).tolist()[:2] == [-1.0, 1.0]
    assert to_spins(torch.tensor([0, 1])).dtype == torch.get_default_dtype()


VALID = random_directed_energy(3, 4, num_cliques=2)
SHARED = {"unary": VALID.unary, "parents": VALID.parents, "ordering": VALID.ordering}


@pytest.mark.usefixtures("no_shape_checks")
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("unary", {"unary": VALID.unary[0]}),
        ("unary", {"unary": VALID.unary[:0]}),
        ("unary", {"unary": VALID.unary.long(), "parents": VALID.parents.long()}),
        ("parents", {"parents": VALID.parents[:3]}),
        ("parents", {"parents": VALID.parents.expand(2, 4, 4)}),
        ("parents", {"parents": VALID.parents.float()}),
        ("parents", {"parents": VALID.parents.to("meta")}),
        ("ordering", {"ordering": VALID.ordering[:3]}),
        ("ordering", {"ordering": torch.tensor([0, 1, 1, 3])}),
        ("ordering", {"ordering": torch.tensor([1, 2, 3, 4])}),
        ("clique_weight", {"cliques": ((0, 1, 2),)}),
        ("clique_weight", {"clique_weight": torch.ones(1).double()}),
        ("clique_weight", {"cliques": ((0, 1, 2),), "clique_weight": torch.ones(2).double()}),
        ("clique_weight", {"cliques": ((0, 1, 2),), "clique_weight": torch.ones(2, 1).double()}),
        ("clique_weight", {"cliques": ((0, 1, 2),), "clique_weight": torch.ones(1)}),
        ("cliques", {"cliques": ((0, 1),), "clique_weight": torch.ones(1).double()}),
        ("cliques", {"cliques": ((0, 1, 1),), "clique_weight": torch.ones(1).double()}),
        ("cliques", {"cliques": ((0, 1, 4),), "clique_weight": torch.ones(1).double()}),
        ("cliques", {"cliques": ((-1, 1, 2),), "clique_weight": torch.ones(1).double()}),
    ],
)
def test_construction_refuses(name, changes):
    with pytest.raises(ValueError, match=f"^{name}: expected"):
        DirectedEnergy(**{**SHARED, **changes})


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("name", ["unary", "parents", "clique_weight"])
def test_check_values_refuses_what_is_not_finite(name, bad):
    tensor = getattr(VALID, name).clone()
    tensor.view(-1)[0] = bad
    with pytest.raises(ValueError, match=f"^{name}: expected finite values"):
        replace(VALID, **{name: tensor}).check_values()


def test_check_values_refuses_a_parent_after_its_child():
    for parents in (VALID.parents.mT, torch.eye(4).double()):
        with pytest.raises(ValueError, match=r"^parents: expected weights from labels earlier"):
            replace(VALID, parents=parents).check_values()
    VALID.check_values()
