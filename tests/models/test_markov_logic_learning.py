"""A planted Markov logic network, from its formulas to learned weights, probabilities and decoding."""

from __future__ import annotations

import torch
from strategies.pairwise import all_labellings

from lmbm_torch.energies import Clause, CliqueEnergy, TiedCliques
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.losses import exact_negative_log_likelihood
from lmbm_torch.models import BoltzmannMachine


def test_a_planted_network_is_learned_and_answers_as_its_formulas_do():
    # Two people smoke or not and have a cough or not: smoking makes cough, friends smoke alike, few smoke,
    # and a clause of three.
    clauses = [Clause((2 + person,), (person,)) for person in (0, 1)]
    clauses += [Clause((0,), (1,), 1), Clause((1,), (0,), 1)]
    clauses += [Clause((), (person,), 2) for person in (0, 1)] + [Clause((1, 2), (3,), 3)]
    planted = [1.2, 0.8, 0.4, 0.9]
    labellings = all_labellings(4)
    worlds = labellings[:, 0].tolist()
    counts = torch.zeros(16, 4, dtype=torch.float64)
    for row, world in enumerate(worlds):
        for clause in clauses:
            is_true = any(world[i] for i in clause.positive) or not all(world[i] for i in clause.negated)
            counts[row, clause.formula] += is_true
    truth = (counts @ torch.tensor(planted, dtype=torch.float64)).softmax(0)

    # The unconditional machine: x says nothing. Learned from every world as often as it is true.
    model = BoltzmannMachine(0, 4, TiedCliques.from_markov_logic(clauses, 4), bias=False).double()
    nothing = torch.ones(16, 0, dtype=torch.float64)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        value = truth @ exact_negative_log_likelihood(model(nothing), labellings[:, 0])
        value.backward()
        return value

    optimizer.step(loss)
    learned = model.clique_weight.detach()
    torch.testing.assert_close(learned, torch.tensor(planted, dtype=torch.float64), atol=1e-3, rtol=0)

    energy = model(nothing[:1])
    assert isinstance(energy, CliqueEnergy)
    found = exact.marginals(energy)
    torch.testing.assert_close(found.labels.detach()[0], truth @ labellings[:, 0].double(), atol=1e-4, rtol=0)
    assert exact.decode(energy).labels[0].tolist() == worlds[int(truth.argmax())]
    # With a cough of the first person known, P(the first smokes | cough) by the planted probabilities.
    known = torch.full((1, 4), torch.nan, dtype=torch.float64)
    known[0, 2] = 1
    cough, both = (
        sum(float(p) for p, world in zip(truth, worlds, strict=True) if all(world[i] for i in atoms))
        for atoms in ((2,), (0, 2))
    )
    smokes = float(exact.marginals(energy, known=known).labels[0, 0].detach())
    assert abs(smokes - both / cough) < 1e-4
