"""Compiled code is kept where that can be, found if it is whole, and made anew if any source changes."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numba
import numpy as np
import pytest

import lmbm_torch
from lmbm_torch.backends import installed, kernel_cache
from lmbm_torch.backends.jit import njit

INNER = """
from lmbm_torch.backends.jit import njit

@njit(cache=True)
def inner(value):
    return value + 1
"""
OUTER = """
from .inner import inner
from lmbm_torch.backends.jit import njit

@njit(cache=True)
def outer(value):
    return 10 * inner(value)
"""
RUN = """
from lmbm_torch.backends import installed

kernel = installed.compiled("dual.outer", "a test").outer
print(kernel(2), "loaded" if sum(kernel.stats.cache_hits.values()) else "compiled")
"""

WITH_ARRAYS = """
import numpy as np

from lmbm_torch.backends.jit import njit

@njit(cache=True)
def outer(value):
    values = np.arange(value).reshape((2, -1))
    if value > 2:
        raise ValueError("too many", value)
    return values.sum()
"""
RUN_WITH_ARRAYS = """
import sys

from lmbm_torch.backends import installed

kernel = installed.compiled("dual.outer", "a test").outer
found = kernel(2), "numba.np.arrayobj" in sys.modules
try:
    kernel(4)
except ValueError as error:
    print(*found, *error.args)
"""

RUN_BOTH = """
from lmbm_torch.backends import installed

inner = installed.compiled("dual.inner", "a test").inner
print(inner(2), "loaded" if sum(inner.stats.cache_hits.values()) else "compiled")
(code,) = [each.library for each in inner.overloads.values()]
if code._bitcode is not None:
    print(installed.compiled("dual.outer", "a test").outer(2), "read" if code._bitcode is None else "unread")
"""


@pytest.fixture
def package(tmp_path):
    """A copy of the compiled rooms, to be edited, with a loop that calls one of another file."""
    copy = tmp_path / "lmbm_torch"
    source = Path(lmbm_torch.__file__).parent
    shutil.copytree(source / "backends", copy / "backends", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(source / "files.py", copy)
    (copy / "__init__.py").write_text("")
    (copy / "backends" / "dual" / "compiled" / "inner.py").write_text(INNER)
    (copy / "backends" / "dual" / "compiled" / "outer.py").write_text(OUTER)
    return copy


def start(package, program=RUN, **environment):
    known = {"PATH": os.environ["PATH"], "HOME": str(package.parent / "home"), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", program],
        env={**known, **environment},
        cwd=package.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def answer(process):
    """What a process prints, and what it warns of."""
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return output.strip(), errors


def codes(package, room="__pycache__"):
    return sorted((package / "backends" / "dual" / "compiled" / room).glob(f"*{kernel_cache.SUFFIX}"))


def test_an_inner_loop_of_another_file_may_change(package):
    assert answer(start(package)) == ("30 compiled", "")
    assert answer(start(package)) == ("30 loaded", "")
    inner = package / "backends" / "dual" / "compiled" / "inner.py"
    inner.write_text(INNER.replace("+ 1", "+ 2"))
    assert answer(start(package)) == ("40 compiled", "")
    # The codes of the sources that were are gone.
    assert len(codes(package)) == 2


def test_where_nothing_can_be_written_kernels_are_compiled_and_it_is_said_once(package):
    # A file stands where each folder would be, since permissions do not stop an administrator.
    for room in ("dual/compiled", "search/plain"):
        (package / "backends" / room / "__pycache__").write_text("")
    output, warned = answer(start(package, HOME="/dev/null"))
    assert output == "30 compiled"
    assert warned.count("RuntimeWarning") == 1
    assert "let NUMBA_CACHE_DIR name a folder that can be written" in warned
    folder = package.parent / "own"
    assert answer(start(package, HOME="/dev/null", NUMBA_CACHE_DIR=str(folder))) == ("30 compiled", "")
    assert len([*folder.rglob(f"*{kernel_cache.SUFFIX}")]) == 2


def test_code_is_read_where_it_cannot_be_written(package):
    first = answer(start(package, HOME="/dev/null"))
    assert first == ("30 compiled", "")
    assert answer(start(package, HOME="/dev/null", NUMBA_CACHE_DIR="/dev/null")) == ("30 loaded", "")


def test_code_that_is_read_needs_no_module_of_the_compiler_s(package):
    (package / "backends" / "dual" / "compiled" / "outer.py").write_text(WITH_ARRAYS)
    assert answer(start(package, RUN_WITH_ARRAYS)) == ("1 True too many 4", "")
    assert answer(start(package, RUN_WITH_ARRAYS)) == ("1 False too many 4", "")


def test_what_a_caller_links_in_is_read_when_there_is_one(package):
    assert answer(start(package, RUN_BOTH)) == ("3 compiled", "")
    assert answer(start(package, RUN_BOTH)) == ("3 loaded\n30 read", "")


@pytest.mark.slow
def test_processes_that_compile_at_once_do_not_disturb_each_other(package):
    processes = [start(package) for _ in range(3)]
    assert {answer(process)[0].split()[0] for process in processes} == {"30"}
    assert answer(start(package)) == ("30 loaded", "")
    assert len(codes(package)) == len(
        [*(package / "backends" / "dual" / "compiled" / "__pycache__").iterdir()]
    )


@njit(cache=True)
def doubled(values):
    return 2 * values


@njit(cache=True)
def tripled(values):
    return 3 * values


def test_code_of_several_types_is_told_apart(tmp_path, monkeypatch):
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    first, second = njit(doubled.py_func, cache=True), njit(doubled.py_func, cache=True)
    arguments = (3, 0.5, np.ones(2), np.ones(2, np.float32))
    for argument in arguments:
        first(argument)
    for argument in arguments:
        found = second(argument)
        np.testing.assert_array_equal(found, 2 * argument)
        assert np.asarray(found).dtype == np.asarray(2 * argument).dtype
    assert sum(second.stats.cache_hits.values()) == len(arguments)
    second._cache.flush()
    assert not [*tmp_path.rglob(f"*{kernel_cache.SUFFIX}")]


@pytest.mark.parametrize("damage", ["cut", "longer", "empty", "another program's", "another function's"])
def test_damaged_and_foreign_files_are_compiled_anew(tmp_path, monkeypatch, damage):
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    njit(doubled.py_func, cache=True)(3)
    (file,) = tmp_path.rglob(f"*{kernel_cache.SUFFIX}")
    whole = file.read_bytes()
    njit(tripled.py_func, cache=True)(3)
    (other,) = tmp_path.rglob(f"*tripled*{kernel_cache.SUFFIX}")
    contents = {"cut": whole[:-100], "longer": whole + b"0", "empty": b""}
    contents["another program's"] = b"something else"
    file.write_bytes(contents.get(damage, other.read_bytes()))
    again = njit(doubled.py_func, cache=True)
    assert again(3) == 6
    assert not again.stats.cache_hits
    assert file.read_bytes()[:32] == hashlib.sha256(file.read_bytes()[32:]).digest()
    third = njit(doubled.py_func, cache=True)
    assert third(3) == 6
    assert third.stats.cache_hits


def test_code_that_cannot_be_rebuilt_is_compiled(tmp_path, monkeypatch):
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    njit(doubled.py_func, cache=True)(3)

    def refuse(*_):
        raise ValueError("made for another machine")

    monkeypatch.setattr(kernel_cache._Codes, "rebuild", refuse)
    again = njit(doubled.py_func, cache=True)
    assert again(3) == 6
    assert not again.stats.cache_hits


@pytest.mark.parametrize("error", [ImportError, OSError, RuntimeError, SystemError])
def test_without_a_compiler_that_works_the_plain_reference_runs(monkeypatch, error):
    def refuse(name):
        raise error("initialization of _internal failed")

    monkeypatch.setattr(installed, "import_module", refuse)
    with pytest.warns(RuntimeWarning, match="a test runs on its plain reference, .*: initialization of"):
        assert installed.compiled.__wrapped__("dual.network", "a test") is None
