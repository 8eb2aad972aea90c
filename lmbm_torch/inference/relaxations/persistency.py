"""Labels of Boltzmann machines that can be decided before a search, by dominant weights or roof duality.

A solver's tolerance is a share of the largest weight. Next to a weight of a million, ordinary weights would
vanish, so dominant weights are settled first. If a label's field outweighs all couplings of the label, or one
coupling outweighs all other terms of the label, then some optimum agrees with the field or coupling, because
flipping only this label cannot do better. The remaining weights are of similar size.
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
    """Model in which some labels are settled: known, and without couplings.

    Args:
        energy: a Boltzmann machine in float64 on the CPU; the constant is the score of the settled labels.
        known: {0, 1, NaN}, NaN for an undecided label.
        leader: for each label, the label that determines its value, most often the label itself.
        sign: 1 for a label with the same value as the leader, −1 for a label with the opposite value.
    """

    energy: Any
    known: Float[Tensor, "batch labels"]
    leader: Int[Tensor, "batch labels"]
    sign: Float[Tensor, "batch labels"]

    @classmethod
    def nothing(cls, energy: Machine, known: Float[Tensor, "batch labels"]) -> Settled:
        """Return the model with no label settled."""
        labels = torch.arange(energy.num_labels, device="cpu").expand_as(known)
        return cls(energy, known, labels, torch.ones_like(known))

    @classmethod
    def of(cls, energy: PairwiseEnergy, known: Float[Tensor, "batch labels"]) -> Settled:
        """Return a copy of the model, with couplings for each example, that can be settled in place."""
        *_, leader, sign = cls.nothing(energy, known)
        pairwise = energy.pairwise.expand(energy.batch_size, -1, -1).clone()
        own = PairwiseEnergy(energy.unary.clone(), pairwise, energy.constant.clone())
        return cls(own, known.clone(), leader.clone(), sign)

    def of_all(self, values: Float[Tensor, "batch labels"]) -> Float[Tensor, "batch labels"]:
        """Return the values in [0, 1] of all labels, given the leaders' values."""
        led = values.gather(1, self.leader)
        return torch.where(self.sign > 0, led, 1 - led)

    def put(self, rows: Tensor, some: Settled) -> None:
        """Overwrite the examples ``rows`` with those of ``some``, in place."""
        for own, new in zip(self[1:], some[1:], strict=True):
            own[rows] = new
        for name in self.energy.PER_EXAMPLE:
            getattr(self.energy, name)[rows] = getattr(some.energy, name)


def settle_scores(energy: PairwiseEnergy, known: Float[Tensor, "batch labels"]) -> Settled:
    """Return the model with labels settled by dominant weights, for the largest score.

    Args:
        energy: in float64 on the CPU.
        known: {0, 1, NaN}; known labels are settled, too.
    """
    found = Settled.of(free_part(energy, known), known)
    for row in range(len(known)):
        _settle_score(found, row)
    return found


def _settle_score(found: Settled, row: int) -> None:
    """Settle one example in place; known labels have no weights left."""
    unary, pairwise = found.energy.unary[row].numpy(), found.energy.pairwise[row].numpy()
    known, leader, sign = (values[row].numpy() for values in found[1:])
    while True:
        own, couplings = np.abs(unary), np.abs(pairwise)
        strongest, total = couplings.max(1), couplings.sum(1)
        # For each label, the weight of its dominant field or coupling, −1 if none dominates.
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
    """Return the model with labels settled by dominant fields, for the least Σ_i [margin − m_i]_+.

    A label against its field pays at least margin + |field| − Σ |couplings|. With the field, the label pays
    nothing if |field| − Σ |couplings| ≥ margin. A flip costs the other labels at most 2 Σ |couplings|.

    Args:
        energy: see :func:`settle_scores`.
        known: {0, 1, NaN}; known labels keep their weights, because their hinge losses may be positive.
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


# Largest round-off of a sum of all weights, as a share of the sum of their magnitudes.
ROUND_OFF = 1e-13


def persistent_spins(fields: np.ndarray, couplings: np.ndarray) -> np.ndarray:
    """Return the spins of labels that are equal in every best labelling of an example; 0 if undecided.

    Args:
        fields: (labels,).
        couplings: (labels, labels).
    """
    kernel = kernels("search.roof_duality")
    least = ROUND_OFF * (np.abs(fields).sum() + np.abs(couplings).sum())
    messages = kernel.messages(fields, couplings, np.zeros(len(fields)), least)
    return kernel.persistent(fields, couplings, messages, least)


def settle_persistent(settled: Settled) -> Settled:
    """Return the model with further labels settled by roof duality."""
    energy = free_part(settled.energy, settled.known)
    fields, couplings = energy.unary.numpy(), energy.pairwise.expand(energy.batch_size, -1, -1).numpy()
    persistent = torch.from_numpy(np.stack(list(map(persistent_spins, fields, couplings))))
    is_new = (persistent != 0) & settled.known.isnan()
    known = torch.where(is_new, (persistent + 1) / 2, settled.known)
    return settled._replace(energy=free_part(energy, torch.where(is_new, known, torch.nan)), known=known)
