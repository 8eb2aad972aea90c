"""The choice of a kernel for each device, and of the messages' precision."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module

import torch

from lmbm_torch.extras import uncollected
from lmbm_torch.kernels.matrix_bp import plain
from lmbm_torch.kernels.matrix_bp.compiled import resident
from lmbm_torch.kernels.matrix_bp.plain import Beliefs, Problem, converted
from lmbm_torch.verdicts import is_traced

BACKENDS = ("auto", "plain", "streaming", "resident")
PRECISIONS = (torch.float64, torch.float32)


@dataclass(frozen=True)
class Propagation:
    """A choice of kernel and precision; the call propagates in any problem.

    Args:
        backend: an entry of ``BACKENDS``.
        message_dtype: an entry of ``PRECISIONS`` to propagate in; None for the problem's own.
    """

    backend: str = "auto"
    message_dtype: torch.dtype | None = None

    def check(self) -> None:
        """Check the backend and the precision.

        Raises:
            ValueError: an unknown backend or precision.
        """
        if self.backend not in BACKENDS:
            expected = ", ".join(map(repr, BACKENDS))
            raise ValueError(f"backend: expected one of {expected}, got {self.backend!r}")
        if self.message_dtype not in (None, *PRECISIONS):
            expected = ", ".join(map(str, PRECISIONS))
            raise ValueError(f"message_dtype: expected None or one of {expected}, got {self.message_dtype}")

    def __call__(self, problem: Problem) -> Beliefs:
        """Return beliefs in the problem's own precision.

        Raises:
            ValueError: a kernel that does not support the problem or settings.
            ImportError: a kernel that is not installed.
        """
        own = problem.visible.dtype
        # Of a decorated method ``torch.compile`` can make no graph.
        with torch.no_grad():
            if self.message_dtype is None:
                return self._run(problem)
            return converted(self._run(converted(problem, self.message_dtype)), own)

    def _run(self, problem: Problem) -> Beliefs:
        is_cuda = problem.visible.is_cuda
        if self.backend == "plain":
            return plain.propagate(problem)
        if self.backend == "resident":
            return resident.propagate(problem)
        if problem.init is not None and is_cuda:
            if self.backend == "streaming":
                raise ValueError("backend: 'streaming' supports no init on CUDA devices")
            return plain.propagate(problem)
        chooses = self.backend == "auto" and is_cuda and not is_traced()
        if chooses and resident.suits(problem):
            return resident.propagate(problem)
        return kernel(problem.visible.device.type)(problem)


def kernel(device: str) -> Callable[[Problem], Beliefs]:
    """Return the kernel for a kind of device if installed, else (with one warning) the plain reference."""
    if is_traced():
        return plain.propagate
    name = {"cpu": "groups", "cuda": "cuda"}.get(device)
    return plain.propagate if name is None else _compiled(name)


@cache
def _compiled(name: str) -> Callable[[Problem], Beliefs]:
    """Return a compiled kernel or, if numba or Triton are missing or do not fit, the plain reference."""
    try:
        with uncollected():
            return import_module(f"lmbm_torch.kernels.matrix_bp.compiled.{name}").propagate
    except Exception as missing:
        warnings.warn(
            "belief propagation runs on its plain reference, which is far slower: "
            f"{type(missing).__name__}: {missing}",
            RuntimeWarning,
            stacklevel=4,
        )
        return plain.propagate
