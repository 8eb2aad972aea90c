"""LinearChain against its own sufficient statistics, the gradient of its likelihood, and what it refuses."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import one_hot

from lmbm_torch.energies import PADDING
from lmbm_torch.inference.trees import chain_dp
from lmbm_torch.models import LinearChain, MaximumEntropyMarkov

LENGTHS = torch.tensor([4, 1, 3])
pytestmark = pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
BOTH = pytest.mark.parametrize("conditional", [False, True])


def head(model: LinearChain) -> dict[str, torch.Tensor]:
    """The parameters that are linear in the score, by name."""
    return {name: weight for name in model.HEAD if (weight := getattr(model, name)) is not None}


def problem(conditional: bool, encoder: nn.Module | None = None):
    """A model with random weights, padded features with NaN for padding, and labels with ``PADDING``."""
    generator = torch.Generator().manual_seed(0)
    model = LinearChain(5, 3, conditional, encoder).double()
    for parameter in head(model).values():
        nn.init.normal_(parameter, generator=generator)
    outside = torch.arange(4) >= LENGTHS[:, None]
    x = torch.randn(3, 4, 5, generator=generator, dtype=torch.float64)
    labels = torch.randint(3, (3, 4), generator=generator)
    return model, x.masked_fill(outside[..., None], torch.nan), labels.masked_fill(outside, PADDING)


def one_after_another(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([rows[:length] for rows, length in zip(x, LENGTHS.tolist(), strict=True)])


@BOTH
def test_weights_and_statistics_make_the_score(conditional):
    model, x, labels = problem(conditional)
    scores = model(x, LENGTHS).score(labels)
    for form in (x, one_after_another(x), one_after_another(x).to_sparse_csr()):
        statistics = model.sufficient_statistics(form, labels, LENGTHS)
        torch.testing.assert_close(statistics @ model.weights(), scores)


def test_scores_are_the_definition():
    model, x, labels = problem(conditional=True)
    scores = model(x, LENGTHS).score(labels)
    for example, length in enumerate(LENGTHS.tolist()):
        states, rows = labels[example, :length].tolist(), x[example]
        expected = sum(model.feature_weight[s] @ rows[t] + model.bias[s] for t, s in enumerate(states))
        for t in range(1, length):
            pair = states[t - 1], states[t]
            expected = expected + model.transition[pair] + model.transition_feature_weight[pair] @ rows[t]
        torch.testing.assert_close(scores[example], expected)


@BOTH
def test_every_form_of_features_makes_the_same_energy(conditional):
    model, x, _ = problem(conditional)
    padded, rows = model(x, LENGTHS), one_after_another(x)
    for energy in (model(rows, LENGTHS), model(rows.to_sparse_csr(), LENGTHS)):
        for name in ("unary", "transition", "lengths"):
            torch.testing.assert_close(getattr(energy, name), getattr(padded, name))
    full = model(x[:1])
    assert full.lengths.tolist() == [4]
    torch.testing.assert_close(full.unary, padded.unary[:1])


@BOTH
def test_the_gradient_of_the_likelihood_is_empirical_less_expected_counts(conditional):
    model, x, labels = problem(conditional)
    energy = model(x, LENGTHS)
    log_likelihood = energy.score(labels) - chain_dp.log_partition(energy)
    log_likelihood.sum().backward()
    expected = torch.zeros_like(model.weights())
    for example, length in enumerate(LENGTHS.tolist()):
        row = slice(example, example + 1)
        alone = model(x[row, :length])
        labellings = torch.cartesian_prod(*[torch.arange(3)] * length).view(-1, length)
        scores = alone.score(labellings[:, None])[:, 0]
        counts = model.sufficient_statistics(x[row, :length].expand(len(scores), -1, -1), labellings)
        expected += (scores - scores.logsumexp(0)).exp() @ counts
    empirical = model.sufficient_statistics(x, labels, LENGTHS).sum(0)
    gradient = torch.cat([parameter.grad.flatten() for parameter in head(model).values()])
    torch.testing.assert_close(gradient, (empirical - expected).detach())


@BOTH
def test_a_maximum_entropy_markov_model_has_nothing_to_normalise(conditional):
    model, x, labels = problem(conditional)
    markov = MaximumEntropyMarkov(5, 3, conditional).double()
    markov.load_state_dict(model.state_dict())
    energy = markov(x, LENGTHS)
    torch.testing.assert_close(chain_dp.log_partition(energy), torch.zeros(3, dtype=torch.float64))
    assert torch.equal(energy.score(labels), model(x, LENGTHS).locally_normalised().score(labels))
    energy.score(labels).sum().backward()
    assert all((weight.grad != 0).any() for weight in markov.parameters())
    # A single position is the same logistic regression either way.
    globally = model(x, LENGTHS)
    log_prob = globally.score(labels) - chain_dp.log_partition(globally)
    torch.testing.assert_close(energy.score(labels)[1], log_prob[1])


def test_gradients_reach_an_encoder_and_not_padding():
    encoder = nn.Sequential(nn.Linear(5, 5), nn.Tanh()).double()
    model, x, labels = problem(conditional=True, encoder=encoder)
    inside = torch.arange(4) < LENGTHS[:, None]
    x = x.nan_to_num(7.0).requires_grad_()
    energy = model(x, LENGTHS)
    (chain_dp.log_partition(energy) - energy.score(labels)).sum().backward()
    assert torch.equal((x.grad != 0).any(-1), inside)
    assert all((parameter.grad != 0).any() for parameter in encoder.parameters())


def test_likelihood_training_learns_an_alternation_that_features_do_not_show():
    generator = torch.Generator().manual_seed(0)
    labels = (torch.arange(10) + torch.randint(2, (20, 1), generator=generator)) % 2
    x = one_hot(labels, 2).float()
    x[:, 1:] = 0.5
    model = LinearChain(2, 2)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=30)

    def closure():
        optimizer.zero_grad()
        energy = model(x)
        loss = (chain_dp.log_partition(energy) - energy.score(labels)).mean()
        (loss + 1e-3 * model.weights().square().sum()).backward()
        return loss

    optimizer.step(closure)
    assert torch.equal(chain_dp.decode(model(x)).labels, labels)


@BOTH
def test_weights_are_assigned_all_or_none(conditional):
    model, _, _ = problem(conditional)
    other, _, _ = problem(conditional)
    weights = {name: parameter.detach() * 2 for name, parameter in head(model).items()}
    model.assign(**weights)
    torch.testing.assert_close(model.weights(), 2 * other.weights())
    for name in weights:
        with pytest.raises(ValueError, match=f"^{name}: expected"):
            other.assign(**(weights | {name: torch.full_like(weights[name], torch.nan)}))
        with pytest.raises(ValueError, match=f"^{name}: expected"):
            other.assign(**(weights | {name: weights[name][:1]}))
    torch.testing.assert_close(2 * other.weights(), model.weights())
    with pytest.raises(ValueError, match=r"^transition_feature_weight: expected exactly where"):
        other.assign(
            **(weights | {"transition_feature_weight": None if conditional else torch.zeros(3, 3, 5)})
        )


@pytest.mark.parametrize(
    ("name", "shape", "lengths"),
    [
        ("x", (3, 4, 6), LENGTHS),
        ("x", (5,), LENGTHS),
        ("lengths", (8, 5), None),
        ("lengths", (9, 5), LENGTHS),
        ("lengths", (3, 5), torch.tensor([0, 3])),
        ("lengths", (3, 3, 5), LENGTHS),
        ("lengths", (3, 4, 5), torch.tensor([0, 4, 4])),
        ("lengths", (2, 4, 5), LENGTHS),
    ],
)
def test_refuses_what_does_not_fit(name, shape, lengths):
    with pytest.raises(ValueError, match=f"^{name}: expected"):
        LinearChain(5, 3)(torch.zeros(shape), lengths)


@pytest.mark.parametrize("name", ["num_features", "num_states"])
def test_refuses_counts_below_one(name):
    with pytest.raises(ValueError, match=f"^{name}: expected"):
        LinearChain(**({"num_features": 2, "num_states": 2} | {name: 0}))
