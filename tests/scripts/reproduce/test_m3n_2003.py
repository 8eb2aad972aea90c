"""The table of handwritten words, on handwritten numbers."""

from __future__ import annotations

import numpy as np
import pytest
from rich.console import Console

from lmbm_torch.compare.tables import write_tables
from lmbm_torch.data.sequences.records import digit_numbers
from reproduce import m3n_2003
from reproduce.cells import compute


@pytest.mark.slow
def test_rows_are_means_over_the_folds_that_were_trained_on(tmp_path, monkeypatch):
    data = digit_numbers(30, num_folds=3)
    monkeypatch.setattr(m3n_2003, "load_ocr_letters", lambda folder: data)
    monkeypatch.setattr(m3n_2003, "LINEAR", {name: m3n_2003.LINEAR[name] for name in ("HMM", "M3N, linear")})
    monkeypatch.setattr(m3n_2003, "KERNEL", {"M3N, RBF kernel": m3n_2003.KERNEL["M3N, RBF kernel"]})
    settings = {"sets": ["numbers"], "folder": "", "kernel_folds": 1}
    quiet = Console(quiet=True)
    fewer = compute(m3n_2003.cells(**settings, folds=2), tmp_path, quiet)
    results = compute(m3n_2003.cells(**settings, folds=3), tmp_path, quiet)
    rows = {row["method"]: row for row in m3n_2003.summary(results)}
    assert [row["folds"] for row in rows.values()] == ["3 of 3", "3 of 3", "1 of 3"]
    # What was computed before is kept.
    taken = {row["method"]: row["fit_seconds"] for row in results if "error" in row}
    assert all(taken[row["method"]] == row["fit_seconds"] for row in fewer if "error" in row)
    errors = [row["error"] for row in results if row.get("method_name") == "HMM"]
    assert rows["HMM"]["error"] == pytest.approx(np.mean(errors))
    assert rows["HMM"]["gap"] is None
    assert rows["M3N, linear"]["gap"] <= 3e-3
    assert all(0 < row["error"] < row["word_error"] < 1 for row in rows.values())
    assert "| M3N, RBF kernel |" in write_tables(list(rows.values()), m3n_2003.COLUMNS, tmp_path)
    m3n_2003.draw(results, tmp_path)
    assert {each.name for each in tmp_path.glob("*.png")} == {"errors.png", "transitions.png"}
