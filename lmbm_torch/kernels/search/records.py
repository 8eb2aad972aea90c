"""Problems and answers of searches and sums, importable without numba.

Importing numba takes as long as a small machine's whole computation.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from torch import Tensor

# Largest |field| for which the product of the odds of two units neither overflows nor underflows in float64.
_MOST_FIELD = 300.0
# Number of units whose odds are multiplied elementwise, as a vector.
TILE = 64


class SearchProblem(NamedTuple):
    """The problem min Σ_t ℓ(s_t z_t) over spins s of a directed model; tensors are float64 or int64.

    Labels are numbered by their position in the search. An axis ``batch | 1`` has length 1 if all examples
    share the values. The compiled search takes NumPy arrays under the same names.

    Args:
        fields: (batch, labels), fields z without the effects of parents.
        children: (batch | 1, labels, labels), row j: effects of label j's spin on the children's fields.
        clique_parents: (cliques, largest number of parents), padded with the number of labels.
        clique_child: (cliques,), the child of each clique.
        clique_weight: (batch | 1, cliques), the weight of each clique.
        known: (batch | 1, labels), known spins; 0 for a free label.
        margin: the margin γ of the loss ℓ.
        temperature: the temperature T of the loss ℓ.
        round_off: improvements below this share of the largest loss of a label do not count.
        ceiling: labellings with a loss of at least ``ceiling`` are pruned; infinite for an exact search.
        node_limit: number of nodes after which the search ends, if ``top_k`` labellings are known.
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
    """The labellings of least loss, best first; equal losses are in depth-first order.

    Args:
        labels: (batch, top_k, labels) in {0, 1}, with labels in the order of the search.
        losses: (batch, top_k); infinite if there are fewer than ``top_k`` labellings.
        bound: (batch,), a lower bound on the loss of all labellings outside of the list: the last of
            ``losses``, or less if the ceiling or the node limit ended the search early.
        nodes: (batch,), number of partial labellings whose bound was computed.
        limited: (batch,), whether the node limit ended the search.
    """

    labels: Tensor
    losses: Tensor
    bound: Tensor
    nodes: Tensor
    limited: Tensor


class UndirectedProblem(NamedTuple):
    """The search problem of a Boltzmann machine; arrays are float64, an axis ``batch | 1`` may be shared.

    Args:
        fields: (batch, labels), fields without couplings.
        couplings: (batch | 1, labels, labels), J, symmetric with a zero diagonal.
        known: (batch | 1, labels), known spins; 0 for a free label.
        round_off: losses that differ by less than this share of a label's largest loss count as equal.
        node_limit: number of nodes (computed bounds) after which a search ends.
    """

    fields: np.ndarray
    couplings: np.ndarray
    known: np.ndarray
    round_off: float
    node_limit: int


class Graph(NamedTuple):
    """A factor graph in flat arrays: tables (factors) over several variables.

    Args:
        states: (variables,), the number of states of each variable.
        at: (variables + 1,), the first entry of the unary log-potentials of each variable.
        first: (tables + 1,), the first entry of each table.
        place: (tables + 1,), the first place of each table; a place is a variable of a table.
        variable: (places,), the variable of each place.
        inner: (places,), the distance between entries of a table for neighbouring states of the place.
        slot: (places + 1,), the first entry of the message of each place.
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
    """A belief network in log-odds: P(y_k = 1 | y_<k) = σ(log-odds of label k), in the order of the model.

    In a sample, label k is 1 if the log-odds are above the logistic noise of the label.

    Args:
        log_odds: (batch, labels), log-odds of each label if all earlier labels are 0.
        start: (labels + 1,), label j has the edges from ``start[j]`` up to ``start[j + 1]``.
        child: (edges,), the child of each edge, which is later than the parent.
        step: (edges,), increase of the log-odds of the child if the parent is 1.
    """

    log_odds: np.ndarray
    start: np.ndarray
    child: np.ndarray
    step: np.ndarray


class Chances(NamedTuple):
    """Conditional probabilities of labels to be 1, given the earlier labels of each sample.

    Args:
        mean, variance: (batch, labels), mean and variance over the samples.
    """

    mean: np.ndarray
    variance: np.ndarray


class Answers(NamedTuple):
    """Labellings with the largest mean F1 over samples.

    Args:
        labels: (batch, labels), whether each label is 1 in the labelling.
        mean, variance: (batch,), mean and variance of the labelling's F1 over the samples.
    """

    labels: np.ndarray
    mean: np.ndarray
    variance: np.ndarray


def most_field(hidden: Tensor, coupling: Tensor) -> float:
    """Return an upper bound on |hidden + labelsᵀ coupling|."""
    return float((hidden.detach().abs() + coupling.detach().abs().sum(0)).max())


def suits(hidden: Tensor, coupling: Tensor) -> bool:
    """Return whether there are enough units to fill vectors, and odds cannot overflow for any labelling."""
    return hidden.shape[1] >= TILE and most_field(hidden, coupling) <= _MOST_FIELD
