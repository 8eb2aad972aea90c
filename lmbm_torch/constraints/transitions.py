"""Allowed transitions between tags, such as in the chunk encodings BIO, IOB1 and BIOES."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch

from lmbm_torch.shapes import Bool

__all__ = ["AllowedTransitions", "allowed_transitions"]

SCHEMES = ("BIO", "IOB1", "BIOES")
# In BIOES: prefixes of tags that may follow a finished chunk; prefixes of tags that finish a chunk, and O.
_OPENING, _CLOSING = frozenset("BSO"), frozenset("ESO")

Pairs = Iterable[tuple[Any, Any]]


class AllowedTransitions(NamedTuple):
    """Masks of the tags that may begin a sequence, follow each other, and end a sequence.

    Args:
        start: true for tags that may stand first.
        steps: row r, column s: true if tag s may follow tag r.
        end: true for tags that may stand last.
    """

    start: Bool[torch.Tensor, " tags"]
    steps: Bool[torch.Tensor, "tags tags"]
    end: Bool[torch.Tensor, " tags"]

    def pairs(self, tags: Sequence[int]) -> list[tuple[int | None, int | None]]:
        """List the allowed pairs among ``tags`` (indices), in the form for :func:`allowed_transitions`."""
        starts = [(None, tag) for tag in tags if self.start[tag]]
        steps = [(tag, after) for tag in tags for after in tags if self.steps[tag, after]]
        return [*starts, *steps, *((tag, None) for tag in tags if self.end[tag])]


def allowed_transitions(tags: Sequence[Any], constraints: str | Pairs) -> AllowedTransitions:
    """Return which tags may begin a sequence, follow each other, and end a sequence.

    Args:
        tags: the tags, in the order of class indices. For a scheme the tags are texts: ``"O"``, or a prefix,
            a hyphen and a type, such as ``"B-LOC"``.
        constraints: a scheme, or all allowed pairs ``(tag, next tag)``. A pair ``(None, tag)`` allows a tag
            at the start and ``(tag, None)`` at the end; without pairs with None, every tag may start or end.
            The schemes are ``"BIO"`` (IOB2: each chunk begins with B), ``"IOB1"`` (B only between two
            adjacent chunks of the same type) and ``"BIOES"`` (E ends a chunk, S is a chunk of one token).

    Raises:
        ValueError: the scheme or a tag is unknown, or tags are repeated.

    Examples:
        >>> from lmbm_torch.constraints import allowed_transitions
        >>> allowed_transitions(["O", "B-LOC", "I-LOC"], "BIO").steps.int().tolist()
        [[1, 1, 0], [1, 1, 1], [1, 1, 1]]
    """
    names = list(tags)
    if len({*names}) < len(names):
        raise ValueError(f"tags: expected different names, got {names}")
    if not isinstance(constraints, str):
        return _of_pairs(names, constraints)
    if constraints not in SCHEMES:
        raise ValueError(f"constraints: expected one of {', '.join(SCHEMES)}, or pairs, got {constraints!r}")
    parts = [_parts(str(name), constraints) for name in names]
    outside = ("O", "")
    return AllowedTransitions(
        torch.tensor([_may_follow(outside, part, constraints) for part in parts], device="cpu"),
        torch.tensor(
            [[_may_follow(before, part, constraints) for part in parts] for before in parts], device="cpu"
        ),
        torch.tensor([_may_follow(part, outside, constraints) for part in parts], device="cpu"),
    )


def _parts(name: str, scheme: str) -> tuple[str, str]:
    """Split a tag into the prefix and the type; "O" has the type ""."""
    prefix, _, kind = name.partition("-")
    prefixes = "BIES" if scheme == "BIOES" else "BI"
    if name != "O" and (len(prefix) != 1 or prefix not in prefixes or not kind):
        wanted = ", ".join(f"{letter}-type" for letter in prefixes)
        raise ValueError(f"tags: expected O, {wanted} for {scheme}, got {name!r}")
    return prefix, kind


def _may_follow(before: tuple[str, str], after: tuple[str, str], scheme: str) -> bool:
    """Return whether a scheme allows tag ``after`` behind tag ``before``; for a sequence's ends, pass O."""
    prefix, is_same = after[0], before[1] == after[1]
    if scheme == "BIO":
        return prefix != "I" or (is_same and before[0] in "BI")
    if scheme == "IOB1":
        return prefix != "B" or (is_same and before[0] in "BI")
    if before[0] in _CLOSING:
        return prefix in _OPENING
    return prefix in "IE" and is_same


def _of_pairs(names: list[Any], pairs: Pairs) -> AllowedTransitions:
    """Convert allowed pairs to masks."""
    place = {name: index for index, name in enumerate(names)}
    start, end = torch.zeros(2, len(names), dtype=torch.bool, device="cpu")
    steps = torch.zeros(len(names), len(names), dtype=torch.bool, device="cpu")
    for before, after in pairs:
        for name in (before, after):
            if name is not None and name not in place:
                raise ValueError(f"constraints: expected pairs of the tags {names}, got {name!r}")
        if before is None and after is None:
            raise ValueError("constraints: expected a tag in each pair, got (None, None)")
        if before is None:
            start[place[after]] = True
        elif after is None:
            end[place[before]] = True
        else:
            steps[place[before], place[after]] = True
    return AllowedTransitions(start | ~start.any(), steps, end | ~end.any())
