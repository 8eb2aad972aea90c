"""Features of sequences, either padded to one length or joined in turn. Internal."""

from __future__ import annotations

from collections.abc import Callable

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from lmbm_torch.checks import check_device, check_shape
from lmbm_torch.energies.chain import as_lengths, check_lengths
from lmbm_torch.shapes import Bool, Int
from lmbm_torch.verdicts import number, refuse_unless

__all__ = []


def positions(
    features: Tensor,
    lengths: Int[Tensor, " batch"] | ArrayLike | None,
    num_features: int,
    max_length: int | None = None,
) -> Bool[Tensor, "batch length"]:
    """Return a mask (batch, length) that is true for positions and false for padding.

    Args:
        features: ``(batch, length, features)`` with padding, or all sequences' positions in turn,
            ``(positions, features)``, dense or CSR.
        lengths: the number of positions of each sequence, at least 1; by default the full length.
        num_features: width of a position's features.
        max_length: for positions in turn, the length to pad to; by default the length of the
            longest sequence, which the CPU must read from a GPU.

    Raises:
        ValueError: features of another shape, or lengths that do not fit the features.
    """
    is_padded = features.ndim == 3
    check_shape("x", features, *[None] * (2 if is_padded else 1), num_features)
    if lengths is None:
        if not is_padded:
            raise ValueError(
                "lengths: expected the length of each sequence, as x holds the positions of all sequences, "
                "got None"
            )
        return torch.ones(features.shape[:2], dtype=torch.bool, device=features.device)
    lengths = as_lengths(lengths, features)
    check_shape("lengths", lengths, len(features) if is_padded else None)
    check_device("lengths", lengths, features.device)
    if not is_padded:
        _check_total(lengths, len(features))
    if is_padded:
        max_length = features.shape[1]
    elif max_length is None:
        max_length = int(number("longest sequence", (lengths,), lengths.max))
    check_lengths(lengths, max_length)
    return torch.arange(max_length, device=features.device) < lengths[:, None]


def _check_total(lengths: Tensor, rows: int) -> None:
    wanted = f"lengths: expected lengths of at least 1 with a sum of {rows}"

    def refuse() -> None:
        raise ValueError(f"{wanted}, got a least of {int(lengths.min())} and a sum of {int(lengths.sum())}")

    refuse_unless(wanted, (lengths,), lambda: (lengths.min() >= 1) & (lengths.sum() == rows), refuse)


def rows_of(features: Tensor, inside: Bool[Tensor, "batch length"]) -> Tensor:
    """Return the features of all sequences' positions in turn, (positions, features), unpadded."""
    return features[inside] if features.ndim == 3 else features


def spread(rows: Tensor, inside: Bool[Tensor, "batch length"]) -> Tensor:
    """Pad values of positions in turn, ``(positions, …)``, by 0 to ``(batch, length, …)``."""
    # Not indexed by the mask: the backward pass would count the true entries, and wait for the GPU.
    place = (inside.flatten().cumsum(0) - 1).clamp(0, len(rows) - 1)
    return _masked(rows.index_select(0, place).unflatten(0, inside.shape), inside)


def at_positions(
    features: Tensor, inside: Bool[Tensor, "batch length"], values: Callable[[Tensor], Tensor]
) -> Tensor:
    """Return ``values`` of each position's features: ``(batch, length, …)``, 0 in padding."""
    if features.ndim == 2:
        return spread(values(features), inside)
    # Padding may be NaN, and NaN times 0 is NaN.
    rows = _masked(features, inside).flatten(0, 1)
    return _masked(values(rows).unflatten(0, inside.shape), inside)


def _masked(values: Tensor, inside: Tensor) -> Tensor:
    return values.masked_fill(~inside.view(*inside.shape, *[1] * (values.ndim - 2)), 0)
