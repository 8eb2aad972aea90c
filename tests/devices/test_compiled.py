"""Models and losses under ``torch.compile(fullgraph=True)``: one graph each, and nothing let through."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from sweeps import slow

from devices.compiled import GRAPHS, REFUSED

TESTS = Path(__file__).parents[1]
# Each takes a second or more to trace, or is much like one that stays.
LONG = (
    "network of triples, likelihood",
    "machine, pseudo-likelihood",
    "machine of features in cliques, hinge",
    "hidden units, mle_mf",
    "hidden units, pcd",
    "machine, exact likelihood",
    "machine of triples, hinge",
    "hidden Markov, numbers",
    "hidden Markov, counts",
    "images",
)


def problems_of(*names: str, device: str = "cpu") -> dict[str, str]:
    folders = [str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}
    command = [sys.executable, "-W", "ignore", "-m", "devices.compiled", device, *names]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    return dict(json.loads(line) for line in found.stdout.splitlines())


@pytest.fixture(scope="module")
def problems() -> dict[str, str]:
    """What is wrong with each graph, all traced by one program."""
    return problems_of(*(name for name in (*GRAPHS, *REFUSED) if name not in LONG))


@pytest.mark.parametrize("name", [name for name in GRAPHS if name not in LONG])
def test_losses_and_scores_are_one_graph(problems, name):
    assert problems[name] == ""


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_refused_in_compiled_code(problems, name):
    assert problems[name] == ""


@pytest.mark.parametrize("name", [slow(name) for name in LONG])
def test_long_graphs(name):
    assert problems_of(name)[name] == ""
