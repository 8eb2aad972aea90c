"""The network's energy against its definition, its weights as one vector, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array
from torch import Tensor, nn

from lmbm_torch.data.tensors import to_tensor
from lmbm_torch.losses import local_hinge, negative_log_likelihood
from lmbm_torch.models import SigmoidBeliefNetwork

ORDERING = [2, 0, 3, 1]


def random_network(degree: int = 2, encoder: nn.Module | None = None) -> SigmoidBeliefNetwork:
    """4 labels over 3 features, in double precision, every parameter drawn, forbidden parents too."""
    model = SigmoidBeliefNetwork(3, 4, ORDERING, degree, encoder).double()
    generator = torch.Generator().manual_seed(degree)
    with torch.no_grad():
        for name in ("feature_weight", "bias", "parent_weight", "clique_weight"):
            model.get_parameter(name).normal_(generator=generator)
    return model


def random_batch(batch: int = 5) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(batch, 3, generator=generator, dtype=torch.float64)
    return x, torch.randint(2, (batch, 4), generator=generator)


@torch.no_grad()
@pytest.mark.parametrize("degree", [1, 2, 3, 4])
def test_local_fields_are_the_definition(degree):
    model, (x, labels) = random_network(degree), random_batch()
    energy = model(x)
    energy.check_values()
    fields = energy.local_fields(labels)
    for b, row in enumerate(labels.tolist()):
        spins = [2 * label - 1 for label in row]
        for t, label in enumerate(ORDERING):
            before = ORDERING[:t]
            expected = float(x[b] @ model.feature_weight[label] + model.bias[label])
            if degree > 1:
                expected += sum(float(model.parent_weight[label, j]) * spins[j] for j in before)
            for clique, weight in zip(model.cliques, model.clique_weight.tolist(), strict=True):
                if label in clique and set(clique) <= {*before, label}:
                    expected += weight * np.prod([spins[j] for j in clique if j != label])
            assert float(fields[b, label]) == pytest.approx(expected)
    assert {len(clique) for clique in model.cliques} == set(range(3, degree + 1))


@pytest.mark.parametrize("degree", [1, 2, 3])
def test_weights_times_their_gradient_are_the_margins(degree):
    model, (x, labels) = random_network(degree), random_batch()
    parameters = [model.feature_weight, model.bias, model.parent_weight, model.clique_weight]
    for margins in model(x).local_margins(labels).sum(-1):
        gradients = torch.autograd.grad(margins, parameters, retain_graph=True, materialize_grads=True)
        statistics = torch.cat([gradient.flatten() for gradient in gradients])
        torch.testing.assert_close(statistics @ model.weights(), margins)


def test_forbidden_parents_have_no_weight_and_no_gradient():
    model, (x, labels) = random_network(), random_batch()
    local_hinge(model(x), labels).sum().backward()
    assert model.parent_weight.grad is not None
    assert not model.parent_weight.grad[~model.allowed_parents].any()
    assert int(model.allowed_parents.sum()) == 6
    assert int(model.weights().ne(0).sum()) == 3 * 4 + 4 + 6


@pytest.mark.parametrize("degree", [2, 3])
def test_csr_input_is_as_dense(degree):
    model, (x, _) = random_network(degree), random_batch()
    x = x * (x > 0)
    sparse = to_tensor(csr_array(x.numpy()))
    assert sparse.layout == torch.sparse_csr
    torch.testing.assert_close(model(sparse).unary, model(x).unary)


def test_encoder_comes_first_and_learns():
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(8, 3), nn.Tanh()).double()
    model = random_network(encoder=encoder)
    images, (_, labels) = torch.ones(5, 2, 4, dtype=torch.float64), random_batch()
    torch.testing.assert_close(model(images).unary, model.energy(encoder(images)).unary)
    negative_log_likelihood(model(images), labels).sum().backward()
    assert all(weight.grad is not None and weight.grad.any() for weight in encoder.parameters())


def test_losses_have_the_gradient_of_finite_differences():
    model, (x, labels) = random_network(3), random_batch(2)
    names = ("feature_weight", "bias", "parent_weight", "clique_weight")
    parameters = [model.get_parameter(name).detach().clone().requires_grad_() for name in names]

    def losses(features: Tensor, *values: Tensor) -> tuple[Tensor, Tensor]:
        energy = torch.func.functional_call(model, dict(zip(names, values, strict=True)), features)
        return local_hinge(energy, labels), negative_log_likelihood(energy, labels)

    assert torch.autograd.gradcheck(losses, (x.requires_grad_(), *parameters))


def test_state_dict_carries_weights_and_ordering():
    model, (x, labels) = random_network(3), random_batch()
    other = SigmoidBeliefNetwork(3, 4, degree=3).double()
    other.load_state_dict(model.state_dict())
    torch.testing.assert_close(other(x).log_prob(labels), model(x).log_prob(labels))
    assert other(x).ordering.tolist() == ORDERING


@pytest.mark.parametrize("degree", [1, 2, 3])
def test_another_order_has_weights_of_its_own(degree):
    model = random_network(degree)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model.register_forward_hook(lambda *_: None)
    other = model.in_order([3, 1, 0, 2])
    made = SigmoidBeliefNetwork(3, 4, [3, 1, 0, 2], degree).double()
    assert other.state_dict().keys() == made.state_dict().keys()
    for name, value in made.state_dict().items():
        assert torch.equal(other.state_dict()[name], value), name
        assert other.state_dict()[name].dtype == value.dtype
    assert other.arguments() == made.arguments()
    assert len(list(other.parameters())) == 4
    with torch.no_grad():
        for weight in other.parameters():
            weight.fill_(1.0)
    other.register_forward_hook(lambda *_: None)
    other.float()
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert len(model._forward_hooks) == 1
    with pytest.raises(ValueError, match="ordering: expected a permutation"):
        model.in_order([3, 1, 0, 0])


def test_starts_at_zero_in_index_order():
    energy = SigmoidBeliefNetwork(3, 4)(torch.ones(2, 3))
    assert energy.ordering.tolist() == [0, 1, 2, 3]
    assert not energy.unary.any()
    assert energy.dtype == torch.float32


def given_weights() -> dict[str, Tensor]:
    """Weights in another dtype, as a dual solver has them."""
    drawn = random_network(3)
    return {
        "feature_weight": drawn.feature_weight.detach(),
        "bias": drawn.bias.detach(),
        "parent_weight": (drawn.parent_weight * drawn.allowed_parents).detach(),
        "clique_weight": drawn.clique_weight.detach(),
    }


def test_assign_takes_weights_over_in_its_own_dtype():
    model, given = SigmoidBeliefNetwork(3, 4, ORDERING, 3), given_weights()
    model.assign(**given)
    for name, value in given.items():
        torch.testing.assert_close(model.get_parameter(name).detach(), value.float())
    del given["clique_weight"]
    SigmoidBeliefNetwork(3, 4, ORDERING, 2).assign(**given)


def test_refused_weights_change_nothing():
    good = given_weights()
    refusals = {
        "feature_weight: expected shape": {"feature_weight": good["feature_weight"].mT},
        "bias: expected shape": {"bias": good["bias"][:3]},
        "parent_weight: expected shape": {"parent_weight": good["parent_weight"][:3]},
        "clique_weight: expected shape": {"clique_weight": None},
        "clique_weight: expected shape .4.": {"clique_weight": good["clique_weight"][:2]},
        "bias: expected finite": {"bias": good["bias"] * torch.nan},
        "parent_weight: expected 0 for labels that are no parents": {"parent_weight": torch.ones(4, 4)},
    }
    model = SigmoidBeliefNetwork(3, 4, ORDERING, 3)
    for message, bad in refusals.items():
        with pytest.raises(ValueError, match=message):
            model.assign(**{**good, **bad})
        assert not model.weights().any()
    with pytest.raises(ValueError, match="clique_weight: expected shape"):
        SigmoidBeliefNetwork(3, 4, ORDERING, 2).assign(**good)


@pytest.mark.usefixtures("no_shape_checks")
@pytest.mark.parametrize(
    ("message", "arguments"),
    [
        ("num_features: expected an integer", {"num_features": 0}),
        ("num_labels: expected an integer", {"num_labels": 0}),
        ("degree: expected an integer", {"degree": 0}),
        ("ordering: expected a permutation", {"ordering": [0, 1, 2, 2]}),
        ("ordering: expected a permutation", {"ordering": [0.0, 1.9, 2.0, 3.0]}),
        ("ordering: expected a permutation", {"ordering": torch.arange(3)}),
    ],
)
def test_bad_settings_are_refused_by_name(message, arguments):
    with pytest.raises(ValueError, match=message):
        SigmoidBeliefNetwork(**{"num_features": 3, "num_labels": 4, **arguments})


@pytest.mark.parametrize("shape", [(2, 4), (3,), (0, 3)])
def test_features_of_another_width_are_refused(shape):
    with pytest.raises(ValueError, match="x: expected shape"):
        SigmoidBeliefNetwork(3, 4)(torch.ones(shape))
