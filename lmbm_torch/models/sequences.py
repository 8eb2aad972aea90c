"""Features of sequences, padded to one length or one after another."""

from __future__ import annotations

import torch
from torch import Tensor

from lmbm_torch.checks import check_device, check_shape
from lmbm_torch.shapes import Bool, Int

__all__ = ["positions", "rows_of", "spread"]


def positions(
    features: Tensor, lengths: Int[Tensor, " batch"] | None, num_features: int
) -> Bool[Tensor, "batch length"]:
    """True where there is a position, false for padding.

    Args:
        features: ``(batch, length, features)`` with padding, or all sequences' positions one after another,
            ``(positions, features)``, dense or CSR.
        lengths: int64, of each sequence, at least 1; those of padded features are all the same if not given.
        num_features: what a position has.

    Raises:
        ValueError: features of another shape, or lengths that do not fit them.
    """
    check_shape("x", features, *[None] * (2 if features.ndim == 3 else 1), num_features)
    if lengths is None:
        if features.ndim == 2:
            raise ValueError("lengths: expected with positions one after another, got none")
        return torch.ones(features.shape[:2], dtype=torch.bool, device=features.device)
    check_shape("lengths", lengths, len(features) if features.ndim == 3 else None)
    check_device("lengths", lengths, features.device)
    total, shortest, longest = int(lengths.sum()), int(lengths.min()), int(lengths.max())
    if features.ndim == 2 and (shortest < 1 or total != len(features)):
        raise ValueError(
            f"lengths: expected at least 1 and {len(features)} in all, got {shortest} and {total}"
        )
    if features.ndim == 3 and not 1 <= shortest <= longest <= features.shape[1]:
        raise ValueError(f"lengths: expected 1 to {features.shape[1]}, got {shortest} to {longest}")
    length = longest if features.ndim == 2 else features.shape[1]
    return torch.arange(length, device=features.device) < lengths[:, None]


def rows_of(features: Tensor, inside: Bool[Tensor, "batch length"]) -> Tensor:
    """The features of all sequences' positions one after another, (positions, features), unpadded."""
    return features[inside] if features.ndim == 3 else features


def spread(rows: Tensor, inside: Bool[Tensor, "batch length"]) -> Tensor:
    """Values of positions one after another, ``(positions, …)``, padded to ``(batch, length, …)``."""
    padded = rows.new_zeros(*inside.shape, *rows.shape[1:])
    return padded.masked_scatter(inside.view(*inside.shape, *[1] * (rows.ndim - 1)), rows)
