"""Problems and answers of searches and sums, importable without numba.

Importing numba takes as long as a small machine's whole computation.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from torch import Tensor

# Largest |field|: the product of the odds of two units neither overflows nor underflows in float64.
_MOST_FIELD = 300.0
# Units multiplied along a vector.
TILE = 64


class SearchProblem(NamedTuple):
    """Σ_t ℓ(s_t z_t) over spins; labels are counted by position, tensors are float64 or int64.

    An axis ``batch | 1`` has length 1 if shared by all examples. The compiled search takes NumPy arrays under
    the same names.

    Args:
        fields: (batch, labels), z without parents.
        children: (batch | 1, labels, labels), row j: effect of parent j's spin on the children's fields.
        clique_parents: (cliques, most parents), padded with the number of labels.
        clique_child: (cliques,).
        clique_weight: (batch | 1, cliques).
        known: (batch | 1, labels), given spins; 0 for a free label.
        margin: γ.
        temperature: T.
        round_off: improvements below a share ``round_off`` of the largest loss of a label do not count.
        ceiling: labellings with a loss of at least ``ceiling`` are pruned; infinite for an exact search.
        node_limit: nodes after which the search ends, once ``top_k`` labellings are complete.
        top_k: number of labellings to keep.
    """

    fields: Tensor
    children: Tensor
    clique_parents: Tensor
    clique_child: Tensor
    clique_weight: Tensor
    known: Tensor
    margin: float
    temperature: float
    round_off: float
    ceiling: float
    node_limit: int
    top_k: int


class Found(NamedTuple):
    """The labellings of least loss, best first; among ties the first in depth-first order.

    Args:
        labels: (batch, top_k, labels) in {0, 1}, labels in the order of the search.
        losses: (batch, top_k); infinite where there are fewer than ``top_k`` labellings.
        bound: (batch,), no labelling outside of the list has a lower loss; the last of ``losses``, or less if
            the ceiling or the node limit ended the search early.
        nodes: (batch,), partial labellings with a computed bound.
        limited: (batch,), whether the node limit ended the search.
    """

    labels: Tensor
    losses: Tensor
    bound: Tensor
    nodes: Tensor
    limited: Tensor


class UndirectedProblem(NamedTuple):
    """The problem of a search; arrays are float64, an axis ``batch | 1`` has length 1 if shared.

    Args:
        fields: (batch, labels).
        couplings: (batch | 1, labels, labels), J, symmetric with a zero diagonal.
        known: (batch | 1, labels), given spins; 0 for a free label.
        round_off: losses that differ by less than a share ``round_off`` of a label's largest loss are tied.
        node_limit: number of computed bounds after which a search ends.
    """

    fields: np.ndarray
    couplings: np.ndarray
    known: np.ndarray
    round_off: float
    node_limit: int


class Graph(NamedTuple):
    """Tables over several variables, as flat arrays.

    Args:
        states: (variables,), numbers of states.
        at: (variables + 1,), the first entry of each variable's unary.
        first: (tables + 1,), the first entry of each table.
        place: (tables + 1,), the first place of each table; a place is a variable of a table.
        variable: (places,), the variable of each place.
        inner: (places,), entries between neighbouring states of the place.
        slot: (places + 1,), the first number of each place's message.
        start: (variables + 1,), the first entry of each variable in ``around``.
        around: (places,), the places of each variable.
        table: (places,), the table of each place.
    """

    states: np.ndarray
    at: np.ndarray
    first: np.ndarray
    place: np.ndarray
    variable: np.ndarray
    inner: np.ndarray
    slot: np.ndarray
    start: np.ndarray
    around: np.ndarray
    table: np.ndarray


class Network(NamedTuple):
    """A belief network of labels in the model's ordering, in log-odds: P(y_k = 1 | y_<k) = σ(log-odds of k).

    In a sample label k is 1 if the log-odds are above the label's logistic noise.

    Args:
        log_odds: (batch, labels), of each label with all earlier labels 0.
        start: (labels + 1,), label j has the edges ``start[j]`` up to ``start[j + 1]``.
        child: (edges,), child of each edge, behind the parent.
        step: (edges,), increase of the child's log-odds by a parent 1.
    """

    log_odds: np.ndarray
    start: np.ndarray
    child: np.ndarray
    step: np.ndarray


class Chances(NamedTuple):
    """Chances of labels to be 1, given the earlier labels of each sample.

    Args:
        mean: (batch, labels), over the samples.
        variance: (batch, labels), over the samples.
    """

    mean: np.ndarray
    variance: np.ndarray


class Answers(NamedTuple):
    """Labellings of largest mean F1.

    Args:
        labels: (batch, labels), whether each label is in the answer.
        mean: (batch,), the answer's mean F1 over the samples.
        variance: (batch,), variance of the F1.
    """

    labels: np.ndarray
    mean: np.ndarray
    variance: np.ndarray


def most_field(hidden: Tensor, coupling: Tensor) -> float:
    """Return an upper bound on |hidden + labelsᵀ coupling|."""
    return float((hidden.detach().abs() + coupling.detach().abs().sum(0)).max())


def suits(hidden: Tensor, coupling: Tensor) -> bool:
    """Return whether the units fill vectors, and no labelling gives fields with an overflow of odds."""
    return hidden.shape[1] >= TILE and most_field(hidden, coupling) <= _MOST_FIELD
