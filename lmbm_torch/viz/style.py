"""The style of all figures. This module is internal and may change."""

from __future__ import annotations

import unicodedata
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, fontManager
from matplotlib.ft2font import FT2Font
from matplotlib.text import Text

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#f0e442", "#000000")
"""Colours that are safe for colour-blind readers."""


class AnyScript(Figure):
    """A figure whose texts may be in any script that the installed fonts have, for example Chinese.

    If no font has a script, one warning says which fonts to install.
    """

    def draw(self, renderer: Any) -> None:
        lacking = ""
        for text in self.findobj(Text):
            assert isinstance(text, Text)
            if text.get_text().isascii():
                continue
            further, without = further_fonts(text.get_text())
            if further:
                text.set_fontfamily([*rcParams["font.family"], *further])
            lacking += without
        _hint(lacking)
        with _unwarned_of_glyphs():
            super().draw(renderer)

    def get_tightbbox(self, *arguments: Any, **options: Any) -> Any:
        with _unwarned_of_glyphs():
            return super().get_tightbbox(*arguments, **options)


@cache
def further_fonts(text: str) -> tuple[tuple[str, ...], str]:
    """Return installed fonts for letters that the default font does not have, and letters of no font."""
    # Control characters, such as line breaks, need no glyph.
    letters = {ord(letter) for letter in text if unicodedata.category(letter) != "Cc"}
    missing, found = letters - _characters(findfont(FontProperties())), []
    while missing:
        fonts = [(len(missing & _characters(font.fname)), font.name, font.fname) for font in _fonts()]
        most, name, file = max(fonts, default=(0, "", ""))
        if not most:
            break
        found.append(name)
        missing -= _characters(file)
    return tuple(found), "".join(map(chr, sorted(missing)))


def _hint(lacking: str) -> None:
    """Warn of letters that no font has, once for each family of fonts."""
    by_family: dict[str, list[str]] = {}
    for letter in dict.fromkeys(lacking):
        by_family.setdefault(_family(letter), []).append(letter)
    for family, letters in by_family.items():
        if family in _hinted:
            continue
        _hinted.add(family)
        warnings.warn(
            f"figures: no installed font has {''.join(letters[:5])}{' …' * (len(letters) > 5)}, which "
            f"are drawn as boxes: install {family}, and delete matplotlib's list of fonts "
            "(fontlist-*.json in the folder that matplotlib.get_cachedir() names)",
            UserWarning,
            stacklevel=3,
        )


_hinted: set[str] = set()


def _family(letter: str) -> str:
    """Return the fonts to install for a letter, by script."""
    script = unicodedata.name(letter, "").split(" ")[0]
    if script in ("CJK", "HIRAGANA", "KATAKANA", "HANGUL", "BOPOMOFO", "FULLWIDTH", "IDEOGRAPHIC"):
        return "Noto Sans CJK (the package fonts-noto-cjk of Debian and Ubuntu)"
    return "the Noto fonts of all scripts (the package fonts-noto of Debian and Ubuntu)"


@contextmanager
def _unwarned_of_glyphs() -> Iterator[None]:
    """Suppress matplotlib's warning of each missing letter, which :func:`_hint` replaces."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph .* missing from", UserWarning)
        yield


def _fonts() -> list[Any]:
    """Return upright fonts of normal weight, except for the font that draws a box for every letter."""
    fonts = [font for font in fontManager.ttflist if not font.name.startswith("Last Resort")]
    return [font for font in fonts if font.style == "normal" and font.weight in (400, "normal")]


@cache
def _characters(file: str) -> frozenset[int]:
    """Return the characters that a font has; none if the font cannot be read."""
    try:
        return frozenset(FT2Font(file).get_charmap())
    except (OSError, RuntimeError):
        return frozenset()


def open_frame(axes: Axes) -> None:
    """Remove the two sides of the frame that have no scale."""
    axes.spines[["top", "right"]].set_visible(False)


def frames(
    width: float, height: float, rows: int = 1, columns: int = 1, **sharing: Any
) -> tuple[Figure, np.ndarray]:
    """Create a figure of ``width`` and ``height`` in inches, with ``(rows, columns)`` axes and open frames.

    Args:
        sharing: arguments of ``Figure.subplots``, for example ``sharex``.
    """
    figure = AnyScript(figsize=(width, height), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, **sharing)
    for axes in grid.flat:
        open_frame(axes)
    return figure, grid


def one_frame(width: float, height: float) -> tuple[Figure, Axes]:
    """Create a figure of ``width`` and ``height`` in inches with a single axes object."""
    figure, grid = frames(width, height)
    return figure, grid[0, 0]


def name_rows(axes: Axes, names: Sequence[str]) -> None:
    """Write names at 0, 1, … on the vertical axis, the first name on top, as in a table."""
    axes.set_yticks(range(len(names)), names)
    # The default margin is a share of the height: with many rows it would be as high as several rows.
    axes.set_ylim(len(names) - 0.4, -0.6)
