"""Names in scripts that the usual font lacks are drawn by another one that is installed."""

from __future__ import annotations

import io
import warnings

import pytest
from matplotlib.font_manager import FontProperties, findfont, fontManager
from matplotlib.ft2font import FT2Font

from lmbm_torch.viz import style
from lmbm_torch.viz.quality import bar_chart
from lmbm_torch.viz.style import further_fonts


@pytest.fixture
def rare():
    """A letter that the usual font lacks, and another font that comes with matplotlib has."""
    usual = set(FT2Font(findfont(FontProperties())).get_charmap())
    (other,) = {font.fname for font in fontManager.ttflist if font.fname.endswith("STIXGeneral.ttf")}
    return next(
        chr(code) for code in sorted(FT2Font(other).get_charmap()) if code > 0x250 and code not in usual
    )


def drawn(name: str) -> bytes:
    stream = io.BytesIO()
    bar_chart({"F1": {name: 0.5}}).savefig(stream, format="png")
    return stream.getvalue()


def test_a_letter_that_the_usual_font_lacks_is_drawn(rare):
    assert further_fonts(f"a{rare}")[0]
    with warnings.catch_warnings():
        # Of missing glyphs.
        warnings.simplefilter("error")
        assert drawn(f"sun {rare}")


def test_usual_letters_need_no_other_font():
    assert further_fonts("Århus, Ωμέγα")[0] == ()


def test_a_letter_that_no_font_has_ends_the_search():
    assert further_fonts("\U000f1234")[0] == ()


@pytest.fixture
def only_usual_font(monkeypatch):
    """No other font is installed, and nothing was said of it."""
    monkeypatch.setattr(style, "_fonts", list)
    monkeypatch.setattr(style, "_hinted", set())
    style.further_fonts.cache_clear()
    yield
    style.further_fonts.cache_clear()


@pytest.mark.usefixtures("only_usual_font")
@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["太陽\n海", "こん"], ["install Noto Sans CJK"]),
        (["\U000130a7"], ["install the Noto fonts of all scripts"]),
        (["海", "\U000130a7"], ["install Noto Sans CJK", "install the Noto fonts of all scripts"]),
        (["Århus\nΩ"], []),
    ],
)
def test_of_letters_that_no_font_has_one_hint_names_what_to_install(names, told):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for _ in range(2):
            stream = io.BytesIO()
            bar_chart({"F1": dict.fromkeys(names, 0.5)}).savefig(stream, format="png", bbox_inches="tight")
    assert len(found) == len(told)
    for warning, words in zip(found, told, strict=True):
        assert warning.category is UserWarning
        assert words in str(warning.message)
