"""Functions that the compiled searches share: losses of labels, and the list of the best labellings."""

from __future__ import annotations

import numpy as np

from lmbm_torch.kernels.jit import inlined, part


@inlined
def of(table, example):
    """Return the row for an example of a table that has a row for each example, or a single row for all."""
    return table[min(example, len(table) - 1)]


# This function is not inlined, because its arguments are numbers, for which calls are fast.
@part(error_model="numpy")
def label_loss(hinge, agreement):
    """Return the loss of a label whose spin · field is ``agreement``; ``hinge`` is (γ, temperature)."""
    margin, temperature = hinge
    shortfall = margin - agreement
    if temperature == 0:
        return max(shortfall, 0.0)
    scaled = shortfall / temperature
    return temperature * (max(scaled, 0.0) + np.log1p(np.exp(-abs(scaled))))


@part(error_model="numpy")
def least_loss(hinge, known, field, undecided):
    """Return the least possible loss of a label if the field can still change by ``undecided``."""
    return label_loss(hinge, (abs(field) if known == 0 else known * field) + undecided)


@inlined
def record(losses, labels, loss, spins):
    """Insert a complete labelling into the sorted best labellings, after labellings of equal loss."""
    place = len(losses) - 1
    while place > 0 and losses[place - 1] > loss:
        losses[place] = losses[place - 1]
        for t in range(labels.shape[1]):
            labels[place, t] = labels[place - 1, t]
        place -= 1
    losses[place] = loss
    for t in range(labels.shape[1]):
        labels[place, t] = spins[t] > 0
