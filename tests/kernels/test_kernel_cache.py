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
from lmbm_torch.kernels import installed, jit, numba_internals
from lmbm_torch.kernels.jit import njit, part

INNER = """
from lmbm_torch.kernels.jit import njit

@njit(cache=True)
def inner(value):
    return value + 1
"""
OUTER = """
from .inner import inner
from lmbm_torch.kernels.jit import njit

@njit(cache=True)
def outer(value):
    return 10 * inner(value)
"""
RUN = """
from lmbm_torch.kernels import installed

kernel = installed.compiled("dual.outer").outer
print(kernel(2), "loaded" if sum(kernel.stats.cache_hits.values()) else "compiled")
"""

WITH_ARRAYS = """
import numpy as np

from lmbm_torch.kernels.jit import njit

@njit(cache=True)
def outer(value):
    values = np.arange(value).reshape((2, -1))
    if value > 2:
        raise ValueError("too many", value)
    return values.sum()
"""
RUN_WITH_ARRAYS = """
import sys

from lmbm_torch.kernels import installed

kernel = installed.compiled("dual.outer").outer
found = kernel(2), "numba.np.arrayobj" in sys.modules
try:
    kernel(4)
except ValueError as error:
    print(*found, *error.args)
"""


@pytest.fixture
def package(tmp_path):
    """A copy of the compiled rooms, to be edited, with a loop that calls one of another file."""
    copy = tmp_path / "lmbm_torch"
    source = Path(lmbm_torch.__file__).parent
    shutil.copytree(source / "kernels", copy / "kernels", ignore=shutil.ignore_patterns("__pycache__"))
    for needed in ("extras.py", "files.py"):
        shutil.copy(source / needed, copy)
    (copy / "__init__.py").write_text("")
    (copy / "kernels" / "dual" / "inner.py").write_text(INNER)
    (copy / "kernels" / "dual" / "outer.py").write_text(OUTER)
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
    return sorted((package / "kernels" / "dual" / room).glob(f"*{numba_internals.SUFFIX}"))


def test_an_inner_loop_of_another_file_may_change(package):
    assert answer(start(package)) == ("30 compiled", "")
    assert answer(start(package)) == ("30 loaded", "")
    inner = package / "kernels" / "dual" / "inner.py"
    inner.write_text(INNER.replace("+ 1", "+ 2"))
    assert answer(start(package)) == ("40 compiled", "")
    # The codes of the sources that were are gone.
    assert len(codes(package)) == 2


def test_where_nothing_can_be_written_kernels_are_compiled_and_it_is_said_once(package):
    # A file stands where each folder would be, since permissions do not stop an administrator.
    for room in ("dual", "search"):
        (package / "kernels" / room / "__pycache__").write_text("")
    output, warned = answer(start(package, HOME="/dev/null"))
    assert output == "30 compiled"
    assert warned.count("RuntimeWarning") == 1
    assert "set NUMBA_CACHE_DIR to a writable folder" in warned
    folder = package.parent / "own"
    assert answer(start(package, HOME="/dev/null", NUMBA_CACHE_DIR=str(folder))) == ("30 compiled", "")
    assert len([*folder.rglob(f"*{numba_internals.SUFFIX}")]) == 2


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
@pytest.mark.parametrize("owned_by_others", ["a folder", "a file", "no folder but open to all"])
def test_code_that_others_can_write_is_compiled_anew_and_it_is_said_once(package, owned_by_others):
    if os.geteuid() and "no folder" not in owned_by_others:
        pytest.skip("only root gives files away")
    assert answer(start(package)) == ("30 compiled", "")
    before = codes(package)
    folder = package / "kernels" / "dual" / "__pycache__"
    match owned_by_others:
        case "a folder":
            os.chown(folder, 12345, 12345)
        case "a file":
            for code in before:
                os.chown(code, 12345, 12345)
        case _:
            folder.chmod(0o777)
    output, warned = answer(start(package))
    assert output == "30 compiled"
    assert warned.count("RuntimeWarning") == 1
    assert "is neither read nor kept, because other users can write there" in warned
    # Code of one's own stands in its place, or in the user's folder.
    assert answer(start(package))[0] == "30 loaded"
    replaced = all(code.stat().st_uid == os.geteuid() for code in codes(package))
    elsewhere = [*(package.parent / "home").rglob(f"*{numba_internals.SUFFIX}")]
    assert (replaced and not elsewhere) if owned_by_others == "a file" else len(elsewhere) == len(before)


def test_code_is_read_where_it_cannot_be_written(package):
    first = answer(start(package, HOME="/dev/null"))
    assert first == ("30 compiled", "")
    assert answer(start(package, HOME="/dev/null", NUMBA_CACHE_DIR="/dev/null")) == ("30 loaded", "")


def test_code_that_is_read_needs_no_module_of_the_compiler_s(package):
    (package / "kernels" / "dual" / "outer.py").write_text(WITH_ARRAYS)
    assert answer(start(package, RUN_WITH_ARRAYS)) == ("1 True too many 4", "")
    assert answer(start(package, RUN_WITH_ARRAYS)) == ("1 False too many 4", "")


@pytest.mark.slow
def test_processes_that_compile_at_once_do_not_disturb_each_other(package):
    processes = [start(package) for _ in range(3)]
    assert {answer(process)[0].split()[0] for process in processes} == {"30"}
    assert answer(start(package)) == ("30 loaded", "")
    assert len(codes(package)) == len([*(package / "kernels" / "dual" / "__pycache__").iterdir()])


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
    assert not [*tmp_path.rglob(f"*{numba_internals.SUFFIX}")]


@pytest.mark.parametrize("damage", ["cut", "longer", "empty", "another program's", "another function's"])
def test_damaged_and_foreign_files_are_compiled_anew(tmp_path, monkeypatch, damage):
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    njit(doubled.py_func, cache=True)(3)
    (file,) = tmp_path.rglob(f"*{numba_internals.SUFFIX}")
    whole = file.read_bytes()
    njit(tripled.py_func, cache=True)(3)
    (other,) = tmp_path.rglob(f"*tripled*{numba_internals.SUFFIX}")
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

    monkeypatch.setattr(numba_internals.CompileResult, "_rebuild", refuse)
    again = njit(doubled.py_func, cache=True)
    assert again(3) == 6
    assert not again.stats.cache_hits


@pytest.mark.parametrize("error", [ImportError, OSError, SystemError, AttributeError, TypeError])
def test_without_a_numba_that_works_kernels_run_interpreted(monkeypatch, error):
    monkeypatch.setattr(jit, "missing", error("initialization of _internal failed"))
    with pytest.warns(RuntimeWarning, match="numba cannot be used .*: initialization of .* run interpreted"):
        assert not installed.has_numba.__wrapped__()
    assert njit(cache=True)(lambda x: x / np.float64(0))(1.0) == np.inf
    assert part(len) is len
