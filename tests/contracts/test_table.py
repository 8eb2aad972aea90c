"""Every public routine has a row for every kind of energy that it takes, and there are no other rows."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec

from contracts.kinds import KINDS
from contracts.routines import EXEMPT, ROWS, every_row
from contracts.rows import SOLVERS, Row
from lmbm_torch import inference

OPTIONS = {"known", "top_k", "generator"}
ENERGIES = re.compile(r"Sequence\[\w+\]|\w*Energy\b")


@cache
def public_functions() -> dict[str, Callable[..., object]]:
    """Those of the modules that the package's docstring lists, by module and name, and its own."""
    bullets = re.findall(r"^\* .*(?:\n  .*)*", inspect.getdoc(inference) or "", re.M)
    listed = [name for bullet in bullets for name in re.findall(r"``([\w.]+)``", bullet)]
    functions = {}
    for module in listed:
        if module in SOLVERS and find_spec(SOLVERS[module]) is None:
            continue
        home = import_module(f"{inference.__name__}.{module}")
        # What the manual does not name is listed nowhere, and is held to its promises all the same.
        names = getattr(home, "__all__", ()) or [name for name in vars(home) if not name.startswith("_")]
        for name in names:
            function = getattr(home, name)
            if inspect.isfunction(function) and inspect.unwrap(function).__module__ == home.__name__:
                functions[f"{module}.{name}"] = function
    for name in inference.__all__:
        function = getattr(inference, name)
        if inspect.isfunction(function):
            home = inspect.unwrap(function).__module__.removeprefix(f"{inference.__name__}.")
            functions[f"{home}.{name}"] = function
    return functions


def taken(function: Callable[..., object]) -> set[str]:
    """The energies that its first argument may be, as it is annotated."""
    first = next(iter(inspect.signature(function).parameters.values()))
    # A name of the module's own stands for several kinds.
    own = getattr(inspect.getmodule(inspect.unwrap(function)), str(first.annotation), first.annotation)
    return {*ENERGIES.findall(str(own))}


def rows() -> list[Row]:
    """Those of modules that can be imported."""
    return [
        row for row in ROWS if row.name.partition(".")[0] not in SOLVERS or row.name in public_functions()
    ]


def test_every_public_routine_has_a_row_or_a_reason():
    named = {row.name for row in rows()}
    assert named | {*EXEMPT} == {*public_functions()}
    assert not named & {*EXEMPT}


def test_every_kind_that_a_routine_takes_has_a_row():
    wanted = {
        (name, kind.name)
        for name, function in public_functions().items()
        if name not in EXEMPT
        for kind in KINDS
        if kind.classes & taken(function)
    }
    assert wanted == {(row.name, row.kind.name) for row in rows()}


def test_every_energy_is_of_a_kind():
    classes = {name for kind in KINDS for name in kind.classes}
    for name, function in public_functions().items():
        assert taken(function) <= classes, name
        assert taken(function) or name in EXEMPT, name


@every_row
def test_rows_say_what_the_routine_can_be_given(row):
    has = OPTIONS & {*inspect.signature(row.function).parameters}
    assert {*row.takes, *row.refuses, *row.spares} == has


def test_names_of_rows_differ():
    assert len({str(row) for row in ROWS}) == len(ROWS)
