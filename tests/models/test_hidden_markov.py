"""Hidden Markov models: their joint probability, what counting finds, and their emissions against torch's."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import distributions

from lmbm_torch.energies.chain import PADDING
from lmbm_torch.inference.trees import chain_dp
from lmbm_torch.models import HiddenMarkov
from lmbm_torch.models.hidden_markov import Bernoulli, Gaussian, Multinomial

pytestmark = pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")

LENGTHS = torch.tensor([4, 1, 3])
INSIDE = torch.arange(4) < LENGTHS[:, None]
EMISSIONS = pytest.mark.parametrize("emission", [Multinomial, Bernoulli, Gaussian])


def problem(emission: type, seed: int = 0):
    """A model counted from random labels, and the padded observations and labels that it was counted from."""
    generator = torch.Generator().manual_seed(seed)
    if emission is Gaussian:
        x = torch.randn(3, 4, 5, generator=generator, dtype=torch.float64) + 2
    else:
        x = torch.randint(2, (3, 4, 5), generator=generator).double()
    x = x.masked_fill(~INSIDE[..., None], torch.nan)
    labels = torch.randint(3, (3, 4), generator=generator).masked_fill(~INSIDE, PADDING)
    model = HiddenMarkov(emission(3, 5)).double()
    model.count(x, labels, LENGTHS, smoothing=0.5)
    return model, x, labels


def by_torch(model: HiddenMarkov, rows: torch.Tensor) -> torch.Tensor:
    """log P(row | state) by torch's own distributions, (positions, states)."""
    emission = model.emission
    if isinstance(emission, Gaussian):
        return distributions.Normal(emission.mean, emission.variance.sqrt()).log_prob(rows[:, None]).sum(-1)
    if isinstance(emission, Bernoulli):
        return distributions.Bernoulli(logits=emission.log_odds).log_prob(rows[:, None]).sum(-1)
    ordered = (rows[:, None] * emission.log_probability).sum(-1)
    torch.testing.assert_close(emission.log_probability.exp().sum(1), torch.ones(3).double())
    return ordered


@EMISSIONS
def test_the_score_is_the_joint_log_probability(emission):
    model, x, labels = problem(emission)
    scores = model(x, LENGTHS).score(labels)
    for example, length in enumerate(LENGTHS.tolist()):
        states = labels[example, :length]
        expected = by_torch(model, x[example, :length])[torch.arange(length), states].sum()
        expected = expected + model.log_start[states[0]]
        expected = expected + model.log_transition[states[:-1], states[1:]].sum()
        torch.testing.assert_close(scores[example], expected)
    torch.testing.assert_close(model.log_start.logsumexp(0), torch.tensor(0.0).double())
    torch.testing.assert_close(model.log_transition.logsumexp(1), torch.zeros(3).double())


def test_probabilities_of_all_sequences_sum_to_one():
    model, _, _ = problem(Bernoulli)
    narrow = HiddenMarkov(Bernoulli(3, 1)).double()
    narrow.log_start, narrow.log_transition = model.log_start, model.log_transition
    narrow.emission.log_odds = model.emission.log_odds[:, :1]
    x = torch.tensor(list(product((0.0, 1.0), repeat=4)), dtype=torch.float64)[..., None]
    torch.testing.assert_close(chain_dp.log_partition(narrow(x)).exp().sum(), torch.tensor(1.0).double())


def test_counting_finds_smoothed_frequencies():
    model = HiddenMarkov(Multinomial(2, 3)).double()
    x = torch.eye(3, dtype=torch.float64)[torch.tensor([[0, 0, 2], [1, 0, 0]])]
    model.count(x, torch.tensor([[0, 0, 1], [1, 0, PADDING]]), torch.tensor([3, 2]), smoothing=0.5)
    torch.testing.assert_close(model.log_start.exp(), torch.tensor([1.5, 1.5]).double() / 3)
    transition = torch.tensor([[1.5 / 3, 1.5 / 3], [1.5 / 2, 0.5 / 2]]).double()
    torch.testing.assert_close(model.log_transition.exp(), transition)
    symbols = torch.tensor([[3.5, 0.5, 0.5], [0.5, 1.5, 1.5]]).double()
    torch.testing.assert_close(model.emission.log_probability.exp(), symbols / symbols.sum(1, keepdim=True))


@EMISSIONS
def test_what_counting_finds_is_the_most_probable(emission):
    model, x, labels = problem(emission)
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}

    def objective() -> torch.Tensor:
        return model(x, LENGTHS).score(labels).sum() + model.log_prior(0.5)

    best = objective()
    generator = torch.Generator().manual_seed(1)
    for name in buffers:
        for step in (1e-3, 1e-1):
            noise = step * torch.randn(buffers[name].shape, generator=generator, dtype=torch.float64)
            moved = buffers[name] * noise.exp() if name.endswith("variance") else buffers[name] + noise
            if name in ("log_start", "log_transition", "emission.log_probability"):
                moved = moved.log_softmax(-1)
            changed = {**buffers, name: moved}
            for other, value in changed.items():
                model.get_buffer(other).copy_(value)
            assert objective() < best


@EMISSIONS
def test_every_form_of_observations_is_the_same(emission):
    model, x, labels = problem(emission)
    rows = x[INSIDE]
    padded = model(x, LENGTHS)
    forms = [rows] if emission is Gaussian else [rows, rows.to_sparse_csr()]
    for form in forms:
        torch.testing.assert_close(model(form, LENGTHS).unary, padded.unary)
        again = HiddenMarkov(emission(3, 5)).double()
        again.count(form, labels, LENGTHS, smoothing=0.5)
        for name, buffer in model.named_buffers():
            torch.testing.assert_close(again.get_buffer(name), buffer)


@EMISSIONS
def test_a_state_never_seen_keeps_its_prior(emission):
    _, x, _ = problem(emission)
    model = HiddenMarkov(emission(3, 5)).double()
    model.count(x, torch.zeros(3, 4, dtype=torch.int64), LENGTHS)
    fresh = emission(3, 5).double()
    for name, buffer in fresh.named_buffers():
        torch.testing.assert_close(model.emission.get_buffer(name)[1:], buffer[1:])


@pytest.mark.parametrize(
    ("emission", "value"),
    [
        (Multinomial, -1.0),
        (Multinomial, torch.inf),
        (Bernoulli, 0.5),
        (Bernoulli, torch.nan),
        (Gaussian, torch.nan),
    ],
)
def test_emissions_refuse_what_they_cannot_emit(emission, value):
    model, x, labels = problem(emission)
    x[0, 0, 0] = value
    for call in (lambda: model(x, LENGTHS), lambda: model.count(x, labels, LENGTHS)):
        with pytest.raises(ValueError, match=r"^x: expected"):
            call()


def test_normal_features_are_dense():
    model, x, _ = problem(Gaussian)
    with pytest.raises(ValueError, match=r"^x: expected dense features, got torch.sparse_csr"):
        model(x[INSIDE].to_sparse_csr(), LENGTHS)


def test_refuses_labels_and_smoothing_that_are_none():
    model, x, labels = problem(Bernoulli)
    with pytest.raises(ValueError, match=r"^labels: expected 0 to 2"):
        model.count(x, torch.full_like(labels, 3), LENGTHS)
    with pytest.raises(ValueError, match=r"^smoothing: expected"):
        model.count(x, labels, LENGTHS, smoothing=0.0)
    with pytest.raises(ValueError, match=r"^num_states: expected"):
        Bernoulli(0, 5)


@pytest.mark.parametrize(
    ("name", "shape", "lengths"),
    [
        ("x", (3, 4, 6), [4, 1, 3]),
        ("x", (5,), [4, 1, 3]),
        ("lengths", (8, 5), None),
        ("lengths", (9, 5), [4, 1, 3]),
        ("lengths", (3, 5), [0, 3]),
        ("lengths", (3, 3, 5), [4, 1, 3]),
        ("lengths", (3, 4, 5), [0, 4, 4]),
        ("lengths", (2, 4, 5), [4, 1, 3]),
    ],
)
def test_refuses_lengths_and_widths_that_do_not_fit(name, shape, lengths):
    with pytest.raises(ValueError, match=f"^{name}: expected"):
        HiddenMarkov(Gaussian(3, 5))(torch.zeros(shape), lengths)
