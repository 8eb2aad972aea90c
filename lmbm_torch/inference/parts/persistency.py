"""Roof duality of a batch: its bound on each example's score, and the labels that it decides."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from lmbm_torch.backends.installed import kernels
from lmbm_torch.backends.threads import share
from lmbm_torch.energies import PairwiseEnergy
from lmbm_torch.inference.parts.dominance import Settled
from lmbm_torch.inference.parts.known import free_part

__all__ = ["Roof", "persistent_spins", "roof", "settle_persistent"]

# What sums of so many terms may have lost, as a share of their magnitudes.
ROUND_OFF = 1e-13


class Roof(NamedTuple):
    """Of each example of a batch.

    Args:
        bound: (batch,), at least any labelling's score: the value of the local polytope.
        persistent: (batch, labels), the spins that labels have in every best labelling, 0 where not decided.
        spins: (batch, labels), a labelling that has them, improved by flips.
    """

    bound: np.ndarray
    persistent: np.ndarray
    spins: np.ndarray


def roof(energy: PairwiseEnergy) -> Roof:
    """The bound of roof duality, in float64 on the CPU.

    Args:
        energy: in float64 on the CPU.
    """
    unary, constant = energy.unary.numpy(), energy.constant.numpy()
    couplings = energy.pairwise.expand(energy.batch_size, -1, -1).numpy()
    found = Roof(np.empty(len(unary)), np.empty_like(unary), np.empty_like(unary))
    kernel = kernels("search.roof_duality", "roof duality")
    none = np.zeros(unary.shape[1])

    def solve(row: int) -> None:
        own, others = unary[row], couplings[row]
        size = np.abs(own).sum() + np.abs(others).sum()
        messages = kernel.messages(own, others, none, ROUND_OFF * size)
        left = np.abs(own + messages.sum(1)).sum()
        found.bound[row] = constant[row] + left + np.abs(others).sum() / 2
        found.bound[row] += ROUND_OFF * (size + abs(constant[row]))
        found.persistent[row] = kernel.persistent(own, others, messages, ROUND_OFF * size)
        spins = np.where(found.persistent[row] != 0, found.persistent[row], np.where(own > 0, 1.0, -1.0))
        kernel.climbed(own, others, spins)
        found.spins[row] = spins

    share(range(len(unary)), solve)
    return found


def persistent_spins(fields: np.ndarray, couplings: np.ndarray) -> np.ndarray:
    """The spins that labels have in every best labelling of one example, 0 where not decided, (labels,).

    Args:
        fields: (labels,).
        couplings: (labels, labels).
    """
    kernel = kernels("search.roof_duality", "roof duality")
    least = ROUND_OFF * (np.abs(fields).sum() + np.abs(couplings).sum())
    messages = kernel.messages(fields, couplings, np.zeros(len(fields)), least)
    return kernel.persistent(fields, couplings, messages, least)


def settle_persistent(settled: Settled) -> Settled:
    """The model that is left of one where persistent labels are known, too."""
    energy = free_part(settled.energy, settled.known)
    persistent = torch.from_numpy(roof(energy).persistent)
    is_new = (persistent != 0) & settled.known.isnan()
    known = torch.where(is_new, (persistent + 1) / 2, settled.known)
    return settled._replace(energy=free_part(energy, torch.where(is_new, known, torch.nan)), known=known)
