"""Measure how plainly the docstrings of Python files are written, for each room of the library.

python scripts/plain_words.py lmbm_torch/energies, or without a path for the library and the scripts

A room is a folder or file directly below the library, and the whole of any other folder. The table shows for
each room the pronouns per 100 words, the share of summaries whose first word hides a noun, and the share of
functions' summaries that begin with a verb. The docstrings with most pronouns and hidden first words follow.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]
FOLDERS = ROOT / "lmbm_torch", ROOT / "scripts"
# Aims: pronouns per 100 words, share of hidden first words, share of verbs in front.
MOST_PRONOUNS, MOST_HIDDEN, LEAST_VERBS = 3.0, 0.0, 0.75
# Docstrings with fewer words are too short for a rate of their own.
ENOUGH = 12

PRONOUNS = frozenset(
    "it its they them their those these that this what which one ones such other others so whose".split()
)
# Words that leave the noun of a summary to the reader's guess.
HIDING = frozenset(
    """
    of those what that where by as so whether how whatever who which it its up in on to from without with
    under beyond one such more most all each every no not for at
    """.split()
)
VERBS = frozenset(
    """
    add apply bound build calibrate call check choose close combine compare compile compute convert copy
    count create decode draw drop encode enumerate estimate evaluate fill find fit format get give iterate
    join keep list load log make map mark mask maximise measure merge minimise move name normalise open
    order pad parse plot predict print project propagate raise read refuse register remove report restore
    return run sample save scale score search select set show solve sort split stack start stop store sum
    test train update warn wrap write yield
    """.split()
)
# Code, cross references and lists in brackets are no prose.
NO_PROSE = re.compile(
    r"``.*?``|:[a-z]+:`.*?`|`.*?`|\([^)]*,[^)]*\)|^ *(?:>>>|\.\.\.) .*?$", re.DOTALL | re.MULTILINE
)
WORD = re.compile(r"[A-Za-z][A-Za-z'-]*")


class Docstring(NamedTuple):
    """A docstring with the place of its owner."""

    place: str
    text: str
    is_function: bool

    @property
    def summary(self) -> str:
        return self.text.splitlines()[0]

    @property
    def first_word(self) -> str:
        return next(iter(words(self.summary)), "").lower()

    @property
    def pronouns(self) -> int:
        return sum(word.lower() in PRONOUNS for word in words(self.text))


class Plainness(NamedTuple):
    """The counts of a room's docstrings."""

    docstrings: int
    words: int
    pronouns: float
    hidden: float
    verbs: float


def words(text: str) -> list[str]:
    """Return the words of the prose in a docstring."""
    return WORD.findall(NO_PROSE.sub(" ", text))


def docstrings(source: str, path: str = "") -> Iterator[Docstring]:
    """Yield the docstrings of a module, of its classes and of its functions."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            line, is_function = getattr(node, "lineno", 1), not isinstance(node, ast.Module | ast.ClassDef)
            if text := ast.get_docstring(node):
                yield Docstring(f"{path}:{line}", text, is_function)


def plainness(found: Iterable[Docstring]) -> Plainness:
    """Return pronouns per 100 words, the share of hidden first words and the share of verbs in front."""
    found = [*found]
    functions = [each for each in found if each.is_function]
    num_words = sum(len(words(each.text)) for each in found)
    return Plainness(
        len(found),
        num_words,
        100 * sum(each.pronouns for each in found) / max(num_words, 1),
        sum(each.first_word in HIDING for each in found) / max(len(found), 1),
        sum(each.first_word in VERBS for each in functions) / max(len(functions), 1) if functions else 1.0,
    )


def rooms(paths: Iterable[Path] = FOLDERS) -> dict[str, list[Docstring]]:
    """Return the docstrings of each room below files or folders."""
    found: dict[str, list[Docstring]] = {}
    for path in paths:
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            place = file.resolve().relative_to(ROOT)
            room = "/".join(place.parts[: 2 if place.parts[0] == "lmbm_torch" else 1])
            found.setdefault(room, []).extend(docstrings(file.read_text(encoding="utf-8"), str(place)))
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table of rooms and the docstrings to improve first."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paths", type=Path, nargs="*", default=FOLDERS)
    parser.add_argument("--worst", type=int, default=12, help="docstrings of each kind to list")
    options = parser.parse_args(arguments)
    found, console = rooms(options.paths), Console(highlight=False)
    table = Table("room", "docstrings", "words", "pronouns / 100 words", "first word hidden", "verb first")
    every = [each for room in found.values() for each in room]
    for room, own in [*found.items(), ("all", every)]:
        count, num_words, pronouns, hidden, verbs = plainness(own)
        table.add_row(room, f"{count}", f"{num_words}", f"{pronouns:.1f}", f"{hidden:.1%}", f"{verbs:.0%}")
    console.print(table)
    rates = [
        (each.pronouns / len(words(each.text)), each) for each in every if len(words(each.text)) >= ENOUGH
    ]
    rates.sort(key=lambda rated: -rated[0])
    for rate, each in rates[: options.worst]:
        start = " ".join(each.text.split())[:140]
        console.print(f"{each.place}: {100 * rate:.0f} pronouns per 100 words: {start}", markup=False)
    for each in [each for each in every if each.first_word in HIDING][: options.worst]:
        console.print(f"{each.place}: hidden first word: {each.summary}", markup=False)


if __name__ == "__main__":
    main()
