"""Markov logic networks against the truth values of their ground clauses."""

from __future__ import annotations

import pytest
import torch
from strategies.pairwise import all_labellings
from torch import Tensor

from lmbm_torch.energies import Clause, from_markov_logic
from lmbm_torch.inference.enumeration import exact


def random_clauses(seed: int) -> tuple[list[Clause], Tensor, int]:
    """Clauses of every kind (repeated atoms, tautologies, none at all), formulas' weights, atoms."""
    generator = torch.Generator().manual_seed(seed)

    def number(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=generator))

    num_atoms, num_formulas = number(1, 7), number(1, 4)

    def atoms() -> tuple[int, ...]:
        return tuple(number(0, num_atoms - 1) for _ in range(number(0, 3)))

    clauses = [Clause(atoms(), atoms(), number(0, num_formulas - 1)) for _ in range(number(1, 12))]
    return clauses, 2 * torch.randn(num_formulas, generator=generator, dtype=torch.float64), num_atoms


def true_groundings(clauses: list[Clause], num_formulas: int, labels: list[int]) -> list[int]:
    """How many clauses of each formula a labelling makes true, by the meaning of the connectives."""
    counts = [0] * num_formulas
    for clause in clauses:
        counts[clause.formula] += any(labels[atom] for atom in clause.positive) or any(
            not labels[atom] for atom in clause.negated
        )
    return counts


def logic_scores(clauses: list[Clause], weights: Tensor, num_atoms: int) -> Tensor:
    """Σ_f weights_f n_f of every labelling, (2^atoms, batch)."""
    labellings = all_labellings(num_atoms)[:, 0].tolist()
    counts = [true_groundings(clauses, weights.shape[-1], labels) for labels in labellings]
    return torch.tensor(counts, dtype=weights.dtype) @ weights.reshape(-1, weights.shape[-1]).mT


@pytest.mark.parametrize("seed", range(200))
def test_the_distribution_is_that_of_the_grounded_network(seed):
    clauses, weights, num_atoms = random_clauses(seed)
    energy = from_markov_logic(clauses, weights, num_atoms)
    expected = logic_scores(clauses, weights, num_atoms)
    scores = energy.score(all_labellings(num_atoms))
    torch.testing.assert_close(scores, expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(scores.softmax(0), expected.softmax(0), rtol=0, atol=1e-10)
    torch.testing.assert_close(exact.log_partition(energy), expected.logsumexp(0), rtol=0, atol=1e-10)


def test_one_row_of_weights_per_example():
    clauses, _, num_atoms = random_clauses(3)
    weights = torch.randn(5, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    energy = from_markov_logic(clauses, weights, num_atoms)
    assert energy.batch_size == 5
    torch.testing.assert_close(
        energy.score(all_labellings(num_atoms)), logic_scores(clauses, weights, num_atoms)
    )


def test_gradients_count_true_groundings():
    clauses, weights, num_atoms = random_clauses(11)
    weights.requires_grad_()
    labels = torch.ones(1, num_atoms)
    (gradient,) = torch.autograd.grad(from_markov_logic(clauses, weights, num_atoms).score(labels), weights)
    expected = true_groundings(clauses, len(weights), [1] * num_atoms)
    torch.testing.assert_close(gradient, torch.tensor(expected).double())


def test_clauses_are_simplified():
    weights = torch.tensor([1.5])

    def weight(*clauses: Clause) -> dict[tuple[int, ...], float]:
        energy = from_markov_logic(clauses, weights, 2)
        return dict(
            zip(((), *energy.cliques), [*energy.constant.tolist(), *energy.weight.tolist()], strict=True)
        )

    assert weight(Clause((0, 0))) == weight(Clause((0,))) == {(): 0.75, (0,): 0.75}
    assert weight(Clause((0, 1), (1,))) == {(): 1.5}
    assert weight(Clause()) == weight() == {(): 0.0}


@pytest.mark.usefixtures("no_shape_checks")
@pytest.mark.parametrize(
    ("name", "clause", "weights", "num_atoms"),
    [
        ("clauses", Clause((2,)), torch.ones(1), 2),
        ("clauses", Clause((), (-1,)), torch.ones(1), 2),
        ("clauses", Clause((0,), formula=1), torch.ones(1), 2),
        ("clauses", Clause((0,), formula=-1), torch.ones(1), 2),
        ("weights", Clause((0,)), torch.ones(1).long(), 2),
        ("weights", Clause((0,)), torch.ones(()), 2),
        ("weights", Clause((0,)), torch.ones(1, 1, 1), 2),
        ("weights", Clause((0,)), torch.ones(0), 2),
        ("num_atoms", Clause(), torch.ones(1), 0),
    ],
)
def test_refuses(name, clause, weights, num_atoms):
    with pytest.raises(ValueError, match=f"^{name}: expected"):
        from_markov_logic([clause], weights, num_atoms)
