from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from scipy.sparse import csr_array

from lmbm_torch.data import load
from lmbm_torch.data.named import NAMED_SETS, data_folder


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "scene").mkdir()
    np.savez(tmp_path / "scene" / "scene.npz", x=np.ones((2, 3)), y=np.eye(2))
    return tmp_path


def test_folder_is_given_or_from_the_environment(folder, monkeypatch):
    monkeypatch.delenv("LMBM_DATA", raising=False)
    assert load("scene", folder).num_instances == 2
    monkeypatch.setenv("LMBM_DATA", str(folder))
    assert load("scene").num_instances == 2
    assert data_folder() == folder


def test_missing_folders_and_sets_are_named(folder, monkeypatch):
    monkeypatch.delenv("LMBM_DATA", raising=False)
    with pytest.raises(ValueError, match=r"folder: .* LMBM_DATA"):
        load("scene")
    monkeypatch.setenv("LMBM_DATA", str(folder / "nowhere"))
    with pytest.raises(FileNotFoundError, match=r"LMBM_DATA.*nowhere"):
        load("scene")
    with pytest.raises(FileNotFoundError, match=r"yeast\.npz"):
        load("yeast", folder)
    with pytest.raises(ValueError, match=r"name: expected one of .*'scene'.* got 'scenes'"):
        load("scenes", folder)


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "num_train", "num_test", "num_features", "num_labels", "cardinality"),
    [
        ("scene", 1211, 1196, 294, 6, 1.074),
        ("yeast", 1500, 917, 103, 14, 4.237),
        ("rcv1_subset1", 3000, 3000, 47236, 101, 2.895),
        ("mediamill_subset", 2500, 0, 120, 101, 4.353),
    ],
)
def test_real_sets_are_as_published(
    data_folder, name, num_train, num_test, num_features, num_labels, cardinality
):
    data = load(name, data_folder)
    assert name in NAMED_SETS
    assert (len(data.train), len(data.test)) == (num_train, num_test)
    assert (data.num_features, data.num_labels) == (num_features, num_labels)
    assert data.labels.sum(1).mean() == pytest.approx(cardinality, abs=5e-4)


def test_labels_of_rcv1_s_test_part_stand_where_the_training_part_has_them(tmp_path):
    """Moved in a file that has the fault, and only in such a one."""
    truth = np.array([[1, 0, 1], [0, 1, 0]])
    arrays = {"x_train": np.eye(2), "y_train": truth, "x_test": np.eye(2)}
    path = tmp_path / "rcv1_subset1" / "rcv1_subset1.npz"
    path.parent.mkdir()
    early = np.array([[0, 1, 0], [1, 0, 0]])
    np.savez(path, **arrays, y_test=early, test_rows_with_removed_artefact=np.array([0]))
    data = load("rcv1_subset1", tmp_path)
    np.testing.assert_array_equal(data.labels[data.test], truth)
    np.testing.assert_array_equal(data.labels[data.train], truth)
    np.savez(path, **arrays, y_test=early)
    data = load("rcv1_subset1", tmp_path)
    np.testing.assert_array_equal(data.labels[data.test], early)


@pytest.mark.data
def test_labels_are_as_frequent_in_both_parts_of_rcv1(data_folder):
    data = load("rcv1_subset1", data_folder)
    shares = [data.labels[part].mean(0) for part in (data.train, data.test)]
    assert np.corrcoef(*shares)[0, 1] > 0.99


@pytest.mark.data
def test_text_stays_sparse_and_has_unit_rows(data_folder):
    data = load("rcv1_subset1", data_folder)
    assert isinstance(data.features, csr_array)
    np.testing.assert_allclose((data.features.power(2)).sum(1), 1, rtol=1e-5)
    assert load("scene", data_folder).label_names[:3] == ("Beach", "Sunset", "FallFoliage")


def test_importing_the_readers_is_light():
    """And needs no development dependency: annotations are never evaluated."""
    code = (
        "import sys; sys.modules['jaxtyping'] = None;"
        "import lmbm_torch.data, lmbm_torch.data.batches, lmbm_torch.data.scaling, lmbm_torch.data.splits;"
        "print(*{'arff', 'lightning', 'sklearn', 'torchmetrics'} & set(sys.modules))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == ""
