"""The labellings of least hinge loss at many thresholds of one label, by few decodings.

A threshold θ on the field g_k(y) of label k changes the hinge of that label alone: it is [γ − g_k(y) + θ]_+
where y_k = 1, which rises with θ, by θ at most, and [γ + g_k(y) − θ]_+ where y_k = 0, which falls likewise.
So of a labelling that is best at θ much is known of other thresholds. Where y_k = 1 (else all is mirrored):

- at lower ones none with y_k = 0 is better;
- if its own hinge is positive, it is best at all lower ones down to where that ends, for it gains as much
  on the way as any labelling can;
- if it is zero, none with y_k = 1 is better at higher ones up to where that begins, for it loses nothing.

Most examples of most labels are settled by the lowest and the highest threshold.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from lmbm_torch.energies import DirectedEnergy
from lmbm_torch.inference.results import Decoding
from lmbm_torch.shapes import Bool, Float, Int

__all__ = ["decode_thresholds"]

Decode = Callable[[DirectedEnergy], Decoding]


class _Best(NamedTuple):
    """Labellings that are best, one of each example at a threshold of its own.

    Args:
        rows: the examples.
        place: of the thresholds.
        labels: (rows, labels).
        spin: of the label with the threshold, −1 or 1.
        kink: where its hinge begins, as ``spin`` times a threshold.
        proven: whether they are known to be best.
    """

    rows: Int[Tensor, " rows"]
    place: Int[Tensor, " rows"]
    labels: Int[Tensor, "rows labels"]
    spin: Float[Tensor, " rows"]
    kink: Float[Tensor, " rows"]
    proven: Bool[Tensor, " rows"]


def decode_thresholds(
    decode: Decode,
    energy: DirectedEnergy,
    label: int,
    thresholds: Float[Tensor, " thresholds"],
    margin: float,
) -> Int[Tensor, "thresholds batch labels"]:
    """What ``decode`` finds of each example at each threshold, subtracted from one label's field.

    Where several labellings are best it may be another of them.

    Args:
        decode: energy → labellings of least hinge loss, each proven or not.
        label: its index.
        thresholds: ascending, at least one.
        margin: γ.
    """
    thresholds = thresholds.to(energy.unary)
    size, count = energy.unary.shape[0], len(thresholds)
    found = torch.zeros(count, *energy.unary.shape, dtype=torch.int64, device=energy.device)
    settled = torch.zeros(count, size, dtype=torch.bool, device=energy.device)
    # The highest place where having the label is best, and the lowest where lacking it is.
    highest, lowest = (torch.full((size,), place, device=energy.device) for place in (-1, count))
    rows = torch.arange(size, device=energy.device).repeat(2)
    place = torch.tensor([0, count - 1], device=energy.device).repeat_interleave(size)
    known = None
    while len(rows):
        best = _decoded(decode, energy, label, thresholds, margin, rows, place)
        found[place, rows], settled[place, rows] = best.labels, True
        has, lacks = (best.proven & (best.spin == spin) for spin in (1, -1))
        highest.scatter_reduce_(0, rows[has], place[has], "amax")
        lowest.scatter_reduce_(0, rows[lacks], place[lacks], "amin")
        known = best if known is None else _Best(*map(torch.cat, zip(known, best, strict=True)))
        _settle(known, thresholds, highest, lowest, found, settled)
        is_open = ~settled.all(0)[known.rows]
        known = _Best(*(each[is_open] for each in known))
        rows, place = _left(settled)
    return found


def _decoded(
    decode: Decode,
    energy: DirectedEnergy,
    label: int,
    thresholds: Tensor,
    margin: float,
    rows: Tensor,
    place: Tensor,
) -> _Best:
    part = energy.select(rows)
    shift = torch.zeros_like(part.unary)
    shift[:, label] = thresholds[place]
    decoding = decode(replace(part, unary=part.unary - shift))
    spin = 2 * decoding.labels[:, label].to(part.unary) - 1
    kink = spin * part.local_fields(decoding.labels)[:, label] - margin
    return _Best(rows, place, decoding.labels, spin, kink, decoding.status.exact)


def _settle(
    best: _Best, thresholds: Tensor, highest: Tensor, lowest: Tensor, found: Tensor, settled: Tensor
) -> None:
    """Write down where else labellings are best."""
    against = best.spin * thresholds[:, None]
    own = best.spin * thresholds[best.place]
    places = torch.arange(len(thresholds), device=thresholds.device)[:, None]
    on_its_side = torch.where(best.spin > 0, places <= highest[best.rows], places >= lowest[best.rows])
    where_it_gains = (own > best.kink) & (against >= best.kink) & (against <= own)
    where_it_loses_nothing = (against >= own) & (against <= best.kink) & on_its_side
    holds = best.proven & (where_it_gains | where_it_loses_nothing) & ~settled[:, best.rows]
    place, which = holds.nonzero(as_tuple=True)
    found[place, best.rows[which]] = best.labels[which]
    settled[place, best.rows[which]] = True


def _left(settled: Tensor) -> tuple[Tensor, Tensor]:
    """What to decode next, as examples and places: one halfway through what is left of each, or soon all."""
    is_left = ~settled
    if int(is_left.sum()) > settled.shape[1]:
        is_left &= is_left.cumsum(0) == (is_left.sum(0) + 1) // 2
    place, rows = is_left.nonzero(as_tuple=True)
    return rows, place
