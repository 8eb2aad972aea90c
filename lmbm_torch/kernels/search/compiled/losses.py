"""Losses and records that the compiled searches of directed models share."""

from __future__ import annotations

import numpy as np

from lmbm_torch.kernels.jit import inlined, part


@inlined
def of(table, example):
    """The example's row of a table that has one for each example or one for all."""
    return table[min(example, len(table) - 1)]


# Of numbers alone, so that a call counts no references and need not be inlined nine times.
@part(error_model="numpy")
def label_loss(hinge, agreement):
    """What a label of this margin pays; ``hinge`` is (γ, temperature)."""
    margin, temperature = hinge
    shortfall = margin - agreement
    if temperature == 0:
        return max(shortfall, 0.0)
    scaled = shortfall / temperature
    return temperature * (max(scaled, 0.0) + np.log1p(np.exp(-abs(scaled))))


@part(error_model="numpy")
def least_loss(hinge, known, field, undecided):
    """The least that a label can pay, whose field can still move by ``undecided``."""
    return label_loss(hinge, (abs(field) if known == 0 else known * field) + undecided)


@inlined
def record(losses, labels, loss, spins):
    """Sort a complete labelling in among the best ones, behind those that it ties with."""
    place = len(losses) - 1
    while place > 0 and losses[place - 1] > loss:
        losses[place] = losses[place - 1]
        for t in range(labels.shape[1]):
            labels[place, t] = labels[place - 1, t]
        place -= 1
    losses[place] = loss
    for t in range(labels.shape[1]):
        labels[place, t] = spins[t] > 0
