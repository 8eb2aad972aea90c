"""Checks of arguments: every message names the argument, the expected value and the given value.

This module is internal and may change.
"""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lmbm_torch.torch_internals import is_mapped, transform
from lmbm_torch.verdicts import foresee, is_traced, refuse_unless

# Largest allowed magnitude of a log-potential: sums of a million such values neither overflow in float32 nor
# fall below the number that stands for −∞ in dynamic programming.
LARGEST = 1e24
_TRANSFORMS = (
    "torch.func.grad and vmap, got a tensor inside; use torch.autograd.grad, and the axis of examples"
)

__all__ = []


def is_missing(values: np.ndarray) -> np.ndarray:
    """Return a mask of the missing entries: None, NaN and missing values of pandas."""
    if values.dtype.kind in "fmM":
        return np.isnan(values)
    if values.dtype.kind != "O":
        return np.zeros(values.shape, np.bool_)
    missing = [is_absent(value) for value in values.ravel().tolist()]
    return np.array(missing, np.bool_).reshape(values.shape)


def is_absent(value: Any) -> bool:
    """Return whether a value is None, NaN or a missing value of pandas; False for lists and arrays."""
    if value is None or hasattr(value, "__len__"):
        return value is None
    # Compare the value with itself: NaN differs; for pandas' NA, the result is NA, neither true nor false.
    differs = value != value
    return not isinstance(differs, bool | np.bool_) or bool(differs)


def check_shape(name: str, array: Any, *expected: int | None) -> None:
    """Raise ValueError unless ``array.shape`` equals ``expected``; None stands for any size above zero."""
    came = tuple(array.shape)
    fits = len(came) == len(expected) and all(
        size == want if want is not None else size > 0 for size, want in zip(came, expected, strict=True)
    )
    if not fits:
        wanted = ", ".join("at least 1" if want is None else str(want) for want in expected)
        raise ValueError(f"{name}: expected shape ({wanted}), got {came}")


def are_transformed() -> bool:
    """Return whether a transform of ``torch.func`` runs: inside of a transform no tensor can be read."""
    # Return False while torch.compile traces, which is no transform.
    return not torch.compiler.is_compiling() and transform() is not None


def check_outside_transforms(name: str) -> None:
    """Raise TypeError inside of a transform of ``torch.func``, because no tensor can be read there."""
    if are_transformed():
        raise TypeError(f"{name}: expected a tensor outside of {_TRANSFORMS}")


def check_not_mapped(name: str, tensor: Tensor) -> None:
    """Raise TypeError for a tensor inside of ``torch.func.vmap``, because the values cannot be read."""
    if not torch.compiler.is_compiling() and is_mapped(tensor):
        raise TypeError(f"{name}: expected a tensor outside of {_TRANSFORMS}")


def check_finite(name: str, array: Tensor | np.ndarray) -> None:
    """Raise ValueError if ``array`` holds NaN or infinite values; the message gives the number.

    Raises:
        TypeError: see :func:`check_outside_transforms`.
    """
    check_outside_transforms(name)
    if isinstance(array, Tensor) and (is_traced() or array.device.type != "cpu"):
        tensor = array.detach()
        refuse_unless(
            f"{name}: expected finite values",
            (array,),
            lambda: tensor.isfinite().all(),
            lambda: _refuse_infinite(name, tensor.cpu()),
        )
        return
    # Use NumPy if possible: NumPy is 20 times as fast as torch, and does not wake torch's threads, which
    # would take cores from compiled code. Do not convert arrays: torch warns if an array is read-only.
    if isinstance(array, Tensor) and array.dtype != torch.bfloat16:
        array = array.detach().resolve_neg().numpy()
    finite = array.isfinite() if isinstance(array, Tensor) else np.isfinite(array)
    if not bool(finite.all()):
        _refuse_infinite(name, array)


def _refuse_infinite(name: str, array: Tensor | np.ndarray) -> None:
    is_tensor = isinstance(array, Tensor)
    nans = int((array.isnan() if is_tensor else np.isnan(array)).sum())
    infinite = int((~(array.isfinite() if is_tensor else np.isfinite(array))).sum()) - nans
    raise ValueError(f"{name}: expected finite values, got {nans} NaN and {infinite} infinite")


def check_moderate(name: str, tensor: Tensor) -> None:
    """Call :func:`check_finite` and :func:`check_magnitude`, with a single wait for a GPU."""
    check_outside_transforms(name)
    if tensor.device.type == "cpu" and not is_traced():
        # Read the values once; only if some are wrong, a second pass finds out what is wrong.
        if not tensor.numel() or are_moderate(tensor):
            return
        check_finite(name, tensor)
        check_magnitude(name, tensor)
    elif tensor.numel():

        def refuse() -> None:
            check_finite(name, tensor.cpu())
            check_magnitude(name, tensor.cpu())

        # Refuse NaN, too: a comparison with NaN is false.
        refuse_unless(
            f"{name}: expected finite values, of magnitudes of at most {LARGEST:g}",
            (tensor,),
            lambda: tensor.detach().abs().amax() <= LARGEST,
            refuse,
        )


def are_moderate(tensor: Tensor) -> bool:
    """Return whether all values of a CPU tensor are numbers of magnitude at most ``LARGEST``."""
    # Compare Python numbers, in half the time of tensors: every routine starts with this check.
    least, most = (float(end) for end in tensor.detach().aminmax())
    return least >= -LARGEST and most <= LARGEST


def check_log_potentials(name: str, tensor: Tensor) -> None:
    """Raise ValueError if ``tensor`` holds NaN or +∞; −∞ is allowed, and forbids a labelling."""
    check_not_mapped(name, tensor)

    def refuse() -> None:
        nans, infinite = int(tensor.isnan().sum()), int(tensor.isposinf().sum())
        raise ValueError(f"{name}: expected finite values or −∞, got {nans} NaN and {infinite} times +∞")

    if tensor.numel():
        # Use the maximum: one pass over the values finds +∞ and NaN.
        refuse_unless(
            f"{name}: expected finite values or −∞",
            (tensor,),
            lambda: tensor.detach().amax() < torch.inf,
            refuse,
        )


class MagnitudeError(ValueError, FloatingPointError):
    """The error raised for values whose sums overflow, due to bad input or too large steps in training."""


def check_magnitude(name: str, tensor: Tensor) -> None:
    """Raise MagnitudeError if sums of the finite values of ``tensor`` may overflow."""
    if not tensor.numel():
        return
    if tensor.device.type == "cpu" and not is_traced():
        if not are_moderate(tensor):
            largest = float(_largest(tensor))
            if not largest <= LARGEST:
                _refuse_large(name, largest)
        return
    refuse_unless(
        f"{name}: expected magnitudes of at most {LARGEST:g}",
        (tensor,),
        lambda: _largest(tensor) <= LARGEST,
        lambda: _refuse_large(name, float(_largest(tensor))),
    )


def _largest(tensor: Tensor) -> Tensor:
    """Return the largest magnitude in a tensor, −∞ left out; NaN if the tensor has NaN."""
    least, most = tensor.detach().masked_fill(tensor == -torch.inf, 0).aminmax()
    return torch.maximum(-least, most)


def _refuse_large(name: str, largest: float) -> None:
    raise MagnitudeError(
        f"{name}: expected magnitudes of at most {LARGEST:g}, got {largest:g}; in training, "
        "lower the learning rate"
    )


def check_labels(name: str, labels: Tensor | np.ndarray, *, allow_missing: bool = False) -> None:
    """Raise ValueError unless every entry is 0 or 1, or NaN if missing labels are allowed.

    Raises:
        TypeError: the entries are not numbers.
    """
    if isinstance(labels, np.ndarray) and labels.dtype.kind not in "biuf":
        raise TypeError(f"{name}: expected numbers, got {labels.dtype}")
    if isinstance(labels, Tensor):
        check_not_mapped(name, labels)
    wanted = "0, 1 or NaN (missing)" if allow_missing else "0 or 1"
    if isinstance(labels, Tensor):
        refuse_unless(
            f"{name}: expected {wanted}",
            (labels,),
            lambda: _are_labels(labels, allow_missing).all(),
            lambda: _refuse_labels(name, labels, wanted, allow_missing),
        )
    elif not _are_labels(labels, allow_missing).all():
        _refuse_labels(name, labels, wanted, allow_missing)


def foresee_labels(name: str, labels: Tensor) -> None:
    """Start the check of a later :func:`check_labels`, to wait for a GPU once instead of twice."""
    foresee(f"{name}: expected 0 or 1", (labels,), lambda: _are_labels(labels, False).all())


def _are_labels(labels: Any, allow_missing: bool) -> Any:
    valid = (labels == 0) | (labels == 1)
    return valid | (labels != labels) if allow_missing else valid


def _refuse_labels(name: str, labels: Any, wanted: str, allow_missing: bool) -> None:
    strange = labels[~_are_labels(labels, allow_missing)]
    few = sorted({float(value) for value in strange[:1000].tolist()}, key=str)[:5]
    raise ValueError(f"{name}: expected {wanted}, got {len(strange)} other values such as {few}")


def check_known(known: Tensor | None, device: torch.device, *shape: int) -> None:
    """Raise ValueError unless ``known`` is None, or has this shape and device, and values 0, 1 or NaN."""
    if known is None:
        return
    check_shape("known", known, *shape)
    check_device("known", known, device)
    check_labels("known", known, allow_missing=True)


def check_permutation(name: str, ordering: Any, size: int) -> None:
    """Raise ValueError unless ``ordering`` holds each of 0 … size − 1 once."""
    entries = np.asarray(ordering.tolist() if isinstance(ordering, Tensor) else ordering)
    if entries.shape != (size,) or set(entries.tolist()) != set(range(size)):
        raise ValueError(f"{name}: expected a permutation of 0 … {size - 1}, got {entries.tolist()}")


def check_count(name: str, value: int) -> None:
    """Raise ValueError unless ``value`` is an integer of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise ValueError(f"{name}: expected an integer of at least 1, got {value!r}")


def count_limit(name: str, limit: int | None) -> int:
    """Return ``limit``, or the largest integer for None; raise ValueError unless the limit is at least 1."""
    if limit is None:
        return sys.maxsize
    check_count(name, limit)
    return limit


def check_counts(**values: int) -> None:
    """Call :func:`check_count` for several arguments, given by name."""
    for name, value in values.items():
        check_count(name, value)


def check_device(name: str, tensor: Tensor, device: torch.device) -> None:
    """Raise ValueError unless ``tensor`` is on ``device``: the library never copies data between devices."""
    if not isinstance(tensor, Tensor) or tensor.device != device:
        kind = f"a tensor on {tensor.device}" if isinstance(tensor, Tensor) else type(tensor).__name__
        raise ValueError(f"{name}: expected a tensor on {device}, got {kind}")


def check_like(name: str, tensor: Tensor, like_name: str, like: Tensor) -> None:
    """Raise ValueError unless ``tensor`` has the dtype and device of ``like``, the argument ``like_name``."""
    if (tensor.dtype, tensor.device) != (like.dtype, like.device):
        raise ValueError(
            f"{name}: expected {like.dtype} on {like.device} like {like_name}, "
            f"got {tensor.dtype} on {tensor.device}"
        )


def check_probabilities(name: str, tensor: Tensor) -> None:
    """Raise ValueError unless all values are in [0, 1]."""
    wanted = f"{name}: expected probabilities in [0, 1]"

    def refuse() -> None:
        raise ValueError(f"{wanted}, got values outside of [0, 1]")

    refuse_unless(wanted, (tensor,), lambda: ((tensor >= 0) & (tensor <= 1)).all(), refuse)


def check_not_negative(name: str, value: float) -> None:
    """Raise ValueError unless ``value`` is a finite number of at least zero."""
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{name}: expected a finite number of at least 0, got {value}")


def check_positive(name: str, value: float) -> None:
    """Raise ValueError unless ``value`` is a finite number above zero."""
    if not isinstance(value, int | float | np.number) or not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name}: expected a finite number above 0, got {value}")


def level_of_caller() -> int:
    """Return the ``stacklevel`` for a warning to name the code that called the library."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith("lmbm_torch."):
        frame, level = frame.f_back, level + 1
    return level
