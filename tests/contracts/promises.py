"""What every inference routine promises: the checks, for routines over any kind of energy.

``directed_contracts``, ``pairwise_contracts`` and ``bipartite_contracts`` hold one table of routines each. A
new routine adds a row there; its capabilities choose which of the checks apply.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from lmbm_torch.inference import Decoding

Objective = Callable[[Any, Tensor], Tensor]
Check = Callable[["Kind", "Routine"], None]


@dataclass(frozen=True)
class Routine:
    """One row: a routine and what it is capable of.

    Args:
        function: (energy, ...) → result, with ``known`` and ``generator`` where it takes them.
        settings: its other arguments.
        decodes: for a decoder, the objective that it maximises.
        exact: every answer is proven.
        stochastic: draws from the generator.
        takes_known: accepts labels that are known.
        differentiable: gradients flow to the energy's tensors.
        renaming_matters: it updates labels in their order, so that renaming them changes where it ends.
        residual_is_gap: of a decoder, what is left to prove; not a change of messages.
    """

    function: Callable[..., Any]
    settings: Mapping[str, Any] = field(default_factory=dict)
    decodes: Objective | None = None
    exact: bool = False
    stochastic: bool = False
    takes_known: bool = False
    differentiable: bool = False
    renaming_matters: bool = False
    residual_is_gap: bool = True

    @property
    def name(self) -> str:
        """Module, function and settings."""
        module = self.function.__module__.rpartition(".")[2]
        settings = (f"{name}={value:g}" for name, value in self.settings.items())
        return ", ".join([f"{module}.{self.function.__name__}", *settings])

    def __call__(self, energy: Any, known: Tensor | None = None, seed: int = 0) -> dict[str, Tensor]:
        """The result's tensors by name."""
        given: dict[str, Any] = {**self.settings}
        if self.takes_known:
            given["known"] = known
        if self.stochastic:
            given["generator"] = torch.Generator(energy.device).manual_seed(seed)
        return tensors_of(self.function(energy, **given))


@dataclass(frozen=True)
class Kind:
    """One kind of energy, and its table.

    Args:
        routines: the table.
        energies: dtype → one energy of every form.
        plain: three examples of four labels, as the refusals want them.
        large: so many labels that two samples of it hardly agree.
        draw_known: (seed, energy) → labels that are known, some of them.
        learnt: the tensor of an energy to which gradients are looked for.
        shapes: (routine, energy, dtype) → dtype and shape of what is not the same for all kinds.
        oracles: for each objective the exact decoder, and the sign that makes its objective a maximum.
        checks: of this kind alone.
        rounded: results that rounding may change, beside numbers that it changes little.
        shared: results of exact routines that examples of a batch owe to each other.
    """

    routines: tuple[Routine, ...]
    energies: Callable[[torch.dtype], list[Any]]
    plain: Any
    large: Any
    draw_known: Callable[[int, Any], Tensor]
    learnt: str
    shapes: Callable[[Routine, Any, torch.dtype], dict[str, tuple[torch.dtype, tuple[int, ...]]]]
    oracles: dict[Objective, tuple[Callable[..., Decoding], int]]
    checks: tuple[tuple[Check, Callable[[Routine], bool]], ...]
    rounded: frozenset[str] = frozenset()
    shared: frozenset[str] = frozenset()

    def cases(self, routine: Routine, dtype: torch.dtype = torch.float64) -> list[tuple[Any, Tensor | None]]:
        """What the checks run a routine on: each energy, and again with known labels."""
        drawn: list[tuple[Any, Tensor | None]] = [(energy, None) for energy in self.energies(dtype)]
        if routine.takes_known:
            drawn += [(energy, self.draw_known(seed, energy)) for seed, (energy, _) in enumerate(drawn)]
        return drawn


def tensors_of(result: object, prefix: str = "") -> dict[str, Tensor]:
    """The tensors of a result or an energy, by name."""
    if isinstance(result, Tensor):
        return {prefix or "result": result}
    if not is_dataclass(result):
        return {}
    named: dict[str, Tensor] = {}
    for part in fields(result):
        named |= tensors_of(getattr(result, part.name), f"{prefix}{'.' * bool(prefix)}{part.name}")
    return named


def negative_hinge(energy: Any, labels: Tensor) -> Tensor:
    """What ``decode_hinge`` maximises, its results being of the opposite sign."""
    return -(1 - energy.local_margins(labels)).clamp(min=0).sum(-1)


def assert_same(came: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Equal names and, up to rounding, values."""
    assert came.keys() == expected.keys()
    for name, tensor in came.items():
        torch.testing.assert_close(tensor, expected[name], msg=lambda text, name=name: f"{name}: {text}")


def over_labels(result: dict[str, Tensor], change: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
    """The result with ``change`` made to every tensor that has a labels axis."""
    wide = {"labels", "standard_error"} if "labels" in result else {"result"}
    return {
        name: change(tensor) if name in wide and tensor.ndim > 1 else tensor
        for name, tensor in result.items()
    }


def renames_labels(rename: Callable[[Any, Tensor], Any]) -> Check:
    """The check that renaming labels, (energy, order) → energy, renames results."""

    def check_renaming_labels_renames_results(kind: Kind, routine: Routine) -> None:
        for seed, (energy, known) in enumerate(kind.cases(routine)):
            order = torch.randperm(energy.num_labels, generator=torch.Generator().manual_seed(seed))
            came = routine(rename(energy, order), None if known is None else known[:, order])
            expected = over_labels(routine(energy, known), lambda tensor, order=order: tensor[..., order])
            assert_same(came, expected)

    return check_renaming_labels_renames_results


def flips_labels(flip_labels: Callable[[Any, Tensor], Any]) -> Check:
    """The check that exchanging 0 and 1 of some labels, (energy, mask) → energy, exchanges theirs."""

    def check_flipping_labels_flips_results(kind: Kind, routine: Routine) -> None:
        for seed, (energy, known) in enumerate(kind.cases(routine)):
            flip = torch.randint(2, (energy.num_labels,), generator=torch.Generator().manual_seed(seed)) == 1
            flipped_known = None if known is None else torch.where(flip, 1 - known, known)
            came = routine(flip_labels(energy, flip), flipped_known)
            expected = over_labels(
                routine(energy, known), lambda tensor, flip=flip: torch.where(flip, 1 - tensor, tensor)
            )
            assert_same(came, expected)

    return check_flipping_labels_flips_results


def check_shapes_and_dtypes(kind: Kind, routine: Routine) -> None:
    for dtype in (torch.float32, torch.float64):
        for energy, known in kind.cases(routine, dtype):
            batch = energy.batch_size
            expected = {
                "log_partition": (dtype, (batch,)),
                "objective": (dtype, (batch,)),
                "bound": (dtype, (batch,)),
                "nodes": (torch.int64, (batch,)),
                "status.exact": (torch.bool, (batch,)),
                "status.converged": (torch.bool, (batch,)),
                "status.num_iters": (torch.int64, (batch,)),
                "status.residual": (dtype, (batch,)),
                "result": (dtype, (batch,)),
                **kind.shapes(routine, energy, dtype),
            }
            for name, tensor in routine(energy, known).items():
                assert (name, tensor.dtype, tuple(tensor.shape)) == (name, *expected[name])
                assert tensor.device == energy.device


def check_precision(kind: Kind, routine: Routine) -> None:
    rounded_cases = kind.cases(routine, torch.float32)
    for (energy, known), (rounded, _) in zip(kind.cases(routine), rounded_cases, strict=True):
        fine, coarse = routine(energy, known), routine(rounded, known)
        for name in coarse.keys() - kind.rounded:
            torch.testing.assert_close(coarse[name], fine[name].to(coarse[name].dtype), rtol=1e-4, atol=1e-5)


def check_batch_of_one(kind: Kind, routine: Routine) -> None:
    shared = kind.shared if routine.exact else frozenset()
    for energy, known in kind.cases(routine):
        together = routine(energy, known)
        for example in range(energy.batch_size):
            row = slice(example, example + 1)
            alone = routine(energy.select(row), None if known is None else known[row])
            own = {name: tensor for name, tensor in alone.items() if name not in shared}
            assert_same(own, {name: tensor[row] for name, tensor in together.items() if name not in shared})


def check_determinism(kind: Kind, routine: Routine) -> None:
    for energy, known in kind.cases(routine):
        first, again = routine(energy, known), routine(energy, known)
        assert all(torch.equal(first[name], again[name]) for name in first)


def check_seeds_differ(kind: Kind, routine: Routine) -> None:
    first, other = routine(kind.large, seed=0), routine(kind.large, seed=1)
    assert any(not torch.equal(first[name], other[name]) for name in first)


def check_arguments_are_left_alone(kind: Kind, routine: Routine) -> None:
    for energy, known in kind.cases(routine):
        given = {**tensors_of(energy), **({} if known is None else {"known": known})}
        before = {name: (tensor.clone(), tensor._version) for name, tensor in given.items()}
        routine(energy, known)
        for name, tensor in given.items():
            content, version = before[name]
            assert tensor._version == version, name
            torch.testing.assert_close(tensor, content, rtol=0, atol=0, equal_nan=True)


def check_gradients(kind: Kind, routine: Routine) -> None:
    for energy, known in kind.cases(routine):
        learnt = replace(energy, **{kind.learnt: getattr(energy, kind.learnt).clone().requires_grad_()})
        results = routine(learnt, known)
        for name, tensor in results.items():
            assert tensor.requires_grad == (routine.differentiable and name in {"result", "log_partition"})
        assert_same({name: tensor.detach() for name, tensor in results.items()}, routine(energy, known))


def check_runs_in_inference_mode(kind: Kind, routine: Routine) -> None:
    with torch.inference_mode():
        made_here = [routine(energy, known) for energy, known in kind.cases(routine)]
    for came, (energy, known) in zip(made_here, kind.cases(routine), strict=True):
        assert_same(came, {name: tensor.detach() for name, tensor in routine(energy, known).items()})


def check_refuses_nan_and_infinity(kind: Kind, routine: Routine) -> None:
    potentials = {
        name: tensor for name, tensor in tensors_of(kind.plain).items() if tensor.is_floating_point()
    }
    for name, tensor in potentials.items():
        for bad in (torch.nan, torch.inf):
            spoiled = tensor.clone()
            spoiled.view(-1)[-1] = bad
            with pytest.raises(ValueError, match=f"^{name}: expected finite values"):
                routine(replace(kind.plain, **{name: spoiled}))


def check_known_labels_are_kept(kind: Kind, routine: Routine) -> None:
    for energy, known in kind.cases(routine):
        if known is None:
            continue
        result, is_given = routine(energy, known), ~known.isnan()
        for name in result.keys() & {"labels", "visible", "result"}:
            if result[name].shape == known.shape:
                torch.testing.assert_close(result[name][is_given].to(known.dtype), known[is_given])
        whole = known.nan_to_num().long()
        assert_same(routine(energy, whole), routine(energy, whole.to(energy.dtype)))


def check_nothing_known_is_all_missing(kind: Kind, routine: Routine) -> None:
    for energy, known in kind.cases(routine):
        if known is not None:
            assert_same(routine(energy, torch.full_like(known, torch.nan)), routine(energy))


def check_refuses_strange_known(kind: Kind, routine: Routine) -> None:
    for known in (
        torch.zeros(3, 5),
        torch.zeros(2, 4),
        torch.full((3, 4), 0.5),
        torch.full((3, 4), -1),
        torch.full((3, 4), torch.inf),
        torch.zeros(3, 4, device="meta"),
    ):
        with pytest.raises(ValueError, match=r"^known: expected"):
            routine(kind.plain, known)


def check_decodings_are_worth_what_they_say(kind: Kind, routine: Routine) -> None:
    assert routine.decodes is not None
    oracle, sign = kind.oracles[routine.decodes]
    for energy, known in kind.cases(routine):
        found, best = routine(energy, known), sign * oracle(energy, known=known).objective
        objective, bound = sign * found["objective"], sign * found["bound"]
        torch.testing.assert_close(routine.decodes(energy, found["labels"]), objective)
        assert (objective <= best + 1e-6).all()
        assert (bound >= best - 1e-6).all()
        proven = found["status.exact"]
        torch.testing.assert_close(objective[proven], best[proven])
        torch.testing.assert_close(bound[proven], best[proven])
        if routine.residual_is_gap:
            torch.testing.assert_close(found["status.residual"], bound - objective)


def check_every_answer_is_proven(kind: Kind, routine: Routine) -> None:
    for energy, known in kind.cases(routine):
        result = routine(energy, known)
        assert result["status.exact"].all()
        assert result["status.converged"].all()
        assert (result["status.residual"] == 0).all()


# Each check, and the routines that it is for.
CHECKS: tuple[tuple[Check, Callable[[Routine], bool]], ...] = (
    (check_shapes_and_dtypes, lambda routine: True),
    (check_precision, lambda routine: not routine.stochastic),
    (check_batch_of_one, lambda routine: not routine.stochastic),
    (check_determinism, lambda routine: True),
    (check_seeds_differ, lambda routine: routine.stochastic),
    (check_arguments_are_left_alone, lambda routine: True),
    (check_gradients, lambda routine: True),
    (check_runs_in_inference_mode, lambda routine: True),
    (check_refuses_nan_and_infinity, lambda routine: True),
    (check_known_labels_are_kept, lambda routine: routine.takes_known),
    (check_nothing_known_is_all_missing, lambda routine: routine.takes_known),
    (check_refuses_strange_known, lambda routine: routine.takes_known),
    (check_decodings_are_worth_what_they_say, lambda routine: routine.decodes is not None),
    (check_every_answer_is_proven, lambda routine: routine.exact),
)
