"""The choice of a kernel for each device and of the precision of messages; the operator ``lmbm::matrix_bp``.

The operator's gradient of the log partition is the beliefs (belief_propagation_in_crbms_2017, Equation 18),
for any number of iterations. By the coupling the gradient is the operator ``lmbm::matrix_bp_pairs``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from lmbm_torch.extras import uncollected
from lmbm_torch.kernels.matrix_bp import plain
from lmbm_torch.kernels.matrix_bp.compiled import resident
from lmbm_torch.kernels.matrix_bp.plain import Beliefs, Problem, Product, converted
from lmbm_torch.kernels.operators import is_kept, operator
from lmbm_torch.verdicts import is_traced

BACKENDS = ("auto", "plain", "streaming", "resident")
PRECISIONS = (torch.float64, torch.float32)


# Arguments: the fields of a problem (pair weights are all 1 or missing), then the choice of the kernel.
_ARGUMENTS = (
    "Tensor visible, Tensor hidden, Tensor coupling, Tensor? known, Tensor? start, int num_iters, float tol,"
    " float damping, str product, bool keep_messages, bool pairs, Tensor? init, str backend,"
    " ScalarType? message_dtype"
)
_LOG_PARTITION, _PAIR_SUM = Beliefs._fields.index("log_partition"), Beliefs._fields.index("pair_sum")


@dataclass(frozen=True)
class Propagation:
    """A function that runs belief propagation with a given kernel and precision.

    Args:
        backend: an entry of ``BACKENDS``.
        message_dtype: precision of messages, an entry of ``PRECISIONS``; None for the problem's.
    """

    backend: str = "auto"
    message_dtype: torch.dtype | None = None

    def check(self) -> None:
        """Check the backend and the precision.

        Raises:
            ValueError: the backend or the precision is unknown.
        """
        if self.backend not in BACKENDS:
            expected = ", ".join(map(repr, BACKENDS))
            raise ValueError(f"backend: expected one of {expected}, got {self.backend!r}")
        if self.message_dtype not in (None, *PRECISIONS):
            expected = ", ".join(map(str, PRECISIONS))
            raise ValueError(f"message_dtype: expected None or one of {expected}, got {self.message_dtype}")

    def __call__(self, problem: Problem) -> Beliefs:
        """Return beliefs in the precision of the problem.

        Raises:
            ValueError: the kernel does not support the problem or a setting.
            ImportError: the kernel is not installed.
        """
        own = problem.visible.dtype
        # A decorator would prevent ``torch.compile`` from making a graph.
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
                raise ValueError("backend: 'streaming' does not support init on CUDA devices")
            return plain.propagate(problem)
        chooses = self.backend == "auto" and is_cuda and not is_traced()
        if chooses and resident.suits(problem):
            return resident.propagate(problem)
        return kernel(problem.visible.device.type)(problem)


def kernel(device: str) -> Callable[[Problem], Beliefs]:
    """Return the kernel for a kind of device; if not installed, warn once and return the reference."""
    if is_traced():
        return plain.propagate
    name = {"cpu": "groups", "cuda": "cuda"}.get(device)
    return plain.propagate if name is None else _compiled(name)


@cache
def _compiled(name: str) -> Callable[[Problem], Beliefs]:
    """Return a compiled kernel; if numba or Triton are missing or do not fit, the reference in torch."""
    try:
        with uncollected():
            return import_module(f"lmbm_torch.kernels.matrix_bp.compiled.{name}").propagate
    except Exception as missing:
        warnings.warn(
            "belief propagation runs without a compiled kernel, which is much slower: "
            f"{type(missing).__name__}: {missing}",
            RuntimeWarning,
            stacklevel=4,
        )
        return plain.propagate


def propagate(problem: Problem, propagation: Propagation) -> Beliefs:
    """Return beliefs, whose ``log_partition`` has a gradient; ``pair_weights`` must be 1.

    Raises:
        ValueError, ImportError: see :class:`Propagation`.
    """
    needs_gradient = torch.is_grad_enabled() and any(each.requires_grad for each in problem[:3])
    if not (needs_gradient or (is_traced() and is_kept(problem.visible.device))):
        return propagation(problem)
    pairs = problem.pair_weights is not None
    arguments = problem._replace(product=problem.product.name, pair_weights=pairs)  # pyright: ignore[reportArgumentType]
    *found, to_visible, to_hidden, pair_sum = matrix_bp(
        *arguments, propagation.backend, propagation.message_dtype
    )
    kept = (to_visible, to_hidden) if problem.keep_messages else (None, None)
    return Beliefs._make((*found, *kept, pair_sum if pairs else None))


def _beliefs(arguments: tuple[Any, ...], weights: Tensor | None) -> Beliefs:
    """Return beliefs for the operator's arguments, with pairwise beliefs summed by ``weights``."""
    *fields, backend, message_dtype = arguments
    problem = Problem(*fields)
    product: Any = problem.product
    return Propagation(backend, message_dtype)(
        problem._replace(product=Product[product], pair_weights=weights)
    )


def _empty(visible: Tensor, hidden: Tensor, coupling: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    """Return tensors of the shapes and dtypes of the beliefs."""
    batch, (keep_messages, pairs) = visible.shape[0], rest[6:8]
    messages = (batch, *coupling.shape) if keep_messages else (0,)
    shapes = ((batch, *visible.shape[1:]), (batch, *hidden.shape[1:]), (batch,), (batch,), (batch,))
    found = [visible.new_empty(shape) for shape in (*shapes, messages, messages)]
    found[Beliefs._fields.index("num_iters")] = visible.new_empty(batch, dtype=torch.int64)
    return (*found, visible.new_empty(coupling.shape if pairs else (0,)))


@operator(
    *("matrix_bp", f"({_ARGUMENTS}) -> ({', '.join(['Tensor'] * len(Beliefs._fields))})", _empty),
    fixed={"coupling": 2},
    summed="pairs",
)
def matrix_bp(visible: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    """Return the fields of :class:`Beliefs`; fields that are not requested are empty tensors."""
    found = _beliefs((visible, *rest), torch.ones_like(visible[:, 0]) if rest[9] else None)
    return tuple(visible.new_empty(0) if each is None else each.contiguous() for each in found)


@operator(
    "matrix_bp_pairs",
    f"(Tensor weights, Tensor pair_sum, {_ARGUMENTS}) -> Tensor",
    lambda weights, pair_sum, visible, hidden, coupling, *rest: torch.empty_like(coupling),
)
def matrix_bp_pairs(weights: Tensor, pair_sum: Tensor, *arguments: Any) -> Tensor:
    """Return Σ_b weights_b P(v_i = 1, h_j = 1), by scaling the sum for weights 1, or by propagation."""
    # A mean or a sum gives all instances the same weight, which is a single number in memory: scale the known
    # sum. Other weights need another propagation, because pairwise beliefs of single instances were not kept.
    alike = weights.stride(0) == 0 or bool((weights == weights[0]).all())
    if alike and pair_sum.shape[0]:
        return weights[0] * pair_sum
    again = _beliefs((*arguments[:9], False, *arguments[10:]), weights).pair_sum
    assert again is not None
    return again.contiguous()


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(*(each for place, each in enumerate(output) if place != _LOG_PARTITION))
    tensors = [each if isinstance(each, Tensor) else None for each in inputs]
    ctx.save_for_backward(*tensors, output[0], output[1], output[_PAIR_SUM])
    ctx.settings = [None if isinstance(each, Tensor) else each for each in inputs]


def _backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
    """Return the gradients by the arguments visible, hidden and coupling."""
    weights = gradients[_LOG_PARTITION]
    *tensors, visible, hidden, pair_sum = ctx.saved_tensors
    arguments = [
        setting if each is None else each for setting, each in zip(ctx.settings, tensors, strict=True)
    ]
    by_visible = by_hidden = by_coupling = None
    if weights is not None:
        column = weights[:, None]
        beliefs, known = torch.sigmoid(visible), arguments[3]
        by_visible = column * (
            beliefs if known is None else beliefs.where(known.isnan(), known.to(beliefs.dtype))
        )
        by_hidden = column * torch.sigmoid(hidden)
        if ctx.needs_input_grad[2]:
            by_coupling = matrix_bp_pairs(weights, pair_sum, *arguments)
    return by_visible, by_hidden, by_coupling, *(None for _ in arguments[3:])


matrix_bp.register_autograd(_backward, setup_context=_keep)
