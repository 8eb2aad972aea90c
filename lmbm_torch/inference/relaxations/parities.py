"""Boltzmann machines as polynomials of {0, 1} labels: which products of labels their cliques' parities hold.

With spins s_i = 2 y_i − 1 a clique's parity is

    Π_{i ∈ c} s_i = Σ_{S ⊆ c} (−1)^{|c| − |S|} 2^{|S|} Π_{i ∈ S} y_i
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from lmbm_torch.energies import CliqueEnergy, PairwiseEnergy
from lmbm_torch.inference.trees.log_tables import Machine

__all__ = ["Parities"]

# Labels of a clique, whose parity has a product for each of its subsets: 4,083 for so many.
MOST_LABELS = 12


@dataclass(frozen=True)
class Parities:
    """The cliques that a batch shares, each set of labels once, and the terms of their parities.

    Args:
        num_labels: K.
        products: (products, order of the largest clique), the labels of each product of two or more, filled
            up with −1; those of two labels come first.
        member: of each pair of a clique and a label in it, the label; ``of_clique`` the clique.
        sign: of each clique the constant term of its parity. Each label comes first, as a clique of its own.
        clique, variable, factor: of each other term of a parity, where a variable is a label or, from
            ``num_labels`` on, a product.
        place: of each of a clique energy's weights, the clique; None of a pairwise energy.
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
        """Those of a batch; pairs are coupled where they are for some example.

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
        # By the number of labels in a product: the cliques, the products' labels and their factors.
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
        """Each example's weight of every clique."""
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
        """Labels and products."""
        return self.num_labels + len(self.products)

    def coefficients(self, weights: np.ndarray) -> np.ndarray:
        """Those of each variable in the score, (variables,)."""
        return np.bincount(self.variable, self.factor * weights[self.clique], minlength=self.num_variables)


def _groups(energy: CliqueEnergy, labels: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
    """The cliques by their number of labels, and the place of each of the energy's among them."""
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
