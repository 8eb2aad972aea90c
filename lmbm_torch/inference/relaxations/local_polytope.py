"""Local polytope: the linear programme that decoders of Boltzmann machines solve, relaxed or with integers.

With spins s_i = 2 y_i − 1, the parity of a clique c (the product of the spins) is a polynomial of the labels,

    Π_{i ∈ c} s_i = Σ_{S ⊆ c} (−1)^{|c| − |S|} 2^{|S|} Π_{i ∈ S} y_i

The variables are: y_i in [0, 1] for each label; a product z_S for each set S of two or more labels in a term
of the parities (:class:`Parities`); for hinge losses, a loss ξ_i ≥ 0 for each label. The constraints
z_S ≥ 0, z_S ≤ y_i for each i in S, and Σ_i y_i − z_S ≤ |S| − 1 make z_S the product if y is integer. For
fractional y and pairs S, the constraints say that y_i, y_j and z_ij are marginals of one distribution; for
larger S they are weaker, and change if labels are negated. If z_S has a positive coefficient, a larger z_S
is always better, and z_S ≤ y_i suffices; if negative, the other two constraints suffice. Only necessary
constraints are set up, which halves the time for scores of pairs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, islice
from typing import NamedTuple

import numpy as np
from torch import Tensor

from lmbm_torch.constraints import Constraints
from lmbm_torch.energies import CliqueEnergy, PairwiseEnergy
from lmbm_torch.inference.trees.log_tables import Machine

# Largest number of labels in a clique: a parity needs a product for each subset, 4,083 for 12 labels.
MOST_LABELS = 12


@dataclass(frozen=True)
class Parities:
    """Distinct cliques of a batch, and the terms of the cliques' parities.

    The first cliques are the single labels, followed by larger cliques, each set of labels once.

    Args:
        num_labels: K.
        products: (products, labels of the largest clique), the labels of each product of two or more, filled
            up with −1; products of two labels come first.
        member, of_clique: for each pair of a clique and a label in the clique, the label and the clique.
        sign: for each clique, the constant term of the parity, 1 or −1.
        clique, variable, factor: for each other term of a parity, the clique, the variable (a label or, from
            ``num_labels`` on, a product) and the coefficient.
        place: for each weight of a clique energy, the clique; None for a pairwise energy.
    """

    num_labels: int
    products: np.ndarray
    member: np.ndarray
    of_clique: np.ndarray
    sign: np.ndarray
    clique: np.ndarray
    variable: np.ndarray
    factor: np.ndarray
    place: np.ndarray | None

    @classmethod
    def of(cls, energy: Machine) -> Parities:
        """Return the cliques and parities of a batch, with every pair that is coupled in some example.

        Raises:
            ValueError: a clique of more than ``MOST_LABELS`` labels.
        """
        labels = np.arange(energy.num_labels)[:, None]
        if isinstance(energy, PairwiseEnergy):
            coupled = (energy.pairwise != 0).reshape(-1, *energy.pairwise.shape[-2:]).any(0)
            groups, place = [labels, coupled.triu(1).nonzero().numpy()], None
        else:
            groups, place = _groups(energy, labels)
        sizes = np.cumsum([0, *map(len, groups)])
        cliques = [begin + np.arange(len(group)) for begin, group in zip(sizes, groups, strict=False)]
        orders = [group.shape[1] for group in groups]
        # For each number of labels in a product: cliques, the labels of the products, and coefficient.
        terms: dict[int, list[tuple[np.ndarray, np.ndarray, float]]] = {}
        for own, group, order in zip(cliques, groups, orders, strict=True):
            for size in range(1, order + 1):
                factor = (-1.0) ** (order - size) * 2.0**size
                for columns in combinations(range(order), size):
                    terms.setdefault(size, []).append((own, group[:, columns], factor))
        variables, products, count = [], [], energy.num_labels
        for size in sorted(terms):
            rows = np.concatenate([rows for _, rows, _ in terms[size]])
            if size == 1:
                variables.append(rows[:, 0])
                continue
            distinct, index = np.unique(rows, axis=0, return_inverse=True)
            variables.append(count + index.ravel())
            products.append(np.pad(distinct, ((0, 0), (0, max(orders) - size)), constant_values=-1))
            count += len(distinct)
        every = [term for size in sorted(terms) for term in terms[size]]
        return cls(
            num_labels=energy.num_labels,
            products=np.concatenate([np.zeros((0, max(orders)), dtype=np.int64), *products]),
            member=np.concatenate([group.ravel() for group in groups]),
            of_clique=np.concatenate([np.repeat(*each) for each in zip(cliques, orders, strict=True)]),
            sign=np.repeat([(-1.0) ** order for order in orders], [*map(len, groups)]),
            clique=np.concatenate([own for own, _, _ in every]),
            variable=np.concatenate(variables),
            factor=np.repeat([factor for *_, factor in every], [len(own) for own, *_ in every]),
            place=place,
        )

    def weights(self, energy: Machine) -> Iterator[np.ndarray]:
        """Yield, for each example, the weights of all cliques."""
        if isinstance(energy, PairwiseEnergy):
            first, second = self.products.T[:2]
            couplings = energy.pairwise.numpy()[..., first, second]
            for unary, pairs in zip(
                energy.unary.numpy(), np.broadcast_to(couplings, (energy.batch_size, len(first))), strict=True
            ):
                yield np.concatenate([unary, pairs])
            return
        assert self.place is not None
        for weight in energy.weight.expand(energy.batch_size, -1).numpy():
            yield np.bincount(self.place, weight, minlength=len(self.sign))

    @property
    def num_variables(self) -> int:
        """Return the number of variables, which are labels and products."""
        return self.num_labels + len(self.products)

    def coefficients(self, weights: np.ndarray) -> np.ndarray:
        """Return the coefficient of each variable in the score, (variables,), given the cliques' weights."""
        return np.bincount(self.variable, self.factor * weights[self.clique], minlength=self.num_variables)


def _groups(energy: CliqueEnergy, labels: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
    """Return the distinct cliques grouped by size, and for each of the energy's cliques its number there."""
    orders = np.array([len(clique) for clique in energy.cliques], dtype=np.int64)
    if (orders > MOST_LABELS).any():
        raise ValueError(f"cliques: expected at most {MOST_LABELS} labels in each, got {orders.max()}")
    groups, place, count = [labels], np.zeros(len(orders), dtype=np.int64), len(labels)
    for order in np.unique(orders):
        (own,) = (orders == order).nonzero()
        rows = np.sort([energy.cliques[index] for index in own], axis=1)
        if order == 1:
            place[own] = rows[:, 0]
            continue
        distinct, index = np.unique(rows, axis=0, return_inverse=True)
        groups.append(distinct)
        place[own] = count + index.ravel()
        count += len(distinct)
    return groups, place


# Amount by which upper bounds of losses are raised: HiGHS drops coefficients below 1e-9, hundreds in a row.
ROUND_OFF = 1e-6


class Programme(NamedTuple):
    """Linear programme of an example: minimise cost·x + offset with matrix x ≤ upper and least ≤ x ≤ most.

    Args:
        values: the nonzero entries of the matrix, column by column.
        scale: the largest weight, by which all weights were divided: a solver's tolerances mean the
            same for all energies; an objective times ``scale`` is in the original unit.
    """

    cost: np.ndarray
    values: np.ndarray
    upper: np.ndarray
    least: np.ndarray
    most: np.ndarray
    offset: float
    scale: float

    def in_full(self, bound: float) -> float:
        """Convert a lower bound of cost·x to the original scale of the weights, with the offset."""
        return self.scale * (self.offset + bound)

    def least_within_bounds(self, cost: np.ndarray) -> float:
        """Return the least cost·x for least ≤ x ≤ most, ignoring all other constraints."""
        return float(cost @ np.where(cost > 0, self.least, self.most))


@dataclass(frozen=True)
class Margins:
    """Coefficients of the margins m_i = Σ_{c ∋ i} weight_c Π_{j ∈ c} s_j, without constant terms.

    Args:
        label, variable: for each term of a margin, the label that has the margin, and the variable.
        term, clique, factor: for each pair of a parity's term and a label in the parity's clique, the number
            of the margin's term, the clique, and the coefficient in the parity.
    """

    label: np.ndarray
    variable: np.ndarray
    term: np.ndarray
    clique: np.ndarray
    factor: np.ndarray

    @classmethod
    def of(cls, parities: Parities) -> Margins:
        """Return the terms of all margins, from the parities of the cliques."""
        # A clique's labels are neighbours in ``member``, so begin and number of labels find them.
        counts = np.bincount(parities.of_clique)
        begins, sizes = counts.cumsum() - counts, counts[parities.clique]
        within = np.arange(sizes.sum()) - np.repeat(sizes.cumsum() - sizes, sizes)
        label = parities.member[np.repeat(begins[parities.clique], sizes) + within]
        variable = np.repeat(parities.variable, sizes)
        distinct, term = np.unique(label * parities.num_variables + variable, return_inverse=True)
        of_label, of_variable = np.divmod(distinct, parities.num_variables)
        clique, factor = np.repeat(parities.clique, sizes), np.repeat(parities.factor, sizes)
        return cls(of_label, of_variable, term, clique, factor)

    def coefficients(self, weights: np.ndarray) -> np.ndarray:
        """Return the coefficient of each term, given the cliques' weights."""
        return np.bincount(self.term, self.factor * weights[self.clique], minlength=len(self.label))


@dataclass(frozen=True)
class LocalPolytope:
    """Variables and constraints that all examples of a batch share, and where weights enter.

    Args:
        parities: the products, and the terms of the cliques' parities.
        start: for each column of the matrix, the index of the first entry in ``rows``.
        rows: the row of each entry of the matrix, column by column.
        by_column: the permutation of entries from the order of creation to the order by columns.
        values: the entries that do not depend on weights, in the order of creation; a hinge's entries follow.
        upper: the right-hand sides of the constraints without weights, which come first.
        num_bounds: the number of constraints on one variable, which come first of all.
        margins: the terms of the labels' margins for hinge losses, which have a variable ξ for each label;
            else None.
    """

    parities: Parities
    start: np.ndarray
    rows: np.ndarray
    by_column: np.ndarray
    values: np.ndarray
    upper: np.ndarray
    num_bounds: int
    margins: Margins | None

    @classmethod
    def of(cls, energy: Machine, is_hinge: bool, constraints: Constraints | None = None) -> LocalPolytope:
        """Build the variables and constraints of a batch.

        Args:
            energy: a Boltzmann machine in float64 on the CPU.
            is_hinge: whether the objective is the hinge loss, else the score.
            constraints: rules, each a further constraint on the labels.

        Raises:
            ValueError: see :meth:`Parities.of`.
        """
        parities, labels = Parities.of(energy), energy.num_labels
        margins = Margins.of(parities) if is_hinge else None
        up, down = _directions(parities, margins, energy)
        order = (parities.products >= 0).sum(1)
        # For each label of each product: the label's place in the product, and the number of the product.
        place, product = (parities.products.T >= 0).nonzero()
        factor, of_up, of_down = parities.products.T[place, product], up[product], down[product]
        label, z = np.arange(labels), labels + np.arange(len(order))
        loss = parities.num_variables + np.arange(labels if is_hinge else 0)
        (falling,) = down.nonzero()
        bound, ones = np.arange(of_up.sum()), np.ones(parities.num_variables)
        below = np.searchsorted(falling, product[of_down])
        # Each block of constraints: entries as (row, variable, coefficient), and the right-hand sides.
        blocks = [
            ([(label, label, -1)], 0 * ones[label]),
            ([(label, label, 1)], ones[label]),
            ([(np.arange(len(loss)), loss, -1)], np.zeros(len(loss))),
            ([(np.arange(len(falling)), z[falling], -1)], np.zeros(len(falling))),
            ([(bound, z[product[of_up]], 1), (bound, factor[of_up], -1)], np.zeros(len(bound))),
            ([(below, factor[of_down], 1), (np.arange(len(falling)), z[falling], -1)], order[falling] - 1.0),
        ]
        begins = np.cumsum([0, *(len(upper) for _, upper in blocks)])
        terms = [
            (begin + row, column, np.full(len(row), float(value)))
            for begin, (own, _) in zip(begins, blocks, strict=False)
            for row, column, value in own
        ]
        upper = np.concatenate([upper for _, upper in blocks])
        if constraints is not None:
            rule, of_rule = np.nonzero(constraints.matrix)
            terms.append((len(upper) + rule, of_rule, constraints.matrix[rule, of_rule]))
            upper = np.concatenate([upper, constraints.bounds])
        rows, columns, values = (np.concatenate(each) for each in zip(*terms, strict=True))
        if margins is not None:
            rows = np.concatenate([rows, len(upper) + label, len(upper) + margins.label])
            columns = np.concatenate([columns, loss, margins.variable])
        by_column = np.lexsort((rows, columns))
        counts = np.bincount(columns, minlength=parities.num_variables + len(loss))
        return cls(
            parities=parities,
            start=np.concatenate([[0], counts.cumsum()]),
            rows=rows[by_column],
            by_column=by_column,
            values=values,
            upper=upper,
            num_bounds=int(begins[4]),
            margins=margins,
        )

    @property
    def num_labels(self) -> int:
        """Return K."""
        return self.parities.num_labels

    @property
    def pairs(self) -> np.ndarray:
        """Return the labels of the products of two labels, which come first: (2, number of pairs)."""
        products = self.parities.products
        return products[(products >= 0).sum(1) == 2, :2].T.reshape(2, -1)

    @property
    def shape(self) -> tuple[int, int]:
        """Return the numbers of constraints and variables."""
        num_losses = 0 if self.margins is None else self.num_labels
        return len(self.upper) + num_losses, len(self.start) - 1

    @property
    def columns(self) -> np.ndarray:
        """Return the variable of each entry of ``rows``."""
        return np.repeat(np.arange(len(self.start) - 1), np.diff(self.start))

    def programme(self, weights: np.ndarray, margin: float | None = None) -> Programme:
        """Return the programme of an example: −score / scale, or Σ_i ξ_i / scale with ξ_i ≥ margin − m_i.

        Args:
            weights: the weights of the example's cliques, from :meth:`Parities.weights`.
            margin: γ of the hinge loss; None for scores.
        """
        parities, largest = self.parities, float(np.abs(weights).max())
        if self.margins is None or margin is None:
            scale = largest or 1.0
            cost = -parities.coefficients(weights) / scale
            offset = -float(parities.sign @ weights) / scale
            least, most = np.zeros(len(cost)), np.ones(len(cost))
            return Programme(cost, self.values[self.by_column], self.upper, least, most, offset, scale)
        scale = max(largest, margin)
        weights, margin = weights / scale, margin / scale
        own = self.margins.coefficients(weights)
        values = np.concatenate([self.values, -np.ones(self.num_labels), -own])
        cost = np.concatenate([np.zeros(parities.num_variables), np.ones(self.num_labels)])
        labels, of_clique = parities.member, parities.of_clique
        constant = np.bincount(labels, (parities.sign * weights)[of_clique])
        # Bound ξ_i by the largest possible loss, with room for tiny coefficients that a solver drops.
        worst = margin + np.bincount(labels, np.abs(weights)[of_clique]) + ROUND_OFF
        most = np.concatenate([np.ones(parities.num_variables), worst])
        upper = np.concatenate([self.upper, constant - margin])
        return Programme(cost, values[self.by_column], upper, np.zeros(len(cost)), most, 0.0, scale)

    def given(self, programme: Programme, known: np.ndarray) -> Programme:
        """Return the programme with the known labels fixed: ``known`` (labels,) is 0, 1, or NaN if free."""
        fixed = np.flatnonzero(~np.isnan(known))
        values = known[fixed]
        least, most, upper = programme.least.copy(), programme.most.copy(), programme.upper.copy()
        least[fixed] = most[fixed] = values
        upper[fixed], upper[self.num_labels + fixed] = -values, values
        return programme._replace(upper=upper, least=least, most=most)


def _directions(
    parities: Parities, margins: Margins | None, energy: Machine
) -> tuple[np.ndarray, np.ndarray]:
    """Return for each product whether larger values help some example, and whether smaller values do."""
    up, down = np.zeros((2, len(parities.products)), dtype=bool)
    is_shared = energy.pairwise.ndim == 2 if isinstance(energy, PairwiseEnergy) else energy.weight.ndim == 1
    for weights in islice(parities.weights(energy), 1 if is_shared else None):
        if margins is None:
            values, variable = parities.coefficients(weights), np.arange(parities.num_variables)
        else:
            values, variable = margins.coefficients(weights), margins.variable
        is_product = variable >= parities.num_labels
        product = variable[is_product] - parities.num_labels
        up[product[values[is_product] > 0]] = True
        down[product[values[is_product] < 0]] = True
    # A product without weight gets all constraints: solvers need bounded variables.
    return up | ~down, down | ~up


def hinge_loss(energy: Machine, labels: Tensor, margin: float) -> Tensor:
    """Return Σ_i [margin − m_i]_+."""
    return (margin - energy.local_margins(labels)).clamp(min=0).sum(-1)
