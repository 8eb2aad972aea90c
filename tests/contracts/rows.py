"""One row of the table: what a routine of inference takes, returns and promises for a kind of energy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from importlib import import_module
from typing import Any

import pytest
import torch
from shape_checking import shape_checks
from torch import Tensor

from contracts.enumerations import Enumeration, Objective
from contracts.kinds import Kind, members
from contracts.results import Field, schema, tensors_of

SOLVERS = {"relaxations.cost_function_network": "pytoulbar2"}
"""Modules, and what must be installed for them that not every platform has."""


@dataclass(frozen=True)
class Case:
    """An energy of the kind, what is known of it, and what the routine makes of it."""

    form: int
    energy: Any
    known: Tensor | None
    result: dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class Row:
    """A routine for one kind of energy.

    Args:
        kind: of energy.
        name: module and function.
        settings: its other arguments.
        returns: the type of its result, or content and axes of a bare tensor.
        takes: of ``known``, ``top_k`` and ``generator`` those that it has.
        refuses: those that it has for other kinds alone.
        spares: those that it has, but for larger models than these.
        decodes: for a decoder, its objective.
        claims: "field relation quantity", what else its results are, by enumeration.
        proven: every status says exact and converged, with nothing left.
        residual_is_gap: of a decoder, the residual is what is left to prove; not a change of messages.
        gradients: the fields through which gradients flow to the energy.
        stationary: they are the values' own gradients at a fixed point alone.
        breaks: symmetries of its kind that it does not have, updating labels one after another or measuring
            by what is not symmetric.
        incidental: fields that tell how the answer was found, which other names or rounding may change.
        shared: fields that examples of a batch owe to each other.
        limits: how closely results agree that should, where solvers leave that open.
        marks: of its tests.
    """

    kind: Kind
    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    returns: str = "Decoding"
    takes: tuple[str, ...] = ("known",)
    refuses: tuple[str, ...] = ()
    spares: tuple[str, ...] = ()
    decodes: Objective | None = None
    claims: tuple[str, ...] = ()
    proven: bool = False
    residual_is_gap: bool = True
    gradients: tuple[str, ...] = ()
    stationary: bool = False
    breaks: tuple[str, ...] = ()
    incidental: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()
    limits: Mapping[str, float] = field(default_factory=dict)
    marks: tuple[pytest.MarkDecorator, ...] = ()

    def __str__(self) -> str:
        settings = (f"{name}={_spelled(value)}" for name, value in self.settings.items())
        return ", ".join([f"{self.kind.name}-{self.name}", *settings])

    @cached_property
    def function(self) -> Callable[..., Any]:
        module, _, function = self.name.rpartition(".")
        if module in SOLVERS:
            pytest.importorskip(SOLVERS[module])
        return getattr(import_module(f"lmbm_torch.inference.{module}"), function)

    @cached_property
    def schema(self) -> dict[str, Field]:
        return schema(self.returns)

    @property
    def is_random(self) -> bool:
        return "generator" in self.takes

    def raw(self, energy: Any, known: Tensor | None = None, seed: int = 0, **more: Any) -> Any:
        """The result as it comes."""
        given: dict[str, Any] = {**self.settings, **more}
        if "known" in self.takes:
            given["known"] = known
        if self.is_random:
            given["generator"] = torch.Generator(members(energy)[0].device).manual_seed(seed)
        return self.function(energy, **given)

    def __call__(self, energy: Any, known: Tensor | None = None, **more: Any) -> dict[str, Tensor]:
        """The result's tensors by name."""
        return tensors_of(self.raw(energy, known, **more))

    @cache  # noqa: B019  # rows live as long as their module
    def cases(self, dtype: torch.dtype = torch.float64) -> tuple[Case, ...]:
        """Each form of energy, and again with known labels where it takes them; shapes are checked."""
        found = []
        for form, energy in enumerate(self.kind.energies(dtype)):
            for known in (None, self.kind.known(form)) if "known" in self.takes else (None,):
                with shape_checks():
                    result = self(energy, known)
                found.append(Case(form, energy, known, result))
        return tuple(found)

    def each_form(self) -> tuple[Case, ...]:
        """Each form once, every other with known labels where it takes them."""
        if "known" not in self.takes:
            return self.cases()
        return tuple(case for case in self.cases() if (case.known is None) == (case.form % 2 == 0))

    def few_cases(self) -> tuple[Case, ...]:
        """Those of three forms, for promises that hardly depend on the form."""
        return self.each_form()[:3]

    def enumeration(self, case: Case) -> Enumeration:
        return self.kind.enumeration(case.form, case.known is not None)


def _spelled(value: Any) -> str:
    if isinstance(value, partial):
        arguments = (f"{name}={_spelled(argument)}" for name, argument in value.keywords.items())
        return f"{_spelled(value.func)}({' '.join(arguments)})"
    if callable(value):
        return f"{value.__module__.rpartition('.')[2]}.{value.__name__}"
    return value if isinstance(value, str) else f"{value:g}"
