"""The machine's energy against its definition, its weights as one vector, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array
from torch import Tensor, nn

from lmbm_torch.data.tensors import to_tensor
from lmbm_torch.energies import Clause, CliqueEnergy, PairwiseEnergy, TiedCliques, from_markov_logic
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.losses import negative_pseudo_likelihood
from lmbm_torch.models import BoltzmannMachine

# Every form of cliques: few or large ones, tied, with features, with coefficients, none, and no bias.
SETTINGS = {
    "pairwise": {},
    "independent": {"cliques": ()},
    "sparse": {"cliques": [(2, 0), (1, 3)]},
    "tied": {"cliques": [(0, 1), (1, 2), (2, 3), (3,)], "groups": [0, 0, 1, 1]},
    "mixed": {"cliques": [(0, 1), (0, 1), (2,), (3, 1)], "clique_features": [None, 2, 1, 0]},
    "mixed_tied": {"cliques": [(0, 1), (2, 3)], "groups": [0, 0], "clique_features": [1, 2]},
    "large": {"cliques": [(0, 1, 2), (3, 2), (0, 1, 2, 3), (1,)], "bias": False},
    "large_mixed": {"cliques": [(0, 1, 2), (3, 2)], "clique_features": [0, None]},
    "coefficients": {"cliques": TiedCliques(4, ((0, 1), (2, 1, 0)), (0, 0), (0.5, -2.0), (None, 1))},
}
every_setting = pytest.mark.parametrize("name", SETTINGS)


def random_machine(name: str = "pairwise", encoder: nn.Module | None = None) -> BoltzmannMachine:
    """4 labels over 3 features, in double precision, every parameter drawn."""
    model = BoltzmannMachine(3, 4, **SETTINGS[name], encoder=encoder).double()
    generator = torch.Generator().manual_seed(len(name))
    with torch.no_grad():
        for parameter in (model.feature_weight, model.bias, model.clique_weight):
            if parameter is not None:
                parameter.normal_(generator=generator)
    return model


def random_batch(batch: int = 5) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(batch, 3, generator=generator, dtype=torch.float64)
    return x, torch.randint(2, (batch, 4), generator=generator)


@torch.no_grad()
@every_setting
def test_score_is_the_definition(name):
    model, (x, labels) = random_machine(name), random_batch()
    energy = model(x)
    energy.check_values()
    tied = model.cliques
    for b, row in enumerate(labels.tolist()):
        spins = np.array([2 * label - 1 for label in row])
        expected = float(torch.as_tensor(spins, dtype=x.dtype) @ (model.feature_weight @ x[b]))
        if model.bias is not None:
            expected += float(torch.as_tensor(spins, dtype=x.dtype) @ model.bias)
        forms = zip(tied.cliques, tied.groups, tied.coefficients, tied.columns, strict=True)
        for clique, group, coefficient, column in forms:
            held = coefficient * (1 if column is None else float(x[b, column]))
            expected += float(model.clique_weight[group]) * held * spins[list(clique)].prod()
        assert float(energy.score(labels)[b]) == pytest.approx(expected)


def test_the_kind_of_energy_follows_the_cliques():
    (x, _), couplings = random_batch(), {}
    for name in SETTINGS:
        energy = random_machine(name)(x)
        large = name.startswith("large") or name == "coefficients"
        assert isinstance(energy, CliqueEnergy if large else PairwiseEnergy)
        if isinstance(energy, PairwiseEnergy):
            couplings[name] = energy.pairwise.ndim
    assert couplings == dict.fromkeys(couplings, 2) | {"mixed": 3, "mixed_tied": 3}


@every_setting
def test_weights_times_their_gradient_are_the_score(name):
    model, (x, labels) = random_machine(name), random_batch()
    order = [parameter_name for parameter_name, _ in model.named_parameters()]
    assert order == [n for n in ("feature_weight", "bias", "clique_weight") if n in order]
    for score in model(x).score(labels):
        gradients = torch.autograd.grad(score, list(model.parameters()), retain_graph=True)
        statistics = torch.cat([gradient.flatten() for gradient in gradients])
        torch.testing.assert_close(statistics @ model.weights(), score)


@every_setting
def test_scores_and_losses_have_the_gradient_of_finite_differences(name):
    model, (x, labels) = random_machine(name), random_batch(2)
    names = [parameter_name for parameter_name, _ in model.named_parameters()]
    parameters = [parameter.detach().clone().requires_grad_() for parameter in model.parameters()]

    def losses(features: Tensor, *values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        energy = torch.func.functional_call(model, dict(zip(names, values, strict=True)), features)
        loss = negative_pseudo_likelihood(energy, labels)
        return energy.score(labels), loss, exact.log_partition(energy)

    assert torch.autograd.gradcheck(losses, (x.requires_grad_(), *parameters))


@every_setting
def test_csr_input_is_as_dense(name):
    model, (x, labels) = random_machine(name), random_batch()
    x = x * (x > 0)
    sparse = to_tensor(csr_array(x.numpy()))
    assert sparse.layout == torch.sparse_csr
    torch.testing.assert_close(model(sparse).score(labels), model(x).score(labels))


def test_encoder_comes_first_and_learns():
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(8, 3), nn.Tanh()).double()
    model = random_machine("mixed", encoder=encoder)
    images, (_, labels) = torch.ones(5, 2, 4, dtype=torch.float64), random_batch()
    torch.testing.assert_close(model(images).score(labels), model.energy(encoder(images)).score(labels))
    negative_pseudo_likelihood(model(images), labels).sum().backward()
    assert all(weight.grad is not None and weight.grad.any() for weight in encoder.parameters())


@torch.no_grad()
def test_labels_may_depend_on_no_input():
    model = BoltzmannMachine(0, 3).double()
    model.assign(torch.zeros(3, 0), torch.tensor([1.0, 2.0, 3.0]), torch.tensor([4.0, 5.0, 6.0]))
    energy = model(torch.ones(2, 0, dtype=torch.float64))
    assert energy.unary.tolist() == [[1, 2, 3]] * 2
    assert energy.pairwise.tolist() == [[0, 4, 5], [4, 0, 6], [5, 6, 0]]


@torch.no_grad()
def test_markov_logic_network_learns_one_weight_for_each_formula():
    clauses = [Clause((0,), (1,)), Clause((1,), (2,)), Clause((0, 1, 2), formula=1), Clause((), (2,), 2)]
    model = BoltzmannMachine(0, 3, TiedCliques.from_markov_logic(clauses, 3), bias=False).double()
    weights = torch.tensor([1.5, -0.7, 0.3], dtype=torch.float64)
    model.assign(torch.zeros(3, 0), None, weights)
    energy, grounded = model(torch.ones(1, 0, dtype=torch.float64)), from_markov_logic(clauses, weights, 3)
    assert len(model.weights()) == 3
    labels = torch.tensor([[a, b, c] for a in (0, 1) for b in (0, 1) for c in (0, 1)])[:, None]
    difference = grounded.score(labels) - energy.score(labels)
    torch.testing.assert_close(difference, grounded.constant.expand_as(difference))


def test_state_dict_carries_the_weights():
    model, (x, labels) = random_machine("mixed"), random_batch()
    other = BoltzmannMachine(3, 4, **SETTINGS["mixed"]).double()
    assert set(model.state_dict()) == {"feature_weight", "bias", "clique_weight"}
    other.load_state_dict(model.state_dict())
    torch.testing.assert_close(other(x).score(labels), model(x).score(labels))


def test_starts_at_zero_with_every_pair():
    model = BoltzmannMachine(3, 4)
    energy = model(torch.ones(2, 3))
    assert len(model.clique_weight) == 6
    assert not energy.unary.any()
    assert not energy.pairwise.any()
    assert energy.dtype == torch.float32


def test_assign_takes_weights_over_in_its_own_dtype():
    drawn, model = random_machine("mixed"), BoltzmannMachine(3, 4, **SETTINGS["mixed"])
    model.assign(drawn.feature_weight, drawn.bias, drawn.clique_weight)
    torch.testing.assert_close(model.weights(), drawn.weights().float())


def test_refused_weights_change_nothing():
    drawn = random_machine()
    good = {name: value.detach() for name, value in drawn.named_parameters()}
    refusals = {
        "feature_weight: expected shape": {"feature_weight": good["feature_weight"].mT},
        "bias: expected shape": {"bias": good["bias"][:3]},
        "bias: expected a tensor, got None": {"bias": None},
        "clique_weight: expected shape": {"clique_weight": good["clique_weight"][:2]},
        "clique_weight: expected finite": {"clique_weight": good["clique_weight"] * torch.nan},
    }
    model = BoltzmannMachine(3, 4)
    for message, bad in refusals.items():
        with pytest.raises(ValueError, match=message):
            model.assign(**{**good, **bad})
        assert not model.weights().any()
    with pytest.raises(ValueError, match="bias: expected None"):
        BoltzmannMachine(3, 4, bias=False).assign(**good)


@pytest.mark.usefixtures("no_shape_checks")
@pytest.mark.parametrize(
    ("message", "arguments"),
    [
        ("num_features: expected an integer", {"num_features": -1}),
        ("num_labels: expected an integer", {"num_labels": 0}),
        ("cliques: expected 'pairwise'", {"cliques": "chain"}),
        ("cliques: expected distinct labels below 4", {"cliques": [(0, 4)]}),
        ("cliques: expected distinct labels below 4", {"cliques": [()]}),
        ("groups: expected all numbers from 0 to 1", {"cliques": [(0, 1), (1, 2)], "groups": [0, 2]}),
        ("groups: expected shape", {"groups": [0, 0]}),
        ("columns: expected None or a feature", {"cliques": [(0, 1)], "clique_features": [-1]}),
        ("clique_features: expected features below 3", {"cliques": [(0, 1)], "clique_features": [3]}),
        ("cliques: expected tied cliques of 4", {"cliques": TiedCliques(3, ((0, 1),))}),
    ],
)
def test_bad_settings_are_refused_by_name(message, arguments):
    with pytest.raises(ValueError, match=message):
        BoltzmannMachine(**{"num_features": 3, "num_labels": 4, **arguments})


@pytest.mark.parametrize("shape", [(2, 4), (3,), (0, 3)])
def test_features_of_another_width_are_refused(shape):
    with pytest.raises(ValueError, match="x: expected shape"):
        BoltzmannMachine(3, 4)(torch.ones(shape))
