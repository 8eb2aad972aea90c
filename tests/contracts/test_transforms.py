"""Gradients of gradients and the transforms of torch.func: right, or refused in clear words."""

from __future__ import annotations

import pytest
import torch

from contracts.kinds import CHAIN, SEQUENTIAL, with_tensors
from contracts.routines import every_row, rows_that

REFUSED = (
    r"^\w+: expected a tensor outside of torch\.func\.grad and vmap, got a tensor inside; use torch\.autograd"
)


def with_learnt(row, energy, learnt):
    """The energy with others in place of its learnt tensors."""
    tensors = iter(learnt)
    return with_tensors(energy, lambda name, tensor: next(tensors) if name in row.kind.learnt else tensor)


def learnt_of(row, energy):
    found = []

    def look(name, tensor):
        if name in row.kind.learnt:
            found.append(tensor)
        return tensor

    with_tensors(energy, look)
    return found


def first_derivative(row, case, learnt):
    """The sum of the squares of a gradient, with its graph."""
    results = row(with_learnt(row, case.energy, learnt), case.known)
    (result, *_) = (results[name] for name in row.gradients if name not in row.incidental)
    weights = torch.linspace(0.5, 1.5, result.numel(), dtype=result.dtype).view_as(result)
    grads = torch.autograd.grad((result * weights).sum(), learnt, create_graph=True, allow_unused=True)
    return sum(grad.square().sum() for grad in grads if grad is not None)


def is_first_order(row):
    """Whether the gradient takes for constants what depends on the energy."""
    once = "relaxations.sparse_map.", "relaxations.lp_layer.", "trees.semi_chain_dp.log_partition"
    return row.stationary or row.name.startswith(once)


@rows_that(is_first_order)
def test_second_derivatives_that_would_be_wrong_are_refused(row):
    case = row.few_cases()[0]
    learnt = [tensor.clone().requires_grad_() for tensor in learnt_of(row, case.energy)]
    first = first_derivative(row, case, learnt)
    _, _, name = row.name.partition(".")
    with pytest.raises(RuntimeError, match=rf"^{name}: expected only first derivatives"):
        torch.autograd.grad(first, learnt, allow_unused=True)


@rows_that(lambda row: row.gradients and not is_first_order(row))
def test_second_derivatives_are_right(row):
    case = row.few_cases()[0]
    values = learnt_of(row, case.energy)
    learnt = [tensor.clone().requires_grad_() for tensor in values]
    first = first_derivative(row, case, learnt)
    if not first.requires_grad:
        # A network's log partition is constant.
        assert first == 0
        return
    second = torch.autograd.grad(first, learnt, materialize_grads=True)
    generator = torch.Generator().manual_seed(0)
    steps = [direction(value, generator) for value in values]

    def after(sign):
        moved = [value + sign * 1e-5 * step for value, step in zip(values, steps, strict=True)]
        return first_derivative(row, case, [tensor.requires_grad_() for tensor in moved])

    slope = sum((grad * step).sum() for grad, step in zip(second, steps, strict=True))
    torch.testing.assert_close(slope, (after(1) - after(-1)) / 2e-5, rtol=1e-4, atol=1e-4)


def direction(value, generator):
    """A random one, symmetric where the tensor is, and 0 where it is or forbids."""
    step = torch.randn(value.shape, generator=generator).double().where(value.isfinite() & (value != 0), 0)
    return step + step.mT if value.ndim > 1 and torch.equal(value, value.mT) else step


@every_row
def test_mapped_tensors_are_refused_by_name(row):
    if row.kind is SEQUENTIAL:
        pytest.skip("has no tensors")
    if row.kind is CHAIN and row.name.endswith(".log_partition"):
        pytest.skip("is mapped, see tests/nn/test_crf.py")
    case = row.few_cases()[0]
    several = [torch.stack([tensor, tensor]) for tensor in learnt_of(row, case.energy)]
    if not several:
        pytest.skip("has none that are learnt")

    def infer(*learnt):
        row(with_learnt(row, case.energy, learnt), case.known)
        return learnt[0]

    with pytest.raises(TypeError, match=REFUSED):
        torch.func.vmap(infer)(*several)


@rows_that(lambda row: row.gradients)
def test_functional_gradients_are_right_or_refused_by_name(row):
    case = row.few_cases()[0]
    values = learnt_of(row, case.energy)

    def total(learnt):
        return sum(
            row(with_learnt(row, case.energy, learnt), case.known)[name].sum() for name in row.gradients
        )

    # Chains look at values by torch alone, an active set in NumPy.
    if row.kind is not CHAIN or row.name == "relaxations.sparse_map.marginals":
        with pytest.raises(TypeError, match=REFUSED):
            torch.func.grad(total)(values)
        return
    learnt = [tensor.clone().requires_grad_() for tensor in values]
    expected = torch.autograd.grad(total(learnt), learnt, materialize_grads=True)
    for came, wanted in zip(torch.func.grad(total)(values), expected, strict=True):
        torch.testing.assert_close(came, wanted, rtol=0, atol=1e-12)
