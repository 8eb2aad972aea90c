"""The map of the papers is complete, and whatever it names exists."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PAGE = (REPOSITORY / "docs" / "papers.md").read_text(encoding="utf-8")
MAP = PAGE.partition("## Number by number")[2].partition("## What was corrected")[0]
SECTIONS = dict(re.findall(r"### (.+?)\n(.*?)(?=### |\Z)", MAP, re.S))


def numbers(*kinds: tuple[str, int]) -> set[tuple[str, str]]:
    return {(kind, str(number)) for kind, last in kinds for number in range(1, last + 1)}


EXPECTED = {
    "Miao and Rao (2009)": numbers(("Equation", 3), ("Algorithm", 1), ("Table", 2), ("Figure", 2))
    | {("Definition", "2.1"), ("Remark", "2.2"), ("Lemma", "3.1"), ("Theorem", "3.2"), ("Problem", "3.3")}
    | {("Problem", "3.4"), ("Theorem", "4.1"), ("Remark", "4.2"), ("Lemma", "4.3"), ("Theorem", "4.4")},
    "Miao and Rao (2010)": numbers(("Equation", 13), ("Algorithm", 2), ("Figure", 4), ("Definition", 2))
    | {("Remark", "3"), ("Theorem", "4"), ("Remark", "5"), ("Remark", "6"), ("Lemma", "7")}
    | {("Theorem", "8"), ("Theorem", "9")},
    "Ping and Ihler (2017)": numbers(("Equation", 18), ("Algorithm", 1), ("Table", 3), ("Figure", 4)),
    "Lacoste-Julien (2003)": numbers(("Equation", 42), ("Figure", 6)),
    "Memisevic (2006)": numbers(("Equation", 28), ("Algorithm", 1), ("Table", 2), ("Figure", 1)),
}


def rows(body: str) -> list[tuple[str, str]]:
    cells = [line.strip("|").split(" | ", 1) for line in body.splitlines() if line.startswith("| ")]
    return [(first.strip(), second.strip()) for first, second in cells if first.strip() != "number"]


def listed(cell: str) -> list[tuple[str, str]]:
    """The numbers of a cell such as ``Lemma 3.1, Equations 13, 14, 16–18``."""
    found, kind = [], ""
    for part in cell.split(", "):
        if named := re.fullmatch(r"([A-Z][a-z]+?)s? (.+)", part):
            kind, part = named[1], named[2]
        first, _, last = part.partition("–")
        span = range(int(first), int(last) + 1) if last else [first]
        found += [(kind, str(number)) for number in span]
    return found


def exists(name: str) -> bool:
    """Whether a dotted name below the package is there, or a path of the repository."""
    if "/" in name:
        return (REPOSITORY / name).exists()
    module, rest = "lmbm_torch", name.split(".")
    found = import_module(module)
    for place, part in enumerate(rest):
        if not hasattr(found, part):
            try:
                found = import_module(".".join([module, *rest[: place + 1]]))
            except ModuleNotFoundError:
                return False
        else:
            found = getattr(found, part)
    return True


@pytest.mark.parametrize("paper", EXPECTED)
def test_every_number_has_one_place(paper):
    found = [each for first, _ in rows(SECTIONS[paper]) for each in listed(first)]
    assert set(found) == EXPECTED[paper]
    assert len(found) == len(set(found))


@pytest.mark.parametrize("paper", EXPECTED)
def test_what_the_map_names_exists(paper):
    named = {name for name in re.findall(r"`([^`]+)`", SECTIONS[paper]) if re.search(r"[./]", name)}
    assert len(named) > 10
    assert {name for name in named if not exists(name)} == set()
    # A row says where, or why nowhere.
    assert all(
        "`" in second or re.match(r"nowhere: |at two|duality|the data", second)
        for _, second in rows(SECTIONS[paper])
    )


def test_cells_are_read_and_missing_names_are_seen():
    assert listed("Lemma 3.1, Equations 13, 16–18") == [
        ("Lemma", "3.1"),
        *(("Equation", number) for number in ("13", "16", "17", "18")),
    ]
    assert exists("losses.error_bound")
    assert exists("energies.BipartiteEnergy.free_energy")
    assert not exists("losses.no_such_bound")
    assert not exists("results/no_such.md")
