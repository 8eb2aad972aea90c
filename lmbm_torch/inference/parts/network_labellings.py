"""Compiled enumeration of the most probable labellings of networks."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from lmbm_torch.backends.installed import compiled
from lmbm_torch.energies import DirectedEnergy, SequentialEnergy
from lmbm_torch.inference.parts.sequential import Sequential
from lmbm_torch.inference.results import LikelyLabellings, Status


def likely_labellings(
    energy: DirectedEnergy | SequentialEnergy,
    model: Sequential,
    mass_left: float,
    max_labellings: int,
    step: float,
    slack: float,
) -> LikelyLabellings | None:
    """Those that :func:`lmbm_torch.inference.most_probable.labellings` finds, by the compiled kernel.

    None where it does not suit: of other models than networks, elsewhere than on the CPU, or without numba
    (said once).

    Args:
        model: the energy as searches see it, with what is known.
        step: of the logarithm of the threshold, from one pass to the next.
        slack: of the logarithm of the first threshold.
    """
    if not isinstance(energy, DirectedEnergy) or energy.device.type != "cpu":
        return None
    kernel = compiled("search.likely", "the search for likely labellings")
    if kernel is None:
        return None
    limits = kernel.Limits(float(mass_left), max_labellings, step, slack)
    found = kernel.labellings(kernel.Network(*_arrays(energy)), model.known.numpy(), limits)
    shape = (len(found), max(len(each.log_prob) for each in found))
    labels = np.zeros((*shape, energy.num_labels), np.int64)
    log_prob = np.full(shape, -np.inf)
    ordering = energy.ordering.numpy()
    for row, each in enumerate(found):
        log_prob[row, : len(each.log_prob)] = each.log_prob
        kernel.read_labels(each.bits, ordering, labels[row])
    left, log_known = (
        torch.tensor([getattr(each, name) for each in found], dtype=torch.float64)
        for name in ("left", "log_known")
    )
    nodes, reached = (torch.tensor([getattr(each, name) for each in found]) for name in ("nodes", "reached"))
    return LikelyLabellings(
        labels=torch.from_numpy(labels),
        probability=shares(torch.from_numpy(log_prob), left).to(energy.dtype),
        mass_left=left.to(energy.dtype),
        log_known=log_known.clamp(max=0).to(energy.dtype),
        status=Status(left == 0, reached, nodes, left.to(energy.dtype)),
    )


def shares(log_prob: Tensor, left: Tensor) -> Tensor:
    """The probability of each labelling, (batch, found), whose sum lacks what is left of 1."""
    best = log_prob.amax(1, keepdim=True)
    probability = (log_prob - best.where(best.isfinite(), 0)).exp()
    share = (1 - left) / probability.sum(1).clamp(min=torch.finfo(torch.float64).tiny)
    return probability * share[:, None]


def _arrays(energy: DirectedEnergy) -> tuple[np.ndarray, ...]:
    """The fields of the kernel's network."""
    ordered = energy.in_order()
    labels, cliques = energy.num_labels, ordered.cliques
    order = sorted(range(len(cliques)), key=lambda clique: cliques[clique][-1])
    children = [cliques[clique][-1] for clique in order]
    parents = np.full((len(cliques), max(map(len, cliques), default=1)), -1)
    for place, clique in enumerate(order):
        parents[place, : len(cliques[clique]) - 1] = cliques[clique][:-1]
    weight = torch.zeros(1, 0) if ordered.clique_weight is None else ordered.clique_weight
    return (
        _array(ordered.unary),
        _array(ordered.parents.reshape(-1, labels, labels)),
        np.searchsorted(children, np.arange(labels + 1)),
        parents,
        _array(torch.atleast_2d(weight)[:, order]),
    )


def _array(tensor: Tensor) -> np.ndarray:
    return np.ascontiguousarray(tensor.detach().double().numpy())
