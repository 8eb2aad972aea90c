"""Labels that roof duality or dominant weights decide.

Dominant weights are settled before a solver sees the model: a solver's tolerance is a share of the largest
weight, and next to a weight of a million ordinary weights vanish. If a label's own field outweighs all
couplings of the label, or one coupling all other terms of the label, some optimum agrees with the field or
coupling, since a flip of the label alone cannot do better. The remaining weights are of similar size.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lmbm_torch.energies import PairwiseEnergy
from lmbm_torch.inference.common.given import free_part
from lmbm_torch.inference.trees.log_tables import Machine
from lmbm_torch.kernels.installed import kernels
from lmbm_torch.shapes import Float, Int


class Settled(NamedTuple):
    """Model with settled labels: known, and without couplings.

    Args:
        energy: a Boltzmann machine in float64 on the CPU; the constant is the score of the settled labels.
        known: {0, 1, NaN}, NaN for an open label.
        leader: for each label the label that it follows, most often the label itself.
        sign: 1 for labels equal to the leader, −1 for labels of the opposite value.
    """

    energy: Any
    known: Float[Tensor, "batch labels"]
    leader: Int[Tensor, "batch labels"]
    sign: Float[Tensor, "batch labels"]

    @classmethod
    def nothing(cls, energy: Machine, known: Float[Tensor, "batch labels"]) -> Settled:
        """Return the model without settled labels."""
        labels = torch.arange(energy.num_labels, device="cpu").expand_as(known)
        return cls(energy, known, labels, torch.ones_like(known))

    @classmethod
    def of(cls, energy: PairwiseEnergy, known: Float[Tensor, "batch labels"]) -> Settled:
        """Return the model in own memory, with couplings for each example, to be settled in place."""
        *_, leader, sign = cls.nothing(energy, known)
        pairwise = energy.pairwise.expand(energy.batch_size, -1, -1).clone()
        own = PairwiseEnergy(energy.unary.clone(), pairwise, energy.constant.clone())
        return cls(own, known.clone(), leader.clone(), sign)

    def of_all(self, values: Float[Tensor, "batch labels"]) -> Float[Tensor, "batch labels"]:
        """Return the values in [0, 1] of all labels, from the leaders' values."""
        led = values.gather(1, self.leader)
        return torch.where(self.sign > 0, led, 1 - led)

    def put(self, rows: Tensor, some: Settled) -> None:
        """Write the examples ``rows`` from ``some``, in place."""
        for own, new in zip(self[1:], some[1:], strict=True):
            own[rows] = new
        for name in self.energy.PER_EXAMPLE:
            getattr(self.energy, name)[rows] = getattr(some.energy, name)


def settle_scores(energy: PairwiseEnergy, known: Float[Tensor, "batch labels"]) -> Settled:
    """Return the consequences of dominant weights for the largest score.

    Args:
        energy: in float64 on the CPU.
        known: {0, 1, NaN}; known labels are settled, too.
    """
    found = Settled.of(free_part(energy, known), known)
    for row in range(len(known)):
        _settle_score(found, row)
    return found


def _settle_score(found: Settled, row: int) -> None:
    """Settle one example, whose known labels have no weights."""
    unary, pairwise = found.energy.unary[row].numpy(), found.energy.pairwise[row].numpy()
    known, leader, sign = (values[row].numpy() for values in found[1:])
    while True:
        own, couplings = np.abs(unary), np.abs(pairwise)
        strongest, total = couplings.max(1), couplings.sum(1)
        # The largest dominant weight; −1 without weights.
        by_field = np.where(own >= total, own, -1)
        by_coupling = np.where(2 * strongest >= total + own, strongest, -1)
        dominant = np.maximum(by_field, by_coupling)
        label = int(dominant.argmax())
        if dominant[label] <= 0:
            return
        found.energy.constant[row] += dominant[label]
        if by_field[label] >= by_coupling[label]:
            spin = np.sign(unary[label])
            unary += spin * pairwise[label]
            known[label] = spin > 0
        else:
            other = int(couplings[label].argmax())
            spin = np.sign(pairwise[label, other])
            unary[other] += spin * unary[label]
            pairwise[other] += spin * pairwise[label]
            pairwise[:, other] = pairwise[other]
            pairwise[other, other] = 0
            sign[leader == label] *= spin
            leader[leader == label] = other
            known[label] = 0
        unary[label] = pairwise[label] = pairwise[:, label] = 0


def settle_hinges(energy: PairwiseEnergy, known: Float[Tensor, "batch labels"], margin: float) -> Settled:
    """Return the consequences of dominant fields for the least Σ_i [margin − m_i]_+.

    Against the field a label pays at least margin + |field| − couplings; with the field nothing if |field| −
    couplings reach the margin. A flip costs the other labels at most twice the couplings.

    Args:
        energy: see :func:`settle_scores`.
        known: {0, 1, NaN}; known labels may pay, and keep their weights.
    """
    found = Settled.of(energy, known)
    for row in range(len(known)):
        _settle_hinge(found, row, margin)
    return found


def _settle_hinge(found: Settled, row: int, margin: float) -> None:
    unary, pairwise = found.energy.unary[row].numpy(), found.energy.pairwise[row].numpy()
    known = found.known[row].numpy()
    while True:
        lead = np.abs(unary) - np.abs(pairwise).sum(1)
        is_dominant = np.isnan(known) & (lead >= margin) & (margin + lead >= 2 * np.abs(pairwise).sum(1))
        if not is_dominant.any():
            return
        label = int(np.where(is_dominant, lead, -np.inf).argmax())
        spin = np.sign(unary[label])
        unary += spin * pairwise[label]
        pairwise[label] = pairwise[:, label] = 0
        unary[label], known[label] = spin * margin, spin > 0


# What sums of so many terms may have lost, as a share of their magnitudes.
ROUND_OFF = 1e-13


def persistent_spins(fields: np.ndarray, couplings: np.ndarray) -> np.ndarray:
    """Return the spins of labels in every best labelling of one example, 0 if undecided, (labels,).

    Args:
        fields: (labels,).
        couplings: (labels, labels).
    """
    kernel = kernels("search.roof_duality")
    least = ROUND_OFF * (np.abs(fields).sum() + np.abs(couplings).sum())
    messages = kernel.messages(fields, couplings, np.zeros(len(fields)), least)
    return kernel.persistent(fields, couplings, messages, least)


def settle_persistent(settled: Settled) -> Settled:
    """Return the remaining model with persistent labels known, too."""
    energy = free_part(settled.energy, settled.known)
    fields, couplings = energy.unary.numpy(), energy.pairwise.expand(energy.batch_size, -1, -1).numpy()
    persistent = torch.from_numpy(np.stack(list(map(persistent_spins, fields, couplings))))
    is_new = (persistent != 0) & settled.known.isnan()
    known = torch.where(is_new, (persistent + 1) / 2, settled.known)
    return settled._replace(energy=free_part(energy, torch.where(is_new, known, torch.nan)), known=known)
