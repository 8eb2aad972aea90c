"""The numbers of labels at which the choice of a routine changes."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CUTOFFS", "Cutoffs"]


@dataclass(frozen=True)
class Cutoffs:
    """The most labels, of those that are not known, for which a routine is chosen.

    ``scripts/bench/cutoffs.py`` times each routine beside the next one: ``results/bench/cutoffs.csv``.

    Args:
        kernel: enumeration of a Boltzmann machine's scores by the compiled kernel, for couplings that the
            examples share, on the CPU, nothing known; beyond it branch and bound.
        enumeration: the same without that kernel.
        hinge: enumeration of hinge losses.
        without_numba: the same where branch and bound is not compiled.
        hidden: enumeration of the labels of a restricted Boltzmann machine, its hidden units summed out;
            beyond it dual decomposition, which may leave a gap.
        marginals: enumeration for marginals, of a restricted Boltzmann machine over its smaller side; beyond
            it samples, mean field or belief propagation.
        shared: sums over all labellings for the marginals of Boltzmann machines on the CPU whose examples
            share their couplings, and much of the work.
        elimination: enumeration, for marginals and log partitions, of a Boltzmann machine or directed model
            whose graph has an elimination order no wider than ``treewidth``; beyond it a junction tree.
        narrow: branch and bound for the best labelling of a Boltzmann machine with such an order; beyond it,
            a junction tree also decides what the search of such a directed model leaves open.
        dense: branch and bound for it without a limit of nodes; beyond it the semidefinite search takes what
            branch and bound has not proven soon.
        treewidth: of a junction tree, which holds 2^(treewidth + 1) numbers for each label and example.
    """

    kernel: int = 16
    enumeration: int = 10
    hinge: int = 8
    without_numba: int = 18
    hidden: int = 16
    marginals: int = 20
    shared: int = 22
    elimination: int = 12
    narrow: int = 24
    dense: int = 40
    treewidth: int = 8


CUTOFFS = Cutoffs()
