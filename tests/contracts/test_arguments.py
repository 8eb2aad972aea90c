"""What goes in stays as it is, gradients reach it where they are promised, and what is wrong is refused."""

from __future__ import annotations

import pytest
import torch

from contracts.kinds import members, with_tensors
from contracts.results import assert_same, tensors_of
from contracts.routines import every_row, rows_that


def learning(row, energy):
    """The energy with gradients to its learnt tensors, and these."""
    learnt = []

    def change(name, tensor):
        if name in row.kind.learnt:
            learnt.append(tensor.clone().requires_grad_())
            return learnt[-1]
        return tensor

    return with_tensors(energy, change), learnt


@every_row
def test_arguments_are_left_alone(row):
    for case in row.few_cases():
        given = [tensor for energy in members(case.energy) for tensor in tensors_of(energy).values()]
        given += [] if case.known is None else [case.known]
        before = [(tensor.clone(), tensor._version) for tensor in given]
        row(case.energy, case.known)
        for tensor, (content, version) in zip(given, before, strict=True):
            assert tensor._version == version
            torch.testing.assert_close(tensor, content, rtol=0, atol=0, equal_nan=True)


@every_row
def test_gradients_flow_from_what_is_differentiable_alone(row):
    for case in row.few_cases():
        energy, _ = learning(row, case.energy)
        results = row(energy, case.known)
        assert {name for name, tensor in results.items() if tensor.requires_grad} == {*row.gradients}
        came = {name: tensor.detach() for name, tensor in results.items()}
        assert_same(came, case.result, **row.limits)


@rows_that(lambda row: row.gradients and not row.stationary)
def test_gradients_are_those_of_the_values(row):
    """Along a random direction, by a central difference."""
    for case in row.few_cases():
        energy, learnt = learning(row, case.energy)
        generator = torch.Generator().manual_seed(case.form)
        steps = [1e-4 * torch.randn(t.shape, generator=generator).double() for t in learnt]
        # A number that is no log-potential, or forbids, has none.
        steps = [step.where(t.isfinite(), 0) for step, t in zip(steps, learnt, strict=True)]
        ends = [moved(row, case, steps, sign) for sign in (-1, 1)]
        results = row(energy, case.known)
        for name in {*row.gradients} - {*row.incidental}:
            weights = torch.randn(results[name].shape, generator=generator).double()
            total = (weights * results[name]).sum()
            gradients = torch.autograd.grad(total, learnt, retain_graph=True, allow_unused=True)
            predicted = sum(
                (gradient.where(step != 0, 0) * step).sum()
                for gradient, step in zip(gradients, steps, strict=True)
                if gradient is not None
            )
            came = (weights * (ends[1][name] - ends[0][name])).sum() / 2
            torch.testing.assert_close(came, predicted, rtol=1e-3, atol=row.limits.get("atol", 1e-7))


def moved(row, case, steps, sign):
    """The results for the energy a step away."""
    left = iter(steps)
    energy = with_tensors(
        case.energy, lambda name, tensor: tensor + sign * next(left) if name in row.kind.learnt else tensor
    )
    return row(energy, case.known)


@every_row
def test_inference_mode_changes_nothing(row):
    with torch.inference_mode():
        made_here = [row(case.energy, case.known) for case in row.few_cases()]
    for came, case in zip(made_here, row.few_cases(), strict=True):
        assert_same(came, {name: tensor.detach() for name, tensor in case.result.items()})


def marked_negative(tensor):
    """The same numbers as an imaginary part, which torch has not negated yet."""
    if not tensor.is_floating_point() or not tensor.isfinite().all():
        return tensor
    marked = torch.complex(torch.zeros_like(tensor), -tensor).conj().imag
    assert marked.is_neg()
    return marked


@every_row
def test_numbers_that_are_only_marked_as_negative_change_nothing(row):
    case = row.few_cases()[0]
    energy = with_tensors(case.energy, lambda _, tensor: marked_negative(tensor))
    known = None if case.known is None else marked_negative(case.known)
    assert_same(row(energy, known), {name: tensor.detach() for name, tensor in case.result.items()})


@every_row
def test_refuses_nan_and_infinity(row):
    potentials = [name for name, t in tensors_of(members(row.kind.plain)[0]).items() if t.is_floating_point()]
    for spoiled in potentials:
        for bad in (torch.nan, torch.inf):

            def spoil(name, tensor, spoiled=spoiled, bad=bad):
                tensor = tensor.clone()
                if name == spoiled:
                    tensor.view(-1)[-1] = bad
                return tensor

            with pytest.raises(ValueError, match=f"^{spoiled}: expected finite values"):
                row(with_tensors(row.kind.plain, spoil))


@every_row
def test_refuses_what_is_no_energy_of_its_kind(row):
    for energy, message in row.kind.refused:
        with pytest.raises(ValueError, match=f"^{message}"):
            row(energy)


@rows_that(lambda row: row.refuses)
def test_refuses_options_that_its_kind_does_not_have(row):
    some = {"known": torch.zeros(3, 4), "top_k": 2}
    for option in row.refuses:
        with pytest.raises(ValueError, match=f"^{option}: expected"):
            row.function(row.kind.plain, **row.settings, **{option: some[option]})
