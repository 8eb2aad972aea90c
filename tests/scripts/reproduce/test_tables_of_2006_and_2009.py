"""Sets, cells and verdicts of the tables of 2006 and 2009."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from reproduce import dual_2006, lmbm_2009
from reproduce.multiclass_sets import MulticlassData


@pytest.mark.data
def test_sets_of_the_2009_paper(data_folder):
    scene = lmbm_2009.read("scene", str(data_folder))
    # Table 1 counts three more.
    assert lmbm_2009.num_weights(scene) == 1785
    few = lmbm_2009.read("mediamill10_subset", str(data_folder))
    assert few.labels.shape == (218, 10)
    assert few.labels.any(1).all()
    assert len(few.train) + len(few.test) == 218
    assert lmbm_2009.read("mediamill50_subset", str(data_folder)).labels.shape == (2094, 50)
    assert np.array_equal(few.test, lmbm_2009.read("mediamill10_subset", str(data_folder)).test)


@pytest.mark.data
def test_a_cell_of_the_2009_tables(data_folder):
    """The machine of the paper's own settings, with what its row needs."""
    data = lmbm_2009.read("mediamill10_subset", str(data_folder))
    model, _ = lmbm_2009.METHODS["LMBMr"]
    result = lmbm_2009.cross_validate(
        data, model, {"C": (0.1,), "coupling_penalty": (10.0,)}, lmbm_2009.paper_row("scene", "LMBMr")
    )
    assert result["settings"] == "U = 0.1, η0 = 10"
    assert result["paper_A"] == 0.682
    assert set(lmbm_2009.METRICS) <= set(result)
    assert result["gap"] <= 1e-3
    relaxed = lmbm_2009.decoded(data, model, "lp_relaxation", result)
    assert relaxed["settings"] == result["settings"]
    assert lmbm_2009.paper_row("mediamill10_subset", "LMBMr") == {}


def test_kernel_machines_of_2006_learn_without_the_labels_of_the_test_part(monkeypatch):
    monkeypatch.setattr(dual_2006, "USPS", (20, 10, 4.0))
    generator = np.random.default_rng(0)
    rows = np.arange(30)
    features = generator.normal(size=(30, 3)) + 3 * np.eye(3)[rows % 3]
    data = MulticlassData("usps", features, rows % 3, ("a", "b", "c"), rows, rows[:0])
    split_anew, found = MulticlassData.split_anew, []

    def poisoned(*arguments):
        divided = split_anew(*arguments)
        classes = divided.classes.copy()
        classes[divided.test] = (classes[divided.test] + 1) % 3
        return replace(divided, classes=classes)

    for each in (split_anew, poisoned):
        monkeypatch.setattr(MulticlassData, "split_anew", each)
        found.append(dual_2006.figure_1(data, 0.1))
    clean, dirty = found
    assert clean["error"] < 50 < dirty["error"]
    kept = {name for name in clean if "iterations" in name or name in ("gap", "smo_passes")}
    assert len(kept) == 4
    assert {name: dirty[name] for name in kept} == {name: clean[name] for name in kept}


@pytest.mark.parametrize(("limit", "shown"), [(0.0, 0.0), (60.0, None)])
def test_primal_solvers_that_were_stopped_are_said_to_be(monkeypatch, limit, shown):
    monkeypatch.setattr(dual_2006, "USPS", (20, 10, 4.0))
    monkeypatch.setattr(dual_2006, "CURVE_SECONDS", limit)
    generator = np.random.default_rng(0)
    rows = np.arange(30)
    data = MulticlassData("usps", generator.normal(size=(30, 3)), rows % 3, ("a", "b", "c"), rows, rows[:0])
    threads = torch.get_num_threads()
    try:
        found = dual_2006.figure_1(data, 0.1)
    finally:
        torch.set_num_threads(threads)
    assert found["stopped_seconds"] == shown
    assert "stopped_seconds" in dual_2006.COLUMNS
