"""Files of frequently asked questions, line by line: head, question, answer or tail."""

from __future__ import annotations

import re
from collections.abc import Sequence
from os import PathLike
from pathlib import Path

import numpy as np

from lmbm_torch.data.sequences.records import SequenceData
from lmbm_torch.files import reading
from lmbm_torch.shapes import Float

FAQ_LABELS = ("head", "question", "answer", "tail")

QUESTION_WORD = r"\b(?:who|what|when|where|why|which|how|is|are|can|could|do|does|should|will|would)\b"
ORDINAL = r"\s*(?:first|second|third|fourth|fifth|sixth|seventh|eighth|ninth|tenth|\d+(?:st|nd|rd|th))\b"
PATTERNS = {
    "begins-with-number": r"\s*\d",
    "begins-with-ordinal": ORDINAL,
    "begins-with-punctuation": r"\s*[^\w\s]",
    "begins-with-question-word": r"\s*" + QUESTION_WORD,
    "begins-with-subject": r"\s*subject\b",
    "blank": r"\s*$",
    "contains-alphanum": r".*[a-z0-9]",
    "contains-bracketed-number": r".*[\[({]\s*\d+\s*[\])}]",
    "contains-http": r".*http",
    "contains-non-space": r".*\S",
    "contains-number": r".*\d",
    "contains-pipe": r".*\|",
    "contains-question-mark": r".*\?",
    "contains-question-word": r".*" + QUESTION_WORD,
    "ends-with-question-mark": r".*\?\s*$",
    "indented": r"\s",
    "indented-1-to-4": r"\s{1,4}(?!\s)",
    "indented-5-to-10": r"\s{5,10}(?!\s)",
    "only-punctuation": r"(?=.*\S)[^\w]*$",
}
FAQ_FEATURES = (
    *PATTERNS,
    *("first-alpha-is-capitalized", "more-than-one-third-space", "shorter-than-30"),
    *("prev-is-blank", "prev-begins-with-ordinal"),
)
"""The 24 line features of McCallum, Freitag and Pereira (ICML 2000), Table 3."""

_COMPILED = {name: re.compile(pattern, re.IGNORECASE) for name, pattern in PATTERNS.items()}
_TAGGED = re.compile(rf"<({'|'.join(FAQ_LABELS)})>(.*)")


def read_faq(paths: Sequence[str | PathLike]) -> SequenceData:
    """Files whose every line begins with its label, such as ``<question>1.2) Who …``; one sequence each.

    Every file is a fold of its own; features are those of :func:`line_features`.

    Raises:
        FileNotFoundError: a file that is not there.
        ValueError: no file, one without lines, or a line without a label.
    """
    if not paths:
        raise ValueError("paths: expected at least one file, got none")
    features, labels = [], []
    for each in paths:
        with reading(each, argument="paths") as file:
            tags, lines = _tagged_lines(file)
        features.append(line_features(lines))
        labels.append(tags)
    lengths = [len(each) for each in labels]
    return SequenceData(
        name="faq",
        features=np.concatenate(features),
        labels=np.concatenate(labels),
        start=np.concatenate([[0], lengths]).cumsum(),
        label_names=FAQ_LABELS,
        feature_names=FAQ_FEATURES,
        fold=np.arange(len(lengths)),
    )


def line_features(lines: Sequence[str]) -> Float[np.ndarray, "lines features"]:
    """The indicators ``FAQ_FEATURES`` of each line of a text, float64."""
    rows = np.zeros((len(lines), len(FAQ_FEATURES)))
    column = {name: place for place, name in enumerate(FAQ_FEATURES)}
    for row, line in zip(rows, lines, strict=True):
        row[: len(PATTERNS)] = [bool(pattern.match(line)) for pattern in _COMPILED.values()]
        first = next((letter for letter in line if letter.isalpha()), "a")
        row[column["first-alpha-is-capitalized"]] = first.isupper()
        row[column["more-than-one-third-space"]] = 3 * sum(map(str.isspace, line)) > len(line)
        row[column["shorter-than-30"]] = len(line) < 30
    rows[1:, column["prev-is-blank"]] = rows[:-1, column["blank"]]
    rows[1:, column["prev-begins-with-ordinal"]] = rows[:-1, column["begins-with-ordinal"]]
    return rows


def _tagged_lines(file: Path) -> tuple[np.ndarray, list[str]]:
    """The label and the text of each line."""
    tags, lines = [], []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        tagged = _TAGGED.fullmatch(line)
        if tagged is None:
            raise ValueError(f"line {number}: expected one of {FAQ_LABELS} in brackets first, got {line!r}")
        tags.append(FAQ_LABELS.index(tagged[1]))
        lines.append(tagged[2])
    if not lines:
        raise ValueError("expected at least one line, got none")
    return np.array(tags, np.int64), lines
