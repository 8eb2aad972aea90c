"""Data sets of OpenML, by their number."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Any
from urllib.error import URLError

from scipy.sparse import csr_array, issparse

from lmbm_torch.data.dataset import MultilabelData
from lmbm_torch.data.formats.attributes import labels_apart, places
from lmbm_torch.extras import naming_extras


def fetch_openml(
    data_id: int,
    labels: Sequence[str] | None = None,
    sha256: str | None = None,
    cache_folder: str | PathLike | None = None,
) -> MultilabelData:
    """Download a data set once through scikit-learn, which verifies the publisher's checksum.

    Args:
        data_id: OpenML's number of the data set, which fixes its version.
        labels: names of the attributes that are labels, by default the publisher's targets.
        sha256: of the content, as :meth:`MultilabelData.sha256` gives it; nothing else is ever returned.
        cache_folder: by default scikit-learn's own.

    Raises:
        ConnectionError: OpenML could not be reached.
        ValueError: no such data set; a checksum, the publisher's or ``sha256``, that does not match; labels
            that are not there, or not binary; an attribute of strings or named categories.
    """
    with naming_extras():
        import sklearn.datasets

    home = None if cache_folder is None else str(cache_folder)
    try:
        # All columns as data: scikit-learn's own separation leaves what a sparse target omits undefined.
        bunch = sklearn.datasets.fetch_openml(
            data_id=data_id, target_column=None, as_frame=False, parser="liac-arff", data_home=home
        )
        data = _dataset(bunch, labels)
    except (URLError, TimeoutError) as error:
        raise ConnectionError(f"data_id: could not fetch OpenML data set {data_id}: {error}") from error
    except ValueError as error:
        raise ValueError(f"data_id: OpenML data set {data_id}: {error}") from error
    if sha256 is not None and data.sha256() != sha256.lower():
        raise ValueError(f"sha256: OpenML data set {data_id}: expected {sha256}, got {data.sha256()}")
    return data


def _dataset(bunch: Any, labels: Sequence[str] | None) -> MultilabelData:
    names = list(bunch.feature_names)
    chosen = bunch.details.get("default_target_attribute", "").split(",") if labels is None else list(labels)
    # scikit-learn, too, gives a nominal value as its position among the declared ones.
    codes = csr_array(bunch.data) if issparse(bunch.data) else bunch.data
    return labels_apart(bunch.details["name"], codes, names, bunch.categories or {}, places(chosen, names))
