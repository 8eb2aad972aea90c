"""Expectation maximisation never lowers its objective, and finds the states that made the data."""

from __future__ import annotations

import pytest
import torch

from lmbm_torch.energies import ChainEnergy
from lmbm_torch.inference.trees import chain_dp
from lmbm_torch.models import HiddenMarkov
from lmbm_torch.models.hidden_markov import Bernoulli, Gaussian, Multinomial
from lmbm_torch.solvers.base import run
from lmbm_torch.solvers.chains import expectation_maximisation
from lmbm_torch.solvers.chains.expectation_maximisation import ExpectationProblem


def drawn(emission: type, seed: int = 0):
    """Observations of 30 chains of three states that mostly go on in a circle, and these states."""
    generator = torch.Generator().manual_seed(seed)
    stay = torch.tensor([[0.1, 0.85, 0.05], [0.05, 0.1, 0.85], [0.85, 0.05, 0.1]], dtype=torch.float64)
    energy = ChainEnergy(torch.zeros(1, 12, 3, dtype=torch.float64), stay.log())
    labels = chain_dp.sample(energy, 30, generator=generator)[:, 0]
    centre = 2.5 * torch.eye(3, dtype=torch.float64)[labels].repeat_interleave(2, -1) - 1
    noise = torch.randn(centre.shape, generator=generator, dtype=torch.float64)
    if emission is Gaussian:
        return centre + 0.5 * noise, labels
    return (torch.rand(centre.shape, generator=generator) < torch.sigmoid(2 * centre)).double(), labels


def fit(emission: type, x: torch.Tensor, lengths: torch.Tensor | None = None, **settings):
    model, trace = HiddenMarkov(emission(3, x.shape[-1])).double(), []
    problem = ExpectationProblem(
        lambda: model(x, lengths),
        lambda nodes, steps: model.maximise(x, nodes, steps, lengths, smoothing=0.1),
        lambda: model.log_prior(0.1),
    )
    start = expectation_maximisation.init(problem, generator=torch.Generator().manual_seed(2))
    settings = {"tol": 1e-5, "max_iter": 200, **settings}
    state = run(expectation_maximisation, problem, start=start, callback=trace.append, **settings)
    return model, state, trace


@pytest.mark.parametrize("emission", [Multinomial, Bernoulli, Gaussian])
def test_the_objective_never_falls(emission):
    x, _ = drawn(emission)
    lengths = torch.arange(30) % 12 + 1
    x = x.masked_fill((torch.arange(12) >= lengths[:, None])[..., None], torch.nan)
    model, state, trace = fit(emission, x, lengths, tol=1e-9)
    objectives = torch.tensor([one.objective for one in trace])
    assert (objectives.diff() >= -1e-9 * objectives[0].abs()).all()
    assert objectives[-1] > objectives[0] + 10
    assert [one.num_iters for one in trace] == list(range(1, len(trace) + 1))
    assert state == trace[-1]
    assert abs(state.gain) <= 1e-9 * abs(state.objective)
    likelihood = chain_dp.log_partition(model(x, lengths)).sum() + model.log_prior(0.1)
    assert float(likelihood) >= state.objective - 1e-9 * abs(state.objective)


def test_it_finds_the_states_that_made_the_data():
    x, labels = drawn(Gaussian)
    model, _, _ = fit(Gaussian, x)
    found = chain_dp.decode(model(x)).labels
    # States come in any order: each found one stands for the true one that it meets most often.
    meetings = torch.zeros(3, 3, dtype=torch.int64).index_put(
        (found, labels), torch.tensor(1), accumulate=True
    )
    assert sorted(meetings.argmax(1).tolist()) == [0, 1, 2]
    assert meetings.amax(1).sum() > 0.95 * labels.numel()


def test_the_seed_decides():
    x, _ = drawn(Bernoulli)
    (first, _, _), (again, _, _) = (fit(Bernoulli, x, max_iter=3) for _ in range(2))
    assert torch.equal(first.log_transition, again.log_transition)
    _, state, trace = fit(Bernoulli, x, max_iter=1)
    assert state.num_iters == len(trace) == 1


def test_refuses_what_it_cannot_do():
    energy = ChainEnergy(torch.zeros(2, 3, 2), torch.zeros(2, 2, 2, 2))
    problem = ExpectationProblem(lambda: energy, lambda nodes, steps: None, lambda: torch.tensor(0.0))
    for settings, name in (({"tol": -1.0}, "tol"), ({"max_iter": 0}, "max_iter"), ({}, "energy")):
        with pytest.raises(ValueError, match=f"^{name}: expected"):
            run(expectation_maximisation, problem, **settings)
