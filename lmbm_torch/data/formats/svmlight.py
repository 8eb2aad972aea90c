"""svmlight files with several labels on a line, as in the LIBSVM collection."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from os import PathLike

import numpy as np
from scipy.sparse import csr_array

from lmbm_torch.data.dataset import MultilabelData, without_split
from lmbm_torch.data.features import Features, check_dense, numbered
from lmbm_torch.extras import naming_extras
from lmbm_torch.files import reading
from lmbm_torch.incoming import UNREADABLE, LimitedLines, lines, title


def read_svmlight(
    path: str | PathLike,
    labels: Sequence[int] | None = None,
    num_features: int | None = None,
    zero_based: bool = False,
) -> MultilabelData:
    r"""Read a file of lines such as ``2,5 1:0.3 7:1`` (plain, .gz or .bz2); all rows become training rows.

    Args:
        labels: the numbers of the labels, in the order of the columns; by default all numbers in the file,
            ascending. If you add a test file later, give ``labels`` and ``num_features``.
        num_features: number of features; by default the largest index in the file.
        zero_based: whether features count from 0; the LIBSVM collection counts from 1.

    Raises:
        FileNotFoundError: the file does not exist.
        ValueError: a line cannot be parsed, a label is not in ``labels``, or an index is too large for
            ``num_features``. The message names the file.

    Examples:
        >>> import tempfile, pathlib
        >>> from lmbm_torch.data import read_svmlight
        >>> path = pathlib.Path(tempfile.mkdtemp(), "toy.svm")
        >>> count = path.write_text("2,5 1:0.3 7:1\n5 2:1\n")
        >>> read_svmlight(path).labels.tolist()
        [[1.0, 1.0], [0.0, 1.0]]
    """
    with naming_extras():
        from sklearn.datasets import load_svmlight_file

    with reading(path, OverflowError, *UNREADABLE) as file:
        with lines(file) as found:
            try:
                features, label_sets = load_svmlight_file(
                    _Lines(found),
                    n_features=num_features,
                    multilabel=True,
                    zero_based=zero_based,  # pyright: ignore[reportArgumentType]  # guessed from "auto"
                )
            except (ValueError, OverflowError) as error:
                # The error belongs to the last line that was read, or to the whole file.
                words = str(error) or type(error).__name__
                raise ValueError(
                    words if words.startswith("line ") else f"line {found.number}: {words}"
                ) from error
        occurring = {label for labels_of_row in label_sets for label in labels_of_row}
        columns = sorted(occurring) if labels is None else list(labels)
        if unknown := sorted(occurring - set(columns)):
            raise ValueError(f"labels: expected all labels of the file, got a list without {unknown[:5]}")
        check_dense("labels", len(label_sets), len(columns), "are these numbers to be predicted, not labels?")
        column = {label: index for index, label in enumerate(columns)}
        indicator = np.zeros((len(label_sets), len(columns)), dtype=np.float32)
        for row, labels_of_row in enumerate(label_sets):
            indicator[row, [column[label] for label in labels_of_row]] = 1
        features: Features = csr_array(features)
        features.sum_duplicates()
        names = [f"{label:.15g}" for label in columns], numbered("feature", features.shape[1])
        return without_split(title(file), features, indicator, *names)


class _Lines:
    """Lines of text as a stream of bytes; scikit-learn takes objects with a method ``read`` for streams."""

    def __init__(self, found: LimitedLines[str]) -> None:
        self._found = found

    def __iter__(self) -> Iterator[bytes]:
        return (line.encode() for line in self._found)

    def read(self) -> bytes:
        """Return the remaining lines."""
        return b"".join(self)
