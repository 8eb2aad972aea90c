"""Papers that docstrings name lead to the bibliography."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import lmbm_torch

pytest.importorskip("sphinx", reason="the extra 'docs' is not installed: no Sphinx")
sys.path.append(str(Path(__file__).parents[2] / "docs" / "extensions"))
papers = import_module("papers")
# Numbers that look like years and are none, and formats named by their year.
NO_PAPERS = ("Files of 2014", "form of 2014", "CoNLL-2000", "since 1970")
YEAR = re.compile(r"\b(?:19[5-9]\d|20[0-2]\d)\b")


def docstrings() -> Iterator[str]:
    texts = [path.read_text(encoding="utf-8") for path in Path(lmbm_torch.__file__).parent.rglob("*.py")]
    for text in filter(YEAR.search, texts):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                yield ast.get_docstring(node) or ""


def test_every_paper_that_a_docstring_names_is_in_the_bibliography():
    unknown = []
    for text in filter(YEAR.search, docstrings()):
        linked = re.sub("|".join([r":ref:`[^`]*`", *NO_PAPERS]), "", papers.paragraphs(text))
        for found in YEAR.finditer(linked):
            # Keys of tables and modules end with a year, too.
            if linked[found.start() - 1] != "_" and "``" not in linked[found.start() - 30 : found.end() + 30]:
                unknown.append(" ".join(linked[max(0, found.start() - 80) : found.end()].split()))
    assert unknown == []


@pytest.mark.parametrize(
    ("text", "linked"),
    [
        ("(Hsieh et al. 2008).", "(:ref:`Hsieh et al. 2008 <hsieh-2008>`)."),
        (
            "of Salakhutdinov and\nMurray (2008), x",
            "of :ref:`Salakhutdinov and Murray (2008) <salakhutdinov-2008>`, x",
        ),
        ("(lmbm_and_lmsbn_2010)", "(:ref:`Miao and Rao (2010) <lmbm_and_lmsbn_2010>`)"),
        ("``lmbm_and_lmsbn_2010`` stays", "``lmbm_and_lmsbn_2010`` stays"),
        ("|x_i| of x_", r"\|x_i\| of x\_"),
        ("``init_std``² and", r"``init_std``\ ² and"),
    ],
)
def test_names_become_links(text, linked):
    assert papers.paragraphs(text) == linked
