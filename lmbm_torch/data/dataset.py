"""The record of a multi-label data set, which every reader returns."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np
from scipy.sparse import csr_array, issparse, vstack

from lmbm_torch.checks import check_labels, check_shape
from lmbm_torch.data.features import Features, check_features, with_narrow_indices
from lmbm_torch.data.tables.schema import Schema
from lmbm_torch.shapes import Bool, Float, Int


@dataclass(frozen=True, eq=False, repr=False)
class MultilabelData:
    """A multi-label data set: raw features, {0, 1} labels, and the rows for training, validation and testing.

    Args:
        name: name for messages and reports.
        features: ``(instances, features)``, float32 or float64, a dense array or a CSR array in canonical
            format (column indices sorted, without duplicates), which is kept with indices of 32 bits.
        labels: ``(instances, labels)``, float; 0, 1, or NaN for an unknown label.
        label_names: distinct names of the labels.
        feature_names: names of the features.
        train: rows of the training part, at least one.
        test: rows of the test part, disjoint from the training part; may be empty.
        validation: rows of the validation part of the data set, if any; disjoint from the other parts.
        schema: how the columns of a table became ``features`` and ``labels``; None for data sets of matrices.
        uncertain: mask ``(instances, labels)`` of NaN in ``labels`` that estimators replace by predictions of
            a first fit; None without uncertain labels.

    Raises:
        ValueError: a field differs from the description; the message names the field.

    Examples:
        >>> import numpy as np
        >>> from lmbm_torch.data import MultilabelData
        >>> X, Y, rows = np.eye(3), np.array([[1.0, 0], [0, 1], [1, 1]]), np.arange(3)
        >>> MultilabelData("toy", X, Y, ("sun", "sea"), ("a", "b", "c"), rows[:2], rows[2:])
        <toy: 2 instances to train and 1 to test, 3 features, 2 labels>
    """

    name: str
    features: Features
    labels: Float[np.ndarray, "instances labels"]
    label_names: tuple[str, ...]
    feature_names: tuple[str, ...]
    train: Int[np.ndarray, " train"]
    test: Int[np.ndarray, " test"]
    validation: Int[np.ndarray, " validation"] = field(default_factory=lambda: np.arange(0))
    schema: Schema | None = None
    uncertain: Bool[np.ndarray, "instances labels"] | None = None

    def __post_init__(self) -> None:
        check_features("features", self.features)
        object.__setattr__(self, "features", with_narrow_indices(self.features))
        check_shape("labels", self.labels, self.features.shape[0], None)
        if not np.issubdtype(self.labels.dtype, np.floating):
            raise ValueError(f"labels: expected a floating-point dtype, got {self.labels.dtype}")
        check_labels("labels", self.labels, allow_missing=True)
        if self.uncertain is not None:
            check_shape("uncertain", self.uncertain, *self.labels.shape)
        check_names(self)
        check_parts(self.num_instances, train=self.train, test=self.test, validation=self.validation)

    def __repr__(self) -> str:
        return (
            f"<{self.name}: {len(self.train)} instances to train and {len(self.test)} to test, "
            f"{self.num_features} features, {self.num_labels} labels>"
        )

    @property
    def num_instances(self) -> int:
        return self.features.shape[0]

    @property
    def num_features(self) -> int:
        return self.features.shape[1]

    @property
    def num_labels(self) -> int:
        return self.labels.shape[1]

    @property
    def train_features(self) -> Features:
        return self.features[self.train]

    @property
    def train_labels(self) -> Float[np.ndarray, "train labels"]:
        return self.labels[self.train]

    @property
    def test_features(self) -> Features:
        return self.features[self.test]

    @property
    def test_labels(self) -> Float[np.ndarray, "test labels"]:
        return self.labels[self.test]

    def with_split(self, train: Int[np.ndarray, " train"], test: Int[np.ndarray, " test"]) -> MultilabelData:
        """Return the same instances with other training and test parts, and without a validation part."""
        names, rest = (self.label_names, self.feature_names), (train[:0], self.schema, self.uncertain)
        return MultilabelData(self.name, self.features, self.labels, *names, train, test, *rest)

    def check_certain(self) -> None:
        """Raise ValueError if uncertain labels remain, which only estimators can replace by predictions."""
        if self.uncertain is not None:
            raise ValueError(
                "uncertain: expected 'zeros', 'ones' or 'ignored', got 'self_trained', which only "
                "estimators (Predictor.fit) support"
            )

    def with_test(self, test: MultilabelData) -> MultilabelData:
        """Return one data set: the rows of ``self`` for training, and the rows of ``test`` for testing.

        The schema is kept if both data sets have the same schema.

        Raises:
            ValueError: the two data sets differ in label names or feature names, or only one is sparse.
        """
        for names in ("label_names", "feature_names"):
            if getattr(self, names) != getattr(test, names):
                raise ValueError(
                    f"test: expected the {names} of train ({self.name}), got other names ({test.name})"
                )
        if issparse(self.features) != issparse(test.features):
            raise ValueError(
                "test: expected train and test to be both dense or both sparse, got one dense and one sparse"
            )
        stack = vstack if issparse(self.features) else np.vstack
        schema = self.schema if self.schema == test.schema else None
        features, labels = stack([self.features, test.features]), np.vstack([self.labels, test.labels])
        train, held_out = np.split(np.arange(len(labels)), [self.num_instances])
        rows = {"train": train, "test": held_out, "validation": train[:0]}
        mask = self.uncertain
        if mask is not None:
            mask = np.vstack([mask, np.zeros(test.labels.shape, np.bool_)])
        names = self.label_names, self.feature_names
        return MultilabelData(self.name, features, labels, *names, **rows, schema=schema, uncertain=mask)

    def features_at(self, rows: Int[np.ndarray, " rows"]) -> Features:
        """Return the features of some rows; for data sets on disk, only slices read rows."""
        return self.features[rows]

    def sha256(self) -> str:
        """Return a hexadecimal digest of names, shapes, values and split.

        The digest does not depend on the file format. Values are hashed as float64, so numbers stored as
        float32 give the same digest.
        """
        digest = hashlib.sha256(repr((self.label_names, self.feature_names, self.features.shape)).encode())
        features = self.features
        if isinstance(features, csr_array):
            values, *places = features.data, features.indices, features.indptr
        else:
            values, places = features, []
        for numbers in (values, self.labels):
            digest.update(np.ascontiguousarray(numbers, dtype="<f8").tobytes())
        for numbers in (*places, self.train, self.test, self.validation):
            digest.update(np.ascontiguousarray(numbers, dtype="<i8").tobytes())
        return digest.hexdigest()


def without_split(
    name: str,
    features: Features,
    labels: Float[np.ndarray, "instances labels"],
    label_names: Sequence[str],
    feature_names: Sequence[str],
    schema: Schema | None = None,
) -> MultilabelData:
    """Return a data set without test rows; all rows are training rows."""
    names, rows = (tuple(label_names), tuple(feature_names)), np.arange(len(labels))
    return MultilabelData(name, features, labels, *names, rows, rows[:0], schema=schema)


def check_names(data: MultilabelData) -> None:
    """Raise ValueError unless each label and each feature has a text as name; names of labels must differ."""
    for name, count in (("label_names", data.num_labels), ("feature_names", data.num_features)):
        names = getattr(data, name)
        if not isinstance(names, tuple) or not all(isinstance(entry, str) for entry in names):
            raise ValueError(f"{name}: expected a tuple of strings, got {type(names).__name__}")
        if len(names) != count:
            raise ValueError(f"{name}: expected {count} names, got {len(names)}")
    if twice := sorted(name for name, count in Counter(data.label_names).items() if count > 1):
        raise ValueError(f"label_names: expected distinct names, got {twice} more than once")


def check_parts(num_instances: int, **parts: Int[np.ndarray, " rows"]) -> None:
    """Raise ValueError unless the named parts are disjoint sets of rows, and ``train`` is not empty."""
    for name, rows in parts.items():
        if rows.ndim != 1 or not np.issubdtype(rows.dtype, np.integer):
            raise ValueError(f"{name}: expected integers (rows,), got {rows.dtype} of shape {rows.shape}")
        if len(rows) and (rows.min() < 0 or rows.max() >= num_instances):
            raise ValueError(
                f"{name}: expected rows from 0 to {num_instances - 1}, got {rows.min()} to {rows.max()}"
            )
        if len(np.unique(rows)) < len(rows):
            raise ValueError(f"{name}: expected each row number at most once, got a row number twice")
    if len(parts["train"]) == 0:
        raise ValueError("train: expected at least one row, got none")
    for first, second in combinations(parts, 2):
        if shared := len(np.intersect1d(parts[first], parts[second])):
            raise ValueError(f"{second}: expected no rows that are also in {first}, got {shared} such rows")
