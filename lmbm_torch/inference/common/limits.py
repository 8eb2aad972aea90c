"""Sizes at which the choice of a routine changes, in one record for all of inference."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = []


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of label counts, widths, search nodes and probabilities; "labels" are unknown labels.

    ``scripts/bench/cutoffs.py`` times each routine and the next one: ``results/bench/cutoffs.csv``.
    """

    # Labels: beyond this number nothing is enumerated; 2^22 labellings take seconds of CPU time
    # (scripts/bench/label_sums.py).
    enumerable: int = 22
    # Labels: enumeration of a Boltzmann machine's scores by the compiled kernel, with couplings that all
    # examples share, on the CPU, no label known; branch and bound beyond (scripts/bench/cutoffs.py).
    kernel: int = 16
    # Labels: enumeration of a Boltzmann machine's scores without the compiled kernel
    # (scripts/bench/cutoffs.py).
    enumeration: int = 10
    # Labels: enumeration of hinge losses (scripts/bench/cutoffs.py).
    hinge: int = 8
    # Labels: enumeration of scores and losses where branch and bound is not compiled
    # (scripts/bench/cutoffs.py).
    without_numba: int = 18
    # Labels: enumeration of a restricted Boltzmann machine with the hidden units summed out; dual
    # decomposition beyond, which may leave a duality gap (scripts/bench/cutoffs.py).
    hidden: int = 16
    # Labels, or units of the smaller side of a restricted Boltzmann machine: enumeration for marginals;
    # samples, mean field or belief propagation beyond (scripts/bench/cutoffs.py).
    marginals: int = 20
    # Labels: enumeration for marginals of Boltzmann machines on the CPU whose examples share their couplings
    # (scripts/bench/label_sums.py).
    shared: int = 22
    # Labels: enumeration for sums of a model with a graph of small treewidth; a junction tree beyond
    # (scripts/bench/cutoffs.py).
    elimination: int = 12
    # Labels: only branch and bound for the best labelling; beyond, a junction tree for graphs of small
    # treewidth, and independent parts one by one (scripts/bench/cutoffs.py).
    narrow: int = 24
    # Labels: branch and bound for a Boltzmann machine's best labelling without a limit of nodes; beyond, the
    # semidefinite search takes the examples without a quick proof (scripts/bench/cutoffs.py).
    dense: int = 40
    # Labels: enumeration of a belief network for an expected measure; the likely labellings beyond
    # (scripts/bench/expected_f1.py).
    expected: int = 14
    # Labels of two values: marginals of a sequential energy sum all labellings, in less CPU time than the
    # search for the likely labellings (scripts/bench/chain_marginals.py).
    listed: int = 8
    # Labels: comparison of every two labellings for the expected Jaccard index, in 4^labels products; beyond,
    # only some candidates are compared (scripts/bench/expected_f1.py).
    compared: int = 10
    # Units of the smaller side, or labels: the likelihood is summed exactly in each iteration of a training
    # or a calibration; at 10 labels some 0.3 ms for each instance (scripts/bench/conditional_rbm.py).
    likelihood: int = 10
    # Labels: the same limit if instances share their couplings (scripts/bench/label_sums.py).
    shared_likelihood: int = 18
    # Labels: enumeration without a kernel while a user waits after a click; 20 labels take 1.2 s
    # (scripts/bench/label_sums.py).
    click: int = 14
    # Width of a graph that counts as narrow: a junction tree holds 2^(width + 1) numbers for each label and
    # example (scripts/bench/cutoffs.py).
    treewidth: int = 8
    # Bytes of the tables of a graph of many states: up to this size elimination, some 5 ms of CPU time;
    # beyond, dual ascent is tried first (scripts/bench/uai2014.py).
    graph_bytes: int = 2**20
    # Nodes of a graph's search with dual ascent, some 0.5 ms of CPU time each for 400 labels
    # (scripts/bench/uai2014.py).
    graph_nodes: int = 2000
    # Bytes of an example's tables for linear programmes with cycle inequalities, some seconds of CPU time at
    # most (scripts/bench/uai2014.py).
    cut_bytes: int = 80_000
    # Bytes of the tables of a junction tree; the examples are summed together, and only a few tables are in
    # memory at a time (scripts/bench/log_partition_bounds.py).
    table_bytes: int = 2**32
    # Nodes of an example's search of a directed model: a tenth of a second to a second of CPU time
    # (scripts/bench/decoding.py). Without a limit a search over hundreds of labels can last for hours.
    network_nodes: int = 100_000
    # Nodes of an example's search of a Boltzmann machine: some 5 ms of CPU time at 100 labels
    # (scripts/bench/undirected_decoding.py).
    machine_nodes: int = 40_000
    # Nodes of a first search of all labels; then the examples without a proof are split into independent
    # parts (scripts/bench/decoding.py).
    soon_nodes: int = 1000
    # Nodes of branch and bound that take as long as one node of the semidefinite search or of an integer
    # programme (scripts/bench/dense_map.py).
    nodes_to_one: int = 1000
    # Nodes, or parts of the space of labellings, that a search under rules decodes for each example
    # (scripts/bench/rules.py).
    parts: int = 1000
    # Draws of each example that estimate the marginals of a directed model (scripts/bench/many_labels.py).
    samples: int = 1000
    # Labellings of a directed model, the most probable, that a search looks for; fewer above 100 labels
    # (scripts/bench/expected_f1.py).
    labellings: int = 10_000
    # Labellings, the most probable, for each member and instance of an estimator; fewer above 100 labels. If
    # the probability is spread evenly, many more would not cover it either (scripts/bench/expected_f1.py).
    member_labellings: int = 1000
    # Labellings that each member of a mixture proposes at most (scripts/bench/ensemble_orders.py).
    candidates: int = 64
    # Share of the probability that the likely labellings may leave out for marginals, whose error is at most
    # this share (scripts/bench/expected_f1.py).
    mass_left: float = 0.01


LIMITS = Limits()
