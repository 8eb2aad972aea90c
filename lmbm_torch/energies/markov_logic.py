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
    """A ground clause: a disjunction of atoms and negated atoms.

    Args:
        positive: the numbers of the plain atoms; repetitions have no effect.
        negated: the numbers of the negated atoms. A clause with an atom both plain and negated is always
            true; a clause without atoms is always false.
        formula: the number of the first-order formula whose weight the clause takes.

    Examples:
        >>> from lmbm_torch.energies import Clause
        >>> Clause(positive=(1,), negated=(0,), formula=0)  # atom 0 implies atom 1
        Clause(positive=(1,), negated=(0,), formula=0)
    """

    positive: tuple[int, ...] = ()
    negated: tuple[int, ...] = ()
    formula: int = 0


def from_markov_logic(
    clauses: Sequence[Clause],
    weights: Float[Tensor, " formulas"] | Float[Tensor, "batch formulas"],
    num_atoms: int,
) -> CliqueEnergy:
    """Build a Markov logic network, whose score is Σ_f weights_f · (true groundings of formula f).

    A clause over distinct atoms C adds w (1 − 2^−|C|) to the constant, and to each clique c ⊆ C, c ≠ ∅,

        (−1)^(|c| + 1) 2^−|C| w Π_{i ∈ c} ε_i,     ε_i = −1 where atom i is negated, else 1

    (large_margin_boltzmann_machines_2009, Remark 2.2, with the subset relation of the last step corrected).
    Each clause gives up to 2^|C| cliques; gradients flow to ``weights``.

    Args:
        clauses: every grounding of every formula.
        weights: one weight per formula, shared by its groundings; one row per example for several examples.
        num_atoms: atoms are the labels 0 … num_atoms − 1, 1 for true.

    Raises:
        ValueError: ``num_atoms`` is below 1; an atom or a formula is unknown; weights have another shape or
            are not floating-point.

    Examples:
        >>> import torch
        >>> from lmbm_torch.energies import Clause, from_markov_logic
        >>> energy = from_markov_logic([Clause((1,), (0,), 0)], torch.tensor([2.0]), num_atoms=2)
        >>> energy.score(torch.tensor([[1, 0]])), energy.score(torch.tensor([[1, 1]]))
        (tensor([0.]), tensor([2.]))
    """
    check_count("num_atoms", num_atoms)
    check_shape("weights", weights, *([None] * min(max(weights.ndim, 1), 2)))
    check_floating("weights", weights)
    num_formulas = weights.shape[-1]
    coefficients: defaultdict[tuple[int, ...], list[float]] = defaultdict(lambda: [0.0] * num_formulas)
    coefficients[()]  # the constant, first even if no clause adds to it
    for clause in clauses:
        _check_clause(clause, num_atoms, num_formulas)
        for clique, coefficient in _parity_expansion(clause):
            coefficients[clique][clause.formula] += coefficient
    # The coefficients, sums of powers of two, are exact if the dtype has enough bits for a clause.
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
    """Yield cliques with the coefficients that write the clause's truth value as a sum of parities."""
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
