"""Servers of the manual under load for minutes: each answer is the expected one, and memory stays flat."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts" / "bench"))

import soak

SECONDS = 300.0
# Growth of a server within four minutes, MiB: what the interpreter allocates (scripts/bench/soak.py).
SLACK_MIB = 8.0
# Of the time to an answer; on a machine with other work, see the table of scripts/bench/soak.py.
MOST_P99_MS = 2_000.0


@pytest.mark.slow
@pytest.mark.parametrize("server", ["tags", "annotate"])
def test_a_server_answers_for_minutes_in_the_same_memory(server):
    for library in ("fastapi", "uvicorn"):
        pytest.importorskip(library, reason=f"the extra 'serve' is not installed: no {library}")
    row = soak.soaked(server, SECONDS, rate=100.0, clients=4)
    print(row)
    assert row["requests"] > 10 * SECONDS
    assert row["refused"] >= row["requests"] // soak.WRONG - 4
    assert row["unexpected"] == 0
    assert row["late_mib"] - row["early_mib"] < SLACK_MIB
    assert row["p99_ms"] < MOST_P99_MS
