"""Every cell of tables that cross-validate, on a small set in place of theirs, up to figures and files."""

from __future__ import annotations

import numpy as np
import pytest
from problems.small import small_data
from rich.console import Console
from sklearn.model_selection import GridSearchCV, KFold

from lmbm_torch.compare.tables import write_tables
from reproduce import cells, crbm_classifier, linear_networks, lmbm_2009, lmsbn_2010

CONDITIONAL = {"penalties": [1.0], "num_hidden": [2], "seeds": [0]}
# A module, what it is told besides, and constants of its that are others.
TABLES = {
    "crbm_classifier": (crbm_classifier, CONDITIONAL, {}),
    "linear_networks": (linear_networks, {}, {}),
    "lmbm_2009": (lmbm_2009, {}, {}),
    "lmbm_2009, many labels": (lmbm_2009, {}, {"ENUMERATED_LABELS": 1}),
    "lmsbn_2010": (lmsbn_2010, {}, {}),
}

# Of tables with the same parts, one each is computed in the ordinary suite.
SLOW = ("linear_networks", "lmbm_2009", "lmsbn_2010", "crbm_classifier")


def one_setting(model, grid, **options):
    return GridSearchCV(model, {name: list(values)[:1] for name, values in grid.items()}, **options)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in TABLES]
)
def test_all_rows_are_computed_and_drawn(tmp_path, monkeypatch, name):
    module, settings, constants = TABLES[name]
    for constant, value in constants.items():
        monkeypatch.setattr(module, constant, value)
    monkeypatch.setattr(module, "load", lambda *_: small_data())
    # Two of five folds and one setting are enough.
    monkeypatch.setattr(module, "KFold", lambda folds, **options: KFold(2, **options))
    monkeypatch.setattr(module, "GridSearchCV", one_setting)
    work = list(module.cells(sets=["scene"], folder="", **settings))
    results = cells.compute(work, tmp_path, Console(quiet=True))
    assert [result["method"] for result in results] == [cell.method for cell in work]
    for result in results:
        shown = [value for key, value in result.items() if key in module.COLUMNS and isinstance(value, float)]
        assert np.isfinite(shown).all()
        assert shown
    rows = getattr(module, "summary", list)(results)
    text = write_tables(rows, module.COLUMNS, tmp_path)
    assert all(f"| {cell.method}" in text for cell in work)
    if hasattr(module, "draw"):
        module.draw(results, tmp_path)
        assert list(tmp_path.glob("*.png"))
