"""No file makes a reader fail in another way than by a ValueError that names the file."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fuzz.stored import DESCRIPTIONS, RECORDS
from fuzz.target import refused
from fuzz.targets import ARRAYS, TARGETS, archive
from hypothesis import given, settings
from hypothesis import strategies as st

# What stands in for an array: of another shape, type or range, or needing pickle.
STRANGE = [
    np.array(3),
    np.zeros((0, 2)),
    np.zeros((3, 0)),
    np.zeros((2, 2, 2)),
    np.array(["a", "b"]),
    np.array([[np.nan, np.inf]]),
    np.array([-1, 2**31]),
    np.array([2**62, 2**62]),
    np.array([0, 0], np.uint8),
    np.array([1 + 2j]),
    np.array(["2026-01-01"], "datetime64[D]"),
    np.array([{}, None], object),
    np.zeros(2, [("a", "f8")]),
]


@pytest.mark.parametrize("name", TARGETS)
def test_the_files_to_damage_are_valid(tmp_path, name):
    assert not refused(TARGETS[name], tmp_path, TARGETS[name].valid)


@st.composite
def damaged(draw, valid: bytes, words: tuple[bytes, ...]) -> bytes:
    """A file after some edits: bytes and words put in, parts left out or written twice."""
    content = valid
    for _ in range(draw(st.integers(1, 4))):
        first = draw(st.integers(0, len(content)))
        last = draw(st.integers(first, min(first + 20, len(content))))
        piece = draw(st.binary(max_size=4) | st.sampled_from([b"", content[first:last] * 2, *words]))
        content = content[:first] + piece + content[last:]
    return content


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("name", TARGETS)
def test_edited_files(tmp_path, name):
    target = TARGETS[name]

    @settings(max_examples=25)
    @given(content=damaged(target.valid, target.words))
    def no_other_failure(content):
        refused(target, tmp_path, content)

    no_other_failure()


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("name", TARGETS)
def test_files_of_any_bytes(tmp_path, name):
    @settings(max_examples=20)
    @given(content=st.binary(max_size=200))
    def no_other_failure(content):
        refused(TARGETS[name], tmp_path, content)

    no_other_failure()


@pytest.mark.parametrize("name", ARRAYS)
def test_archives_of_strange_arrays(tmp_path, name):
    @settings(max_examples=60)
    @given(key=st.sampled_from(sorted(ARRAYS[name])), strange=st.sampled_from(range(len(STRANGE) + 1)))
    def no_other_failure(key, strange):
        arrays = dict(ARRAYS[name])
        if strange == len(STRANGE):
            del arrays[key]
        else:
            arrays[key] = STRANGE[strange]
        refused(TARGETS[name], tmp_path, archive(arrays))

    no_other_failure()


@pytest.mark.parametrize(
    "pickled", [b"", b"\x80\x02", b"\x80\x02e.", b"\x80\x02q\x00.", b"\x80\x02X\x05", b"0"]
)
def test_damaged_pickles(tmp_path, pickled):
    assert refused(TARGETS["checkpoint pickle"], tmp_path, pickled)


# What stands in for a value of JSON.
STRANGE_VALUES = [
    *(None, True, -1, 0, 2**63, 2**100, 1e9, float("nan"), float("inf"), "", "f_score", "\x00", "<m8", "|S0"),
    *([], [[]], [-1, 0], {}, {":tuple": []}, {":tensor": ""}, {":dict": [[1, 2]]}, {":kind": "TiedCliques"}),
]


def places(value: Any, way: tuple = ()) -> Iterator[tuple]:
    """The way to every value inside of one."""
    yield way
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from places(value[key], (*way, key))


def replaced(value: Any, way: tuple, other: Any) -> Any:
    """The same with another value, or none, at the end of the way."""
    if not way:
        return other
    copy = value.copy()
    if len(way) == 1 and other is ...:
        del copy[way[0]]
    else:
        copy[way[0]] = replaced(value[way[0]], way[1:], other)
    return copy


@pytest.mark.parametrize("name", [*RECORDS, *DESCRIPTIONS])
def test_records_of_strange_values(tmp_path, name):
    target = TARGETS[name]
    valid = json.loads(target.valid)
    ways = list(places(valid))

    @settings(max_examples=150)
    @given(way=st.sampled_from(ways[1:]), strange=st.sampled_from([..., *STRANGE_VALUES]))
    def no_other_failure(way, strange):
        refused(target, tmp_path, json.dumps(replaced(valid, way, strange)).encode())

    no_other_failure()


@pytest.mark.slow
def test_the_fuzzer_runs(tmp_path):
    pytest.importorskip("atheris", reason="the optional extra fuzz is not installed")
    script = Path(__file__).parents[2] / "scripts" / "fuzz" / "readers.py"
    fuzzed = subprocess.run(
        [sys.executable, script, "idx", "-runs=20"], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert fuzzed.returncode == 0, fuzzed.stderr
    assert "Done 20 runs" in fuzzed.stderr
