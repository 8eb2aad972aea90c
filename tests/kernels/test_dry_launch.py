"""The CUDA kernels of belief propagation as Triton's binder and ptxas see them, without a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton", reason="Triton is for Linux")

CAPABILITIES = (80, 86, 90, 120)

# Processor's seconds of a compilation: the slowest took 2.
MOST_SECONDS = 20.0

# Instructions of an iteration's loop over the messages of a thread, per message: scripts/cycle_model.py.
MOST_INSTRUCTIONS = 50.0


@dataclass(frozen=True)
class Launches:
    """A call of the kernels, and what may come of it.

    Args:
        case: the fields of ``dry_device.Case`` that are not as there.
        times: how often each kernel is launched.
        programs: how many are compiled.
    """

    case: dict[str, Any]
    times: dict[str, int] = field(default_factory=lambda: {"iterate": 1, "conclude": 1})
    programs: int = 2

    @property
    def ceilings(self) -> dict[str, tuple[int, int]]:
        """Bytes of stack, and instructions that load or store there (spills), for each kernel."""
        if self.case.get("dtype") == "float64" and self.case.get("damping"):
            # Of as many registers ptxas makes less for architecture 12.0, most of all of the widest rows.
            if self.case["capability"] == 120:
                return {"iterate": (24, 12), "conclude": (120, 62)}
            return {"iterate": (8, 3), "conclude": (104, 56)}
        # Rows that are fetched ahead are computed with in fewer registers, which an H200 found to be faster.
        ahead = self.case.get("dtype") != "float64" and self.case.get("visible", 784) >= 256
        return {"iterate": (8, 3) if ahead else (0, 0), "conclude": (0, 0)}


ALL = {"known": True, "keep": True, "pairs": True}

# All dtypes and capabilities, each at least once.
FEW = {
    "odds": Launches({"capability": 90, "pairs": True}),
    "odds in float64": Launches({"capability": 80, "dtype": "float64", "batch": 1}),
    "decided": Launches({"capability": 86, "product": "MIXED", "visible": 100}),
    "maxima": Launches(
        {"capability": 120, "product": "MAX", "known": True, "visible": 1, "hidden": 1, "batch": 3}
    ),
}
MORE = {
    "log-odds in float64": Launches({"capability": 90, "dtype": "float64", "damping": 0.1, "visible": 300}),
    # From nothing, the first iteration is another program than those after it.
    "several iterations": Launches(
        {"capability": 80, "start": False, "num_iters": 5, "visible": 40, "hidden": 70},
        times={"iterate": 5, "conclude": 1},
        programs=3,
    ),
}


def every() -> Iterator[Launches]:
    """All combinations at 784 columns, and the widest rows that the kernels take."""
    kinds = (("SUM", 0.0), ("SUM", 0.1), ("MIXED", 0.0), ("MIXED", 0.1), ("MAX", 0.0))
    dtypes = ("float32", "float64")
    for capability, dtype, (which, damping) in product(CAPABILITIES, dtypes, kinds):
        case = {"capability": capability, "dtype": dtype}
        case |= {"product": which, "damping": damping} | ALL | {"pairs": which == "SUM"}
        yield Launches(case)
    widest = (("float32", 4096), ("float64", 2048))
    for capability, (dtype, visible), damping in product(CAPABILITIES, widest, (0.0, 0.1)):
        case = {"capability": capability, "dtype": dtype, "visible": visible, "damping": damping}
        yield Launches(case | ALL | {"hidden": 40, "batch": 1})


def launched(cases: list[Launches]) -> list[dict[str, Any]]:
    """What comes of cases in a process in which Triton compiles."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    run = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("dry_device.py"))],
        input="".join(json.dumps(case.case) + "\n" for case in cases),
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return [json.loads(line) for line in run.stdout.splitlines()]


def check(wanted: Launches, came: dict[str, Any]) -> None:
    assert Counter(came["launches"]) == wanted.times
    assert len(came["programs"]) == wanted.programs
    for program in came["programs"]:
        stack, spills = wanted.ceilings[program["kernel"]]
        assert program["stack"] <= stack, program
        assert program["spills"] <= spills, program
        assert program["seconds"] <= MOST_SECONDS, program


@pytest.fixture(scope="module")
def few() -> dict[str, dict[str, Any]]:
    return dict(zip(FEW, launched([*FEW.values()]), strict=True))


@pytest.mark.parametrize("name", FEW)
def test_kernels_are_launched_and_compiled_without_spills(few, name):
    check(FEW[name], few[name])


def test_a_message_takes_as_many_instructions_as_the_model_says(few):
    (iterate,) = (program for program in few["odds"]["programs"] if program["kernel"] == "iterate")
    # A row of 1024 columns, by 128 threads.
    assert 40.0 <= iterate["loop"] / 8 <= MOST_INSTRUCTIONS


@pytest.mark.slow
def test_more_kernels_are_launched_and_compiled_without_spills():
    for wanted, came in zip(MORE.values(), launched([*MORE.values()]), strict=True):
        check(wanted, came)


@pytest.mark.slow
@pytest.mark.parametrize("capability", CAPABILITIES)
def test_all_kernels_compile_without_spills(capability):
    cases = [case for case in every() if case.case["capability"] == capability]
    for wanted, came in zip(cases, launched(cases), strict=True):
        check(wanted, came)
