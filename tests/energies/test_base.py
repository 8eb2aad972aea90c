"""Every kind of energy has the whole interface; an object that lacks a part is refused by name."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from strategies.bipartite import random_bipartite_energy
from strategies.chain import random_chain_energy
from strategies.directed import random_directed_energy
from strategies.pairwise import random_clique_energy, random_pairwise_energy
from strategies.tree import random_tree_energy
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from lmbm_torch.energies import BaseEnergy, Energy, RestrictedEnergy
from lmbm_torch.energies.base import check_energy
from lmbm_torch.inference import decode, decode_hinge
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.losses import structured_hinge
from lmbm_torch.losses.bounds import least_threshold
from lmbm_torch.losses.structured import loss_augment
from lmbm_torch.models import ConditionalRBM
from lmbm_torch.prediction.answers import probabilities

BATCH, LABELS = 3, 4
ENERGIES = {
    "pairwise": random_pairwise_energy(0, LABELS, BATCH),
    "coupled by example": random_pairwise_energy(0, LABELS, BATCH, per_example=True),
    "cliques": random_clique_energy(0, LABELS, BATCH),
    "weighted by example": random_clique_energy(0, LABELS, BATCH, per_example=True),
    "directed": random_directed_energy(0, LABELS, BATCH),
    "bipartite": random_bipartite_energy(0, LABELS, 2, BATCH),
    "chain": random_chain_energy(0, LABELS, 2, BATCH, ragged=False),
    "steps by example": random_chain_energy(0, LABELS, 2, BATCH, ragged=False, per_step=True),
    "tree": random_tree_energy(0, batch=BATCH, nodes=LABELS, states=2),
    "shared tree": random_tree_energy(0, batch=BATCH, nodes=LABELS, states=2, shared=True),
}


def labels_of(energy):
    generator = torch.Generator().manual_seed(0)
    return torch.randint(2, (energy.batch_size, energy.num_labels), generator=generator)


@pytest.mark.parametrize("kind", ENERGIES)
def test_the_interface_is_complete(kind):
    energy = ENERGIES[kind]
    assert isinstance(energy, Energy)
    check_energy(energy)
    assert (energy.batch_size, energy.num_labels) == (BATCH, LABELS)
    assert (energy.dtype, energy.device) == (torch.float64, torch.device("cpu"))
    labels = labels_of(energy)
    torch.testing.assert_close(energy.energy(labels), -energy.score(labels))


@pytest.mark.parametrize("kind", ENERGIES)
def test_selected_examples_keep_their_scores(kind):
    energy = ENERGIES[kind]
    labels = labels_of(energy)
    for rows in (slice(1, 3), torch.tensor([2, 0])):
        part = energy.select(rows)
        assert part.batch_size == 2
        torch.testing.assert_close(part.score(labels[rows]), energy.score(labels)[rows])


@pytest.mark.parametrize("kind", ENERGIES)
def test_another_precision_rounds_every_log_potential(kind):
    energy = ENERGIES[kind].to(torch.float32)
    assert energy.dtype == torch.float32
    labels = labels_of(energy)
    torch.testing.assert_close(
        energy.score(labels).double(), ENERGIES[kind].score(labels), rtol=1e-5, atol=1e-5
    )


# The others read their indices, which a device without values does not have.
@pytest.mark.parametrize("kind", ["pairwise", "coupled by example", "cliques", "bipartite"])
def test_all_tensors_go_to_another_device(kind):
    moved = ENERGIES[kind].to("meta", torch.float32)
    assert (moved.device.type, moved.dtype) == ("meta", torch.float32)
    for name, value in vars(moved).items():
        if isinstance(value, Tensor) and not name.startswith("_"):
            assert value.device.type == "meta"
            assert value.is_floating_point() == getattr(ENERGIES[kind], name).is_floating_point()


def test_rules_move_with_their_energy_and_keep_their_precision():
    rules, bounds = torch.ones(1, LABELS, dtype=torch.float64), torch.full((1,), 2.0, dtype=torch.float64)
    energy = RestrictedEnergy(ENERGIES["pairwise"], rules, bounds)
    single = energy.to(torch.float32)
    assert (single.dtype, single.rules.dtype) == (torch.float32, torch.float64)
    torch.testing.assert_close(single.allows(labels_of(energy)), energy.allows(labels_of(energy)))
    moved = energy.to("meta", torch.float32)
    assert (moved.device.type, moved.rules.device.type, moved.bounds.device.type) == ("meta", "meta", "meta")


@pytest.mark.parametrize("kind", ENERGIES)
def test_torch_goes_through_energies_to_their_tensors(kind):
    energy, labels = ENERGIES[kind], labels_of(ENERGIES[kind])
    torch.testing.assert_close(
        tree_map(lambda tensor: tensor.clone(), energy).score(labels), energy.score(labels)
    )
    leaves = tree_leaves(energy)
    assert len(leaves) >= 2
    assert all(isinstance(leaf, Tensor) for leaf in leaves)
    # Leaves may be anything meanwhile.
    assert set(tree_leaves(tree_map(lambda tensor: tensor.ndim, energy))) <= {1, 2, 3, 4}


# Of torch's own, where it prepares forward derivatives.
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_derivatives_of_a_models_energy_are_an_energy():
    model, features = ConditionalRBM(2, 3, 4).double(), torch.randn(5, 2, dtype=torch.float64)
    weights = {name: weight.detach() for name, weight in model.named_parameters()}
    step = {name: torch.randn_like(weight) for name, weight in weights.items()}

    def energy_at(weights):
        return torch.func.functional_call(model, weights, (features,))

    energy, slope = torch.func.jvp(energy_at, (weights,), (step,))
    near = energy_at({name: weight + 1e-6 * step[name] for name, weight in weights.items()})
    for name in ("visible", "hidden", "coupling"):
        change = (getattr(near, name) - getattr(energy, name)) / 1e-6
        torch.testing.assert_close(getattr(slope, name), change, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", [kind for kind in ENERGIES if kind != "directed"])
def test_terms_of_single_labels_are_added(kind):
    energy = ENERGIES[kind]
    labels = labels_of(energy)
    has_states = kind in ("chain", "steps by example", "tree", "shared tree")
    shape = (LABELS, 2) if has_states else (LABELS,)
    for rows in (1, BATCH):
        unary = torch.randn(rows, *shape, generator=torch.Generator().manual_seed(1)).double()
        added = unary.expand(BATCH, *shape)
        said = added.gather(-1, labels[..., None]).squeeze(-1) if has_states else added * labels
        expected = energy.score(labels) + said.sum(-1)
        torch.testing.assert_close(energy.add_unary(unary).score(labels), expected)


def test_nothing_is_added_to_a_directed_model():
    energy = ENERGIES["directed"]
    with pytest.raises(TypeError, match=r"^energy: expected a kind that takes .*, got DirectedEnergy"):
        energy.add_unary(torch.zeros(1, LABELS).double())


@pytest.mark.parametrize("kind", ["pairwise", "weighted by example", "directed", "bipartite"])
def test_what_is_not_finite_is_refused_by_its_name(kind):
    energy = ENERGIES[kind]
    first = next(iter(energy.PER_EXAMPLE))
    tensor = getattr(energy, first).clone()
    tensor[0] = torch.nan
    with pytest.raises(ValueError, match=f"^{first}: expected finite values"):
        replace(energy, **{first: tensor}).check_values()


def test_a_restricted_machine_scores_its_labels_alone():
    energy = ENERGIES["bipartite"]
    labels = labels_of(energy)
    hidden = torch.cartesian_prod(torch.arange(2), torch.arange(2))[:, None].expand(-1, BATCH, -1)
    expected = energy.score(labels.expand(4, -1, -1), hidden).logsumexp(0)
    torch.testing.assert_close(energy.score(labels), expected)


@dataclass(frozen=True)
class NewEnergy(BaseEnergy):
    """A kind of its own: independent labels, Σ_i unary_i y_i."""

    PER_EXAMPLE: ClassVar = {"unary": 2}

    unary: Tensor

    def score(self, labels: Tensor) -> Tensor:
        return (labels.to(self.dtype) * self.unary).sum(-1)


class Unfinished:
    """Has a batch and nothing else."""

    batch_size, num_labels = BATCH, LABELS


@pytest.mark.usefixtures("no_shape_checks")
class TestNewKinds:
    def test_a_score_is_all_that_enumeration_needs(self):
        energy = NewEnergy(torch.randn(BATCH, LABELS, generator=torch.Generator().manual_seed(0)))
        assert torch.equal(exact.decode(energy).labels, (energy.unary > 0).long())
        torch.testing.assert_close(exact.marginals(energy).labels, energy.unary.sigmoid())

    def test_what_a_new_kind_does_not_support_is_said(self):
        energy, labels = NewEnergy(torch.zeros(BATCH, LABELS)), torch.zeros(BATCH, LABELS)
        with pytest.raises(TypeError, match=r"^energy: expected a kind that takes .*, got NewEnergy"):
            structured_hinge(energy, labels)
        with pytest.raises(TypeError, match=r"^energy: expected one of DirectedEnergy, .*, got NewEnergy"):
            decode_hinge(energy)
        with pytest.raises(TypeError, match=r"^energy: expected DirectedEnergy, .* got NewEnergy"):
            least_threshold(energy, 1.0)

    def test_a_new_kind_is_enumerated_where_a_routine_is_chosen(self):
        energy = NewEnergy(torch.tensor([[2.0, -1.0, 0.5]], dtype=torch.float64))
        torch.testing.assert_close(probabilities(energy).labels, energy.unary.sigmoid())
        assert decode(energy).labels.tolist() == [[1, 0, 1]]

    def test_what_is_no_energy_is_refused_by_what_it_lacks(self):
        with pytest.raises(TypeError, match=r"got Unfinished without add_unary, check_values, .*select"):
            loss_augment(Unfinished(), torch.zeros(BATCH, LABELS))
