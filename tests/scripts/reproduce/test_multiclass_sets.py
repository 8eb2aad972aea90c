from __future__ import annotations

import numpy as np
import pytest

from reproduce.multiclass_sets import MULTICLASS_SETS, MulticlassData, load_multiclass


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "uci").mkdir()
    np.savez(tmp_path / "uci" / "wine.npz", x=np.ones((3, 2), np.float32), y=np.array([7, 2, 7], np.uint8))
    np.savez(
        tmp_path / "uci" / "segment.npz",
        x_train=np.zeros((2, 2)),
        y_train=[1, 2],
        x_test=np.ones((1, 2)),
        y_test=[3],
        class_names=["sky", "grass", "path"],
    )
    return tmp_path


def test_classes_are_counted_from_zero_in_the_order_of_their_numbers(folder):
    data = load_multiclass("wine", folder)
    assert data.classes.tolist() == [1, 0, 1]
    assert data.class_names == ("2", "7")
    assert (data.train.tolist(), data.test.tolist()) == ([0, 1, 2], [])
    assert data.features.dtype == np.float64


def test_a_split_that_comes_with_the_file_is_kept(folder):
    data = load_multiclass("segment", folder)
    assert (data.train.tolist(), data.test.tolist()) == ([0, 1], [2])
    assert data.class_names == ("sky", "grass", "path")
    assert repr(data) == "<segment: 2 instances to train and 1 to test, 2 features, 3 classes>"


def test_a_new_split_pools_both_parts_and_depends_on_its_seed_alone(folder):
    data = load_multiclass("segment", folder)
    splits = [data.split_anew(2, 1, seed) for seed in range(20)]
    assert {tuple(sorted([*each.train, *each.test])) for each in splits} == {(0, 1, 2)}
    assert {int(each.test[0]) for each in splits} == {0, 1, 2}
    np.testing.assert_array_equal(data.split_anew(2, 1, 5).train, splits[5].train)
    with pytest.raises(ValueError, match="expected at most 3 instances in all, got 4"):
        data.split_anew(2, 2, 0)
    with pytest.raises(ValueError, match="num_test"):
        data.split_anew(2, 0, 0)


def test_what_cannot_be_read_is_named(folder):
    with pytest.raises(ValueError, match=r"name: expected one of .*'wine'.* got 'wines'"):
        load_multiclass("wines", folder)
    with pytest.raises(FileNotFoundError, match=r"glass\.npz"):
        load_multiclass("glass", folder)
    np.savez(folder / "uci" / "glass.npz", x=np.ones((3, 2)), y=np.arange(2))
    with pytest.raises(ValueError, match=r"glass\.npz: classes: expected shape \(3\)"):
        load_multiclass("glass", folder)
    np.savez(folder / "uci" / "glass.npz", x=np.ones((3, 2)))
    with pytest.raises(ValueError, match=r"glass\.npz: .*y"):
        load_multiclass("glass", folder)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"classes": np.array([0, 1, 2])}, "classes: expected 0 to 1, got 0 to 2"),
        ({"features": np.full((3, 2), np.nan)}, "features: expected finite values"),
        ({"test": np.array([1])}, "test: expected no rows that are also in train, got 1"),
        ({"train": np.array([1, 1])}, "train: expected each row number at most once"),
        ({"train": np.arange(0)}, "train: expected at least one row, got none"),
        ({"test": np.array([3])}, "test: expected rows from 0 to 2, got 3 to 3"),
    ],
)
def test_fields_that_do_not_fit_are_refused(changed, message):
    fields = {
        "name": "small",
        "features": np.ones((3, 2)),
        "classes": np.array([0, 1, 1]),
        "class_names": ("a", "b"),
        "train": np.array([0, 1]),
        "test": np.array([2]),
    }
    with pytest.raises(ValueError, match=message):
        MulticlassData(**(fields | changed))


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "instances", "features", "classes", "test"),
    [
        ("wine", 178, 13, 3, 0),
        ("glass", 214, 9, 6, 0),
        ("vehicle", 846, 18, 4, 0),
        ("segment", 2310, 19, 7, 2100),
        ("letter", 20000, 16, 26, 0),
        ("usps", 9298, 256, 10, 2007),
    ],
)
def test_real_sets_are_as_published(data_folder, name, instances, features, classes, test):
    data = load_multiclass(name, data_folder)
    assert name in MULTICLASS_SETS
    assert data.features.shape == (instances, features)
    assert np.unique(data.classes).tolist() == list(range(classes))
    assert (len(data.class_names), len(data.test)) == (classes, test)
