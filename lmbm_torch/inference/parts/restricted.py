"""Energies that rules restrict, where routines take rules beside an energy."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

from lmbm_torch.constraints import Constraints, Rule
from lmbm_torch.energies import RestrictedEnergy
from lmbm_torch.inference.parts.allowed import check_rules

__all__ = ["taking_restricted"]

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def taking_restricted(routine: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """The same routine, which also takes a restricted energy: as the one within, under its rules as well."""

    @wraps(routine)
    def taking(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        energy: Any = args[0] if args else kwargs.get("energy")
        if not isinstance(energy, RestrictedEnergy):
            return routine(*args, **kwargs)
        given: Any = dict(kwargs, constraints=_rules_of(energy, kwargs.get("constraints")))
        given.pop("energy", None)
        return cast(Any, taking)(energy.base, *args[1:], **given)

    return taking


def _rules_of(energy: RestrictedEnergy, others: Any) -> Constraints:
    """The energy's rules, and others."""
    if others is not None:
        check_rules(energy, others, None)
    names = tuple(map(str, range(energy.num_labels))) if others is None else others.names
    rules = [
        Rule({at: weight for at, weight in enumerate(weights) if weight}, bound, "a rule of the energy")
        for weights, bound in zip(energy.rules.tolist(), energy.bounds.tolist(), strict=True)
    ]
    return Constraints((*rules, *(() if others is None else others.rules)), names)
