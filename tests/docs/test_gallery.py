"""Examples of the gallery are what Sphinx-Gallery takes, and run within seconds; what they import is public.

That their imports exist is tested with all code for readers, in tests/architecture.
"""

from __future__ import annotations

import ast
import time
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))
LONGEST_SECONDS = 5.0


def test_there_are_enough_of_them():
    assert len(EXAMPLES) >= 15
    assert [path.name[:8] for path in EXAMPLES] == [f"plot_{n:02}_" for n in range(1, len(EXAMPLES) + 1)]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_has_a_title_and_a_picture(path):
    text = path.read_text(encoding="utf-8")
    title, underline = (ast.get_docstring(ast.parse(text)) or "").split("\n")[:2]
    assert set(underline) == {"="}
    assert len(underline) == len(title)
    assert "plt.show()" in text or "from lmbm_torch.viz." in text
    assert "LMBM_DATA" not in text


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_within_seconds(path, monkeypatch):
    monkeypatch.delenv("LMBM_DATA", raising=False)
    mpl.use("agg")
    code = compile(path.read_text(encoding="utf-8"), path.name, "exec")
    # The first run compiles kernels.
    exec(code, {})
    started = time.process_time()
    exec(code, {})
    plt.close("all")
    assert time.process_time() - started < LONGEST_SECONDS
