"""The library in the wheel stays within limits that only shrink."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

import measure_size

# By scripts/measure_size.py, rounded up a little; the aim is 420 files, 60,000 lines and 38,000 of code.
MOST_FILES = 425
MOST_LINES = 81_750
MOST_CODE = 49_553
# In packages, and in modules besides.
MOST_NAMES = 157
MOST_NAMES_OF_MODULES = 79
# Folder → rooms and arrows between them.
MOST_ARROWS = {"data": (17, 46), "estimators": (12, 35), "inference": (12, 33)}
FOUND = measure_size.sources()
TOY = {
    "lmbm_torch": "",
    "lmbm_torch.toys": "from lmbm_torch.toys.one import A\n\n__all__ = ['A']",
    "lmbm_torch.toys.one": "from lmbm_torch.toys import two\n\n__all__ = ['A', 'B']\n",
    "lmbm_torch.toys.two": "def late():\n    import lmbm_torch.toys.three.inner\n",
    "lmbm_torch.toys.three": "",
    "lmbm_torch.toys.three.inner": "__all__ = ['C']\n",
    "lmbm_torch.toys._own": "__all__ = ['D']\n",
}


def test_the_library_is_no_larger_than_it_was():
    assert len(FOUND) <= MOST_FILES
    assert sum(text.count("\n") for text in FOUND.values()) <= MOST_LINES
    assert sum(map(measure_size.lines_of_code, FOUND.values())) <= MOST_CODE


def test_no_more_names_are_public_than_were():
    own = measure_size.public_names(FOUND, packages_alone=True)
    assert len(own) <= MOST_NAMES
    assert len(measure_size.public_names(FOUND) - own) <= MOST_NAMES_OF_MODULES


@pytest.mark.parametrize("folder", MOST_ARROWS)
def test_rooms_are_joined_by_no_more_arrows_and_none_goes_back(folder):
    rooms = measure_size.arrows(FOUND, f"lmbm_torch.{folder}")
    most_rooms, most = MOST_ARROWS[folder]
    assert len(rooms) <= most_rooms
    assert sum(map(len, rooms.values())) <= most
    assert measure_size.arrows_back(rooms) == 0


def test_comments_docstrings_and_blank_lines_are_no_code():
    source = '"""One.\n\nTwo.\n"""\n\nx = 1  # code\n# none\n"""Of x."""\ny = """\n\ncode\n"""\n'
    assert measure_size.lines_of_code(source) == 5


def test_an_object_is_counted_once_and_none_of_private_modules():
    inside = "lmbm_torch.toys.one.A"
    assert measure_size.public_names(TOY, packages_alone=True) == {inside}
    every = {inside, "lmbm_torch.toys.one.B", "lmbm_torch.toys.three.inner.C"}
    assert measure_size.public_names(TOY) == every


def test_arrows_are_seen_wherever_they_are_and_circles_with_them():
    rooms = measure_size.arrows(TOY, "lmbm_torch.toys")
    assert rooms == {"__init__": {"one"}, "one": {"two"}, "two": {"three"}, "three": set(), "_own": set()}
    assert measure_size.arrows_back(rooms) == 0
    back = TOY | {"lmbm_torch.toys.three": "from lmbm_torch.toys.one import B"}
    assert measure_size.arrows_back(measure_size.arrows(back, "lmbm_torch.toys")) == 3
