from __future__ import annotations

import gzip

import numpy as np
import pytest
from scipy.sparse import csr_array
from sklearn.datasets import dump_svmlight_file

from lmbm_torch.data import read_svmlight

TEXT = "3,0 1:0.5 4:1\n 2:-1  # no label\n7 1:2\n"


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "toy.svm"
    path.write_text(TEXT)
    return path


def test_lines_become_rows(path):
    data = read_svmlight(path)
    assert isinstance(data.features, csr_array)
    np.testing.assert_array_equal(data.features.toarray(), [[0.5, 0, 0, 1], [0, -1, 0, 0], [2, 0, 0, 0]])
    np.testing.assert_array_equal(data.labels, [[1, 1, 0], [0, 0, 0], [0, 0, 1]])
    assert data.label_names == ("0", "3", "7")


def test_given_sizes_let_a_test_file_be_joined(path, tmp_path):
    other = tmp_path / "test.svm"
    other.write_text("7 6:1\n")
    sizes = {"labels": range(8), "num_features": 6}
    data = read_svmlight(path, **sizes).with_test(read_svmlight(other, **sizes))
    assert (data.num_features, data.num_labels, len(data.test)) == (6, 8, 1)
    np.testing.assert_array_equal(data.test_labels, [[0, 0, 0, 0, 0, 0, 0, 1]])


def test_what_scikit_learn_writes_is_read_back(tmp_path):
    generator = np.random.default_rng(0)
    x = generator.normal(size=(20, 6)) * (generator.random((20, 6)) < 0.5)
    y = (generator.random((20, 4)) < 0.4).astype(float)
    dump_svmlight_file(x, y, str(tmp_path / "written.svm"), multilabel=True, zero_based=True)
    packed = tmp_path / "written.svm.gz"
    packed.write_bytes(gzip.compress((tmp_path / "written.svm").read_bytes()))
    for path in (tmp_path / "written.svm", packed):
        data = read_svmlight(path, range(4), num_features=6, zero_based=True)
        np.testing.assert_allclose(data.features.toarray(), x, rtol=1e-12)
        np.testing.assert_array_equal(data.labels, y)


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (TEXT, {"labels": [0, 3]}, r"labels: expected all labels of the file, got a list without \[7.0\]"),
        (TEXT, {"labels": [0, 3, 7, 7]}, "label_names: expected distinct names"),
        (TEXT, {"num_features": 2}, "n_features"),
        ("1 0:2\n", {}, "index 0|zero-based|[Ii]nvalid index"),
        ("1 2\n", {}, ""),
        ("1 a:2\n", {}, ""),
        ("1 1:x\n", {}, ""),
        ("cat 1:1\n", {}, "could not convert"),
        ("1 1:nan\n", {}, "features: expected finite values"),
        ("", {}, ""),
    ],
)
def test_bad_files_are_refused(path, text, options, message):
    path.write_text(text)
    with pytest.raises(ValueError, match=r"path: .*toy\.svm: .*(" + message + ")"):
        read_svmlight(path, **options)


def test_numbers_to_be_predicted_are_no_labels(path):
    path.write_text("".join(f"{row}.5 1:1\n" for row in range(50_000)))
    with pytest.raises(
        ValueError, match=r"toy\.\w+: labels: .* got 50000 x 50000; are these numbers to be predicted"
    ):
        read_svmlight(path)


def test_missing_and_truncated_files_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"path: .*nothing\.svm"):
        read_svmlight(tmp_path / "nothing.svm")
    packed = tmp_path / "cut.svm.gz"
    content = gzip.compress(TEXT.encode())
    for length in range(1, len(content)):
        packed.write_bytes(content[:length])
        with pytest.raises(ValueError, match=r"path: .*cut\.svm\.gz"):
            read_svmlight(packed)
