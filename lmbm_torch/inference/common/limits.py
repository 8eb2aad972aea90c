"""Sizes at which the choice of a routine changes, in one record for all of inference."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = []


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of label counts, widths, search nodes and probabilities; "labels" are unknown labels.

    ``scripts/bench/cutoffs.py`` times each routine against the next one: ``results/bench/cutoffs.csv``.
    """

    # Largest number of labels for any enumeration; 2^22 labellings take seconds of CPU time
    # (scripts/bench/label_sums.py).
    enumerable: int = 22
    # Largest number of labels for which the compiled kernel enumerates a Boltzmann machine's scores (shared
    # couplings, CPU, no label known); branch and bound for more (scripts/bench/cutoffs.py).
    kernel: int = 16
    # Largest number of labels for enumerating a Boltzmann machine's scores without the compiled kernel
    # (scripts/bench/cutoffs.py).
    enumeration: int = 10
    # Largest number of labels for enumerating hinge losses (scripts/bench/cutoffs.py).
    hinge: int = 8
    # Largest number of labels for enumerating scores and losses if branch and bound is not compiled
    # (scripts/bench/cutoffs.py).
    without_numba: int = 18
    # Largest number of labels for enumerating a restricted Boltzmann machine with hidden units summed out;
    # for more, dual decomposition, which may leave a duality gap (scripts/bench/cutoffs.py).
    hidden: int = 16
    # Largest number of labels (units of the smaller side of a restricted Boltzmann machine) for marginals by
    # enumeration; for more, samples, mean field or belief propagation (scripts/bench/cutoffs.py).
    marginals: int = 20
    # Largest number of labels for marginals by enumeration if a Boltzmann machine's examples share their
    # couplings, on the CPU (scripts/bench/label_sums.py).
    shared: int = 22
    # Largest number of labels for sums by enumeration if the graph has small treewidth; for more, a junction
    # tree (scripts/bench/cutoffs.py).
    elimination: int = 12
    # Largest number of labels for which the best labelling is searched only by branch and bound; for more, a
    # junction tree if the treewidth is small, and independent parts separately (scripts/bench/cutoffs.py).
    narrow: int = 24
    # Largest number of labels for which branch and bound without a node limit searches a Boltzmann machine;
    # for more, unproven examples go to the semidefinite search (scripts/bench/cutoffs.py).
    dense: int = 40
    # Largest number of labels for enumerating a belief network for an expected measure; for more, only the
    # likely labellings (scripts/bench/expected_f1.py).
    expected: int = 14
    # Largest number of labels of two values for which marginals of a sequential energy sum all labellings,
    # which is then faster than a search for the likely ones (scripts/bench/chain_marginals.py).
    listed: int = 8
    # Largest number of labels for which the expected Jaccard index compares all pairs of labellings,
    # 4^labels; for more, only some candidates (scripts/bench/expected_f1.py).
    compared: int = 10
    # Largest number of labels, or units of the smaller side, for exact likelihoods in each iteration of
    # training or calibration; 10 labels take some 0.3 ms for each instance
    # (scripts/bench/conditional_rbm.py).
    likelihood: int = 10
    # Largest number of labels for exact likelihoods in training if instances share their couplings
    # (scripts/bench/label_sums.py).
    shared_likelihood: int = 18
    # Largest number of labels to enumerate without a kernel while a user waits; 20 labels take 1.2 s
    # (scripts/bench/label_sums.py).
    click: int = 14
    # Largest width of a graph that counts as narrow: a junction tree holds 2^(width + 1) numbers for each
    # label and example (scripts/bench/cutoffs.py).
    treewidth: int = 8
    # Largest bytes of the tables of a graph of many states for elimination, some 5 ms of CPU time; for more,
    # dual ascent is tried first (scripts/bench/uai2014.py).
    graph_bytes: int = 2**20
    # Default node limit of a graph's search with dual ascent; a node takes some 0.5 ms of CPU time for 400
    # labels (scripts/bench/uai2014.py).
    graph_nodes: int = 2000
    # Largest bytes of an example's tables for linear programmes with cycle inequalities, which take at most
    # some seconds of CPU time (scripts/bench/uai2014.py).
    cut_bytes: int = 80_000
    # Largest bytes of a junction tree's tables; examples are summed together, and only a few tables are in
    # memory at once (scripts/bench/log_partition_bounds.py).
    table_bytes: int = 2**32
    # Default node limit for an example of a directed model: a tenth of a second to a second of CPU time
    # (scripts/bench/decoding.py). Without a limit a search over hundreds of labels can last for hours.
    network_nodes: int = 100_000
    # Default node limit for an example of a Boltzmann machine: some 5 ms of CPU time at 100 labels
    # (scripts/bench/undirected_decoding.py).
    machine_nodes: int = 40_000
    # Node limit of a first search of all labels; examples without a proof are then split into independent
    # parts (scripts/bench/decoding.py).
    soon_nodes: int = 1000
    # Number of nodes of branch and bound that take as long as one node of the semidefinite search or of an
    # integer programme (scripts/bench/dense_map.py).
    nodes_to_one: int = 1000
    # Largest number of nodes, or of parts of the labellings, that a search under rules decodes for each
    # example (scripts/bench/rules.py).
    parts: int = 1000
    # Number of draws for each example to estimate a directed model's marginals
    # (scripts/bench/many_labels.py).
    samples: int = 1000
    # Largest number of likely labellings of a directed model that a search looks for; fewer above 100 labels
    # (scripts/bench/expected_f1.py).
    labellings: int = 10_000
    # Largest number of likely labellings for each member and instance of an estimator; many more would not
    # help if the probability is spread evenly (scripts/bench/expected_f1.py).
    member_labellings: int = 1000
    # Largest number of labellings that each member of a mixture proposes (scripts/bench/ensemble_orders.py).
    candidates: int = 64
    # Largest probability that the likely labellings may leave out for marginals; no marginal's error is
    # larger (scripts/bench/expected_f1.py).
    mass_left: float = 0.01


LIMITS = Limits()
