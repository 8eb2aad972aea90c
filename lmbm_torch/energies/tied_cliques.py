"""Tied cliques: cliques of a Boltzmann machine in groups that share a weight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import torch

from lmbm_torch.checks import check_count, check_finite, check_shape
from lmbm_torch.energies.base import check_cliques
from lmbm_torch.energies.markov_logic import Clause, from_markov_logic
from lmbm_torch.persistence.stored import Stored


@dataclass(frozen=True)
class TiedCliques(Stored):
    """Cliques in groups that share a weight (large_margin_boltzmann_machines_2009, Definition 2.1).

    All cliques c of group g have the same learned weight; with spins s,

        score(y) = Σ_c weight_{groups_c} coefficients_c x_{columns_c} Π_{i ∈ c} s_i

    where x_{columns_c} is one of the input's features, or 1.

    Args:
        num_labels: the number of labels.
        cliques: sets of one or more labels; potentials of repeated sets add up.
        groups: (cliques,), the number of each clique's group, from 0 without gaps; by default each clique is
            a group.
        coefficients: (cliques,), the factor of each clique's weight; by default 1.
        columns: (cliques,), the number of the feature that multiplies each clique, or None (the default).

    Raises:
        ValueError: a clique is empty, or has a repeated or unknown label; groups, coefficients or columns are
            not as many as cliques; groups have gaps; coefficients are not finite; a column is neither None
            nor a feature's number.

    Examples:
        >>> from lmbm_torch.energies import TiedCliques
        >>> TiedCliques(3, ((0, 1), (1, 2)), groups=(0, 0)).num_weights
        1
    """

    num_labels: int
    cliques: tuple[tuple[int, ...], ...]
    groups: tuple[int, ...] = None  # pyright: ignore[reportAssignmentType]  # set in __post_init__
    coefficients: tuple[float, ...] = None  # pyright: ignore[reportAssignmentType]
    columns: tuple[int | None, ...] = None  # pyright: ignore[reportAssignmentType]

    def __post_init__(self) -> None:
        check_count("num_labels", self.num_labels)
        check_cliques(self.cliques, self.num_labels)
        count = len(self.cliques)
        given = {
            "groups": range(count) if self.groups is None else self.groups,
            "coefficients": [1.0] * count if self.coefficients is None else self.coefficients,
            "columns": [None] * count if self.columns is None else self.columns,
        }
        for name, value in given.items():
            object.__setattr__(self, name, tuple(value))
            check_shape(name, np.array(value, object), count)
        if set(self.groups) != set(range(self.num_weights)):
            raise ValueError(
                f"groups: expected all numbers from 0 to {self.num_weights - 1} and no others, got "
                f"{self.groups}"
            )
        check_finite("coefficients", np.array(self.coefficients, np.float64))
        for column in self.columns:
            if column is not None and (not isinstance(column, int | np.integer) or column < 0):
                raise ValueError(f"columns: expected None or a feature's number, got {column!r}")

    @property
    def num_weights(self) -> int:
        return len(set(self.groups))

    @property
    def largest(self) -> int:
        """Return the number of labels of the largest clique, 0 without cliques."""
        return max([0, *map(len, self.cliques)])

    @property
    def couples(self) -> np.ndarray:
        """Return for each weight whether it belongs to cliques of two or more labels, (weights,)."""
        couples = np.zeros(self.num_weights, np.bool_)
        couples[[g for g, clique in zip(self.groups, self.cliques, strict=True) if len(clique) > 1]] = True
        return couples

    @classmethod
    def of(
        cls,
        num_labels: int,
        cliques: TiedCliques | Sequence[Sequence[int]] | str,
        groups: Sequence[int] | None = None,
        columns: Sequence[int | None] | None = None,
    ) -> TiedCliques:
        """Build tied cliques from ``"pairwise"`` (every pair of labels), or from sets of labels.

        Raises:
            ValueError: ``cliques`` is another string; ``groups`` or ``columns`` are given together with tied
                cliques; tied cliques have another number of labels; the class refuses the cliques.
        """
        check_count("num_labels", num_labels)
        if isinstance(cliques, TiedCliques):
            if cliques.num_labels != num_labels or groups is not None or columns is not None:
                raise ValueError(
                    f"cliques: expected tied cliques of {num_labels} labels without further groups or "
                    f"columns, got {cliques.num_labels} labels, groups {groups}, columns {columns}"
                )
            return cliques
        if isinstance(cliques, str):
            if cliques != "pairwise":
                raise ValueError(f"cliques: expected 'pairwise' or sets of labels, got {cliques!r}")
            cliques = tuple(combinations(range(num_labels), 2))
        given = {"groups": groups, "columns": columns}
        chosen: dict[str, Any] = {name: tuple(value) for name, value in given.items() if value is not None}
        return cls(num_labels, tuple(map(tuple, cliques)), **chosen)

    @classmethod
    def from_markov_logic(cls, clauses: Sequence[Clause], num_atoms: int) -> TiedCliques:
        """Convert a Markov logic network to cliques, with a weight for each formula (Remark 2.2).

        Scores equal those of :func:`~lmbm_torch.energies.from_markov_logic` up to a constant, which
        cancels in the distribution.

        Raises:
            ValueError: formula numbers have gaps, or a formula is always true.
        """
        num_formulas = 1 + max((clause.formula for clause in clauses), default=-1)
        check_count("clauses: formulas", num_formulas)
        energy = from_markov_logic(
            clauses, torch.eye(num_formulas, dtype=torch.float64, device="cpu"), num_atoms
        )
        says_nothing = ~(energy.weight != 0).any(1)
        if bool(says_nothing.any()):
            which = says_nothing.nonzero()[:, 0].tolist()
            raise ValueError(f"clauses: expected formulas that can be false, got {which}, always true")
        formula, clique = energy.weight.nonzero(as_tuple=True)
        return cls(
            num_labels=num_atoms,
            cliques=tuple(energy.cliques[c] for c in clique.tolist()),
            groups=tuple(formula.tolist()),
            coefficients=tuple(energy.weight[formula, clique].tolist()),
        )
