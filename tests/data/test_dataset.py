from __future__ import annotations

from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest
from scipy.sparse import coo_array, csr_array

from lmbm_torch.data import MultilabelData
from lmbm_torch.data.dataset import without_split
from lmbm_torch.data.features import numbered


def toy(sparse=False, **changes):
    features = np.arange(12.0).reshape(4, 3)
    fields = {
        "name": "toy",
        "features": csr_array(features) if sparse else features,
        "labels": np.array([[0, 1], [1, np.nan], [0, 0], [1, 1]]),
        "label_names": ("first", "second"),
        "feature_names": numbered("feature", 3),
        "train": np.array([3, 0]),
        "test": np.array([1]),
    }
    return MultilabelData(**(fields | changes))


@pytest.mark.parametrize("sparse", [False, True])
def test_parts_are_rows_of_the_whole(sparse):
    data = toy(sparse)
    dense = data.train_features.toarray() if sparse else data.train_features
    np.testing.assert_array_equal(dense, [[9, 10, 11], [0, 1, 2]])
    np.testing.assert_array_equal(data.train_labels, [[1, 1], [0, 1]])
    np.testing.assert_array_equal(data.test_labels, [[1, np.nan]])
    assert data.test_features.shape == (1, 3)
    assert (data.num_instances, data.num_features, data.num_labels) == (4, 3, 2)
    assert repr(data) == "<toy: 2 instances to train and 1 to test, 3 features, 2 labels>"


def test_fields_cannot_be_set():
    with pytest.raises(FrozenInstanceError):
        toy().labels = np.zeros((4, 2))


@pytest.mark.usefixtures("no_shape_checks")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"features": np.ones((4, 0))}, "features: expected shape"),
        ({"features": np.ones(4)}, "features: expected shape"),
        ({"features": np.full((4, 3), np.nan)}, "features: expected finite values, got 12 NaN"),
        ({"features": csr_array(np.full((4, 3), np.inf))}, "features: expected finite values"),
        ({"features": np.ones((4, 3), dtype=int)}, "features: expected the dtype float32 or float64"),
        ({"features": coo_array(np.ones((4, 3)))}, "features: expected a dense array or scipy"),
        (
            {"features": csr_array((np.ones(2), [1, 0], [0, 2, 2, 2, 2]), shape=(4, 3))},
            "features: expected sorted distinct column indices",
        ),
        ({"labels": np.ones((3, 2))}, "labels: expected shape"),
        ({"labels": np.full((4, 2), 2.0)}, "labels: expected 0, 1 or NaN"),
        ({"labels": np.ones((4, 2), dtype=int)}, "labels: expected a floating-point dtype"),
        ({"label_names": ("one",)}, "label_names: expected 2 names"),
        ({"label_names": ("one", "one")}, "label_names: expected distinct names"),
        ({"label_names": ["one", "two"]}, "label_names: expected a tuple of strings"),
        ({"feature_names": ("one",)}, "feature_names: expected 3 names"),
        ({"train": np.array([0, 4])}, "train: expected rows from 0 to 3"),
        ({"train": np.array([-1])}, "train: expected rows from 0 to 3"),
        ({"train": np.array([0, 0])}, "train: expected each row number at most once"),
        ({"train": np.array([True, False])}, "train: expected integers .rows,."),
        ({"train": np.arange(0)}, "train: expected at least one row"),
        ({"test": np.array([3])}, "test: expected no rows that are also in train"),
    ],
)
def test_bad_fields_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        toy(**changes)


def test_with_split_changes_the_split_alone():
    data = toy()
    other = data.with_split(np.array([1, 2]), np.array([0]))
    np.testing.assert_array_equal(other.train_labels, data.labels[[1, 2]])
    assert other.features is data.features
    np.testing.assert_array_equal(data.train, [3, 0])


@pytest.mark.parametrize("sparse", [False, True])
def test_with_test_stacks_a_training_and_a_test_set(sparse):
    data = toy(sparse)
    joined = data.with_test(toy(sparse, name="other"))
    assert (joined.num_instances, len(joined.train), len(joined.test)) == (8, 4, 4)
    np.testing.assert_array_equal(joined.test_labels, data.labels)
    np.testing.assert_array_equal(joined.train, np.arange(4))
    assert isinstance(joined.features, csr_array) == sparse


def test_with_test_refuses_what_does_not_fit():
    with pytest.raises(ValueError, match="test: expected the label_names of train"):
        toy().with_test(toy(label_names=("second", "first")))
    with pytest.raises(ValueError, match="test: expected the feature_names of train"):
        toy().with_test(toy(feature_names=numbered("other", 3)))
    with pytest.raises(ValueError, match="test: expected train and test to be both dense or both sparse"):
        toy().with_test(toy(sparse=True))


@pytest.mark.parametrize("sparse", [False, True])
def test_digest_knows_content_alone(sparse):
    data = toy(sparse)
    assert data.sha256() == toy(sparse, name="renamed", labels=data.labels.astype(np.float32)).sha256()
    assert data.sha256() == replace(data, features=data.features.astype(np.float32)).sha256()
    changed = data.features.copy()
    changed[2, 1] = 77
    others = (
        {"features": changed},
        {"labels": np.ones((4, 2))},
        {"label_names": ("second", "first")},
        {"feature_names": numbered("other", 3)},
        {"train": np.array([0, 3])},
        {"test": np.array([2])},
    )
    assert len({data.sha256(), *(replace(data, **other).sha256() for other in others)}) == 7


def test_without_split_trains_on_everything():
    data = toy()
    whole = without_split("whole", data.features, data.labels, data.label_names, data.feature_names)
    assert (len(whole.train), len(whole.test)) == (4, 0)
    assert whole.test_features.shape == (0, 3)
