"""Grounded Markov logic networks as Boltzmann machines."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor

from lmbm_torch.checks import check_count, check_shape
from lmbm_torch.energies.base import check_floating
from lmbm_torch.energies.clique import CliqueEnergy
from lmbm_torch.shapes import Float


@dataclass(frozen=True)
class Clause:
    """A ground clause: a disjunction of atoms and negated atoms, true where one of them is.

    Args:
        positive: atoms that stand as they are, by number; one that stands twice counts once.
        negated: atoms that stand negated. A clause with an atom on both sides is always true, one without
            any atom never.
        formula: number of the first-order formula that it grounds, whose weight it takes.
    """

    positive: tuple[int, ...] = ()
    negated: tuple[int, ...] = ()
    formula: int = 0


def from_markov_logic(
    clauses: Sequence[Clause],
    weights: Float[Tensor, " formulas"] | Float[Tensor, "batch formulas"],
    num_atoms: int,
) -> CliqueEnergy:
    """The Boltzmann machine whose score is Σ_f weights_f n_f(y), n_f the true groundings of formula f.

    A clause over the atoms C of its own adds to the constant w (1 − 2^−|C|), and to each clique c ⊆ C, c ≠ ∅,

        (−1)^(|c| + 1) 2^−|C| w Π_{i ∈ c} ε_i,     ε_i = −1 where atom i is negated, else 1

    (large_margin_boltzmann_machines_2009, Remark 2.2, with the subsets of its last step put the right way
    round). Cliques number up to 2^|C| per clause; gradients flow to ``weights``.

    Args:
        clauses: every grounding of every formula.
        weights: one weight per formula, shared by its groundings; one row per example for several.
        num_atoms: atoms are the labels 0 … num_atoms − 1, 1 for true.

    Raises:
        ValueError: ``num_atoms`` below 1; an atom or a formula that there is not; weights of another shape
            or no floating-point numbers.
    """
    check_count("num_atoms", num_atoms)
    check_shape("weights", weights, *([None] * min(max(weights.ndim, 1), 2)))
    check_floating("weights", weights)
    num_formulas = weights.shape[-1]
    coefficients: defaultdict[tuple[int, ...], list[float]] = defaultdict(lambda: [0.0] * num_formulas)
    coefficients[()]  # the constant, first also where no clause adds to it
    for clause in clauses:
        _check_clause(clause, num_atoms, num_formulas)
        for clique, coefficient in _parity_expansion(clause):
            coefficients[clique][clause.formula] += coefficient
    # Powers of two and their sums are exact in any floating-point dtype that has the bits for a clause.
    table = torch.tensor(list(coefficients.values()), dtype=weights.dtype, device=weights.device)
    weight = weights @ table.mT
    return CliqueEnergy(
        cliques=tuple(coefficients)[1:],
        weight=weight[..., 1:],
        constant=weight[..., :1].flatten(),
        num_labels=num_atoms,
    )


def _check_clause(clause: Clause, num_atoms: int, num_formulas: int) -> None:
    if not 0 <= clause.formula < num_formulas:
        raise ValueError(f"clauses: expected a formula below {num_formulas}, got {clause}")
    if not all(0 <= atom < num_atoms for atom in clause.positive + clause.negated):
        raise ValueError(f"clauses: expected atoms below {num_atoms}, got {clause}")


def _parity_expansion(clause: Clause) -> Iterator[tuple[tuple[int, ...], float]]:
    """The clause's truth value, 0 or 1, as a sum of cliques' parities; the empty clique is the constant."""
    negated = set(clause.negated)
    if negated & set(clause.positive):
        yield (), 1.0
        return
    atoms = sorted(negated | set(clause.positive))
    share = 2.0 ** -len(atoms)
    yield (), 1 - share
    for size in range(1, len(atoms) + 1):
        for clique in combinations(atoms, size):
            sign = (-1) ** (size + 1 + len(negated.intersection(clique)))
            yield clique, sign * share
