"""Data sets whose instances are each of one class, by name, in a folder that the user keeps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from os import PathLike

import numpy as np

from lmbm_torch.checks import check_count, check_finite, check_shape
from lmbm_torch.data.dataset import check_parts
from lmbm_torch.data.features import check_below
from lmbm_torch.data.formats.npz import open_archive
from lmbm_torch.data.named import data_folder
from lmbm_torch.shapes import Float, Int

MULTICLASS_SETS = {
    "glass": "uci/glass.npz",
    "letter": "uci/letter.npz",
    "segment": "uci/segment.npz",
    "usps": "usps/usps.npz",
    "vehicle": "uci/vehicle.npz",
    "wine": "uci/wine.npz",
}
"""Where each set lies in the folder."""


@dataclass(frozen=True, eq=False, repr=False)
class MulticlassData:
    """A multi-class data set: raw dense features, and which instances are for training and testing.

    Args:
        name: for messages and reports.
        features: float64.
        classes: int64, 0 … the number of class names − 1.
        class_names: one per class.
        train, test: rows, none twice and none in both; ``test`` may be empty.

    Raises:
        ValueError: a field that does not fit this description.
    """

    name: str
    features: Float[np.ndarray, "instances features"]
    classes: Int[np.ndarray, " instances"]
    class_names: tuple[str, ...]
    train: Int[np.ndarray, " train"]
    test: Int[np.ndarray, " test"]

    def __post_init__(self) -> None:
        check_shape("features", self.features, None, None)
        check_finite("features", self.features)
        check_shape("classes", self.classes, len(self.features))
        check_below("classes", self.classes, len(self.class_names))
        check_parts(len(self.features), train=self.train, test=self.test)

    def __repr__(self) -> str:
        return (
            f"<{self.name}: {len(self.train)} instances to train and {len(self.test)} to test, "
            f"{self.features.shape[1]} features, {len(self.class_names)} classes>"
        )

    def split_anew(self, num_train: int, num_test: int, seed: int) -> MulticlassData:
        """Return the same instances, pooled, with other training and test parts, drawn at random.

        Raises:
            ValueError: counts below one, or more instances than there are.
        """
        check_count("num_train", num_train)
        check_count("num_test", num_test)
        if num_train + num_test > len(self.features):
            raise ValueError(
                f"num_train, num_test: expected at most {len(self.features)} instances in all, "
                f"got {num_train + num_test}"
            )
        rows = np.random.default_rng(seed).permutation(len(self.features))
        return replace(self, train=rows[:num_train], test=rows[num_train : num_train + num_test])


def load_multiclass(name: str, folder: str | PathLike | None = None) -> MulticlassData:
    """Read one of ``MULTICLASS_SETS`` with the split it comes with, or all as the training part.

    Args:
        name: of the set.
        folder: by default the environment variable LMBM_DATA.

    Raises:
        FileNotFoundError: no such folder, or the set is not in it.
        ValueError: an unknown name, no folder given at all, or a file that cannot be read.
    """
    if name not in MULTICLASS_SETS:
        raise ValueError(f"name: expected one of {list(MULTICLASS_SETS)}, got {name!r}")
    path = data_folder(folder) / MULTICLASS_SETS[name]
    with open_archive(path) as archive:
        suffixes = ("",) if "x" in archive else ("_train", "_test")
        features = [archive[f"x{suffix}"] for suffix in suffixes]
        values, classes = np.unique(np.concatenate([archive[f"y{s}"] for s in suffixes]), return_inverse=True)
        names = tuple(map(str, archive.get("class_names", values)))
        train, test = np.split(np.arange(len(classes)), [len(features[0])])
        pooled = np.concatenate(features).astype(np.float64, casting="same_kind")
        return MulticlassData(name, pooled, classes.astype(np.int64), names, train, test)
