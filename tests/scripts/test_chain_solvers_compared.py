"""The comparison of five solvers, on the first words of the real data."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts" / "bench"))

import chain_solvers

from lmbm_torch.data import load_ocr_letters


@pytest.mark.data
def test_five_solvers_agree_on_handwritten_words(data_folder):
    data = chain_solvers.fold_of(load_ocr_letters(data_folder), 0, num_words=15)
    rows = {row["solver"]: row for row in chain_solvers.compare(data, C=0.3, tol=1e-3, epochs=150)}
    assert len(rows) == 5
    falling = rows.pop("subgradients, Adam")
    assert 0 <= falling["above_bound"] <= 0.01
    for row in rows.values():
        assert row["gap"] <= 1e-3
        assert 0 <= row["above_bound"] <= 1.001e-3
