"""Docstrings are written in plain words, room by room; the limits only shrink."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

import plain_words

# By scripts/plain_words.py, rounded up a little: pronouns per 100 words, hidden first words, verbs in front.
# The aim of every room is 3.0, 0 and .75.
LIMITS = {
    "lmbm_torch/__init__.py": (3.1, 0.00, 0.75),
    "lmbm_torch/calibration": (3.0, 0.00, 0.75),
    "lmbm_torch/certificates": (3.0, 0.00, 0.75),
    "lmbm_torch/checks.py": (3.0, 0.00, 0.75),
    "lmbm_torch/cli": (3.0, 0.00, 0.75),
    "lmbm_torch/compare": (3.0, 0.00, 0.75),
    "lmbm_torch/constraints": (3.0, 0.00, 0.75),
    "lmbm_torch/data": (3.0, 0.00, 0.75),
    "lmbm_torch/energies": (3.0, 0.00, 0.75),
    "lmbm_torch/estimators": (3.0, 0.00, 0.75),
    "lmbm_torch/extras.py": (3.0, 0.00, 0.75),
    "lmbm_torch/files.py": (3.0, 0.00, 0.75),
    "lmbm_torch/fitting": (3.0, 0.00, 0.75),
    "lmbm_torch/incoming.py": (3.0, 0.00, 0.75),
    "lmbm_torch/inference": (3.0, 0.00, 0.75),
    "lmbm_torch/kernels": (3.0, 0.00, 0.75),
    "lmbm_torch/losses": (3.0, 0.00, 0.75),
    "lmbm_torch/memory.py": (3.0, 0.00, 0.75),
    "lmbm_torch/metrics": (3.0, 0.00, 0.75),
    "lmbm_torch/models": (3.1, 0.00, 0.75),
    "lmbm_torch/nn": (3.0, 0.00, 0.75),
    "lmbm_torch/persistence": (3.8, 0.00, 0.75),
    "lmbm_torch/prediction": (3.1, 0.00, 0.75),
    "lmbm_torch/protocol.py": (3.0, 0.00, 0.75),
    "lmbm_torch/references": (3.0, 0.00, 0.75),
    "lmbm_torch/reports": (3.0, 0.00, 0.75),
    "lmbm_torch/shapes.py": (3.0, 0.00, 0.75),
    "lmbm_torch/solvers": (3.0, 0.00, 0.75),
    "lmbm_torch/torch_internals.py": (3.0, 0.00, 0.75),
    "lmbm_torch/training": (3.0, 0.00, 0.75),
    "lmbm_torch/verdicts.py": (3.0, 0.00, 0.75),
    "lmbm_torch/viz": (3.5, 0.00, 0.75),
    "scripts": (7.0, 0.00, 0.75),
}
FOUND = plain_words.rooms()
PLAIN = '''
"""Toys for tests."""
class Toy:
    """A toy."""
    def score(self):
        """Return the score of ``it`` (that, this)."""
        def inner():
            "Raise ValueError."
'''
RIDDLE = '''
def first():
    """Of those that it is made of."""
def second():
    """The values."""
'''


@pytest.mark.parametrize("room", LIMITS)
def test_docstrings_of_a_room_keep_its_limits(room):
    most_pronouns, most_hidden, least_verbs = LIMITS[room]
    found = plain_words.plainness(FOUND[room])
    assert found.pronouns <= most_pronouns
    assert found.hidden <= most_hidden
    assert found.verbs >= least_verbs


def test_every_room_has_limits():
    assert FOUND.keys() == LIMITS.keys()


def test_plainness_of_a_plain_text_and_of_a_riddle():
    assert plain_words.plainness(plain_words.docstrings(PLAIN)) == (4, 11, 0, 0, 1)
    assert plain_words.plainness(plain_words.docstrings(RIDDLE)) == (2, 9, 100 * 3 / 9, 0.5, 0)


def test_words_leave_out_code_and_doctests():
    text = "Return one.\n\nExamples:\n    >>> it = this(that)\n    ... so\n    1\n"
    assert plain_words.words(text) == ["Return", "one", "Examples"]
