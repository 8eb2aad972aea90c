"""Lead the papers that docstrings name to the bibliography, and spare docstrings the traps of their markup.

A docstring names a paper by its key, as in ``lmbm_and_lmsbn_2010``, or by its first author and the year, as
in "Hsieh et al. 2008". Both are the labels of ``bibliography.md``.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from sphinx.application import Sphinx

BIBLIOGRAPHY = Path(__file__).parents[1] / "bibliography.md"
# The papers that the library is about, as sentences name them.
NAMES = {
    "belief_propagation_in_crbms_2017": "Ping and Ihler (2017)",
    "dual_optimization_conditional_models_2006": "Memisevic (2006)",
    "large_margin_boltzmann_machines_2009": "Miao and Rao (2009)",
    "lmbm_and_lmsbn_2010": "Miao and Rao (2010)",
    "max_margin_markov_networks_survey_2003": "Lacoste-Julien (2003)",
}
OTHER_NAMES = {
    "belief_propagation_in_crbms_2017": ("2017 paper",),
    "max_margin_markov_networks_survey_2003": ("survey of 2003",),
}
YEAR = re.compile(r"(?<!\d)(?:19|20)\d\d(?!\d)")
# Keeps what is markup already: code, and the roles with their text.
MARKUP = re.compile(r"(``.*?``|:\w+(?::\w+)?:`[^`]*`|`[^`]*`)", re.DOTALL)


@cache
def labels() -> dict[str, re.Pattern[str]]:
    """Of each entry of the bibliography, and what names it in a sentence."""
    found = re.findall(r"^\(([\w-]+)\)=$", BIBLIOGRAPHY.read_text(encoding="utf-8"), re.M)
    return {label: pattern(label) for label in found}


def pattern(label: str) -> re.Pattern[str]:
    if label in NAMES:
        return re.compile("|".join(rf"\b{name}\b" for name in (label, *OTHER_NAMES.get(label, ()))))
    author, year = re.fullmatch(r"([a-z-]+)-(\d{4})", label).groups()  # pyright: ignore[reportOptionalMemberAccess]
    surname = author.replace("n", "[nń]").replace("s", "[sš]").replace("e", "[eé]").replace("a", "[aá]")
    return re.compile(rf"\b{surname}\b(?:al\.|[^`<>.;|]){{0,160}}?\b{year}\b\)?", re.IGNORECASE)


def link(text: str) -> str:
    """With every paper that it names as a link to its entry."""
    if not YEAR.search(text):
        return text
    for label, names in labels().items():
        parts = MARKUP.split(text)
        parts[::2] = [
            names.sub(lambda found, label=label: role(label, found[0]), part) for part in parts[::2]
        ]
        text = "".join(parts)
    return text


def role(label: str, named: str) -> str:
    shown = NAMES[label] if named == label else " ".join(named.split())
    # A year in brackets belongs to the name, one inside other brackets does not.
    tail = ")" if shown.endswith(")") and "(" not in shown else ""
    return f":ref:`{shown.removesuffix(tail) if tail else shown} <{label}>`{tail}"


def plain(text: str) -> str:
    """Let |x| and x_ mean themselves outside markup."""
    parts = MARKUP.split(text)
    parts[::2] = [re.sub(r"\||(?<=\w)_(?!\w)", lambda found: "\\" + found[0], part) for part in parts[::2]]
    # Markup ends before white space or punctuation alone.
    parts[2::2] = ["\\ " + part if re.match(r"[\w²‖]", part) else part for part in parts[2::2]]
    return "".join(parts)


def mend(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """After napoleon has read the sections."""
    text = "\n".join(lines)
    lines[:] = paragraphs(text).split("\n")


def paragraphs(text: str) -> str:
    """Each paragraph at once, since a name may go over two lines; displayed formulas and code as they are."""
    parts = re.split(r"(\n\s*\n)", text)
    return "".join(part if is_field(part) else link(plain(part)) for part in parts)


def is_field(part: str) -> bool:
    return part.lstrip().startswith((".. ", ">>>")) or part.startswith("        ")


def whole(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Keep napoleon from taking what stands before a property's first colon for its type."""
    if what in ("attribute", "property"):
        lines.insert(0, "")


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", whole, priority=100)
    app.connect("autodoc-process-docstring", mend, priority=900)
    app.connect("env-before-read-docs", forget)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def forget(*_: object) -> None:
    labels.cache_clear()
