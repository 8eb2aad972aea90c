from __future__ import annotations

import arff
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.sparse import csr_array

from lmbm_torch.data import read_arff

DENSE = """% made up
@relation 'toy: -C -2'
@attribute size numeric
@attribute\tcount\tinteger
@attribute colour {0,1,2}
@attribute 'is red' {0,1}
@attribute is_big {FALSE,TRUE}
@data
0.5,3,2,1,FALSE
% between rows
-1e-3,1.5,0,0,TRUE

7,0,1,?,TRUE
"""
SPARSE = """@relation toy
@attribute one numeric
@attribute two {0,1}
@attribute three numeric
@attribute beach {0,1}
@attribute sunset {0,1}
@data
{0 2.5, 3 1}
{}
{4 1,2 -1,1 1}
{3 ?}
"""
XML = """<?xml version="1.0" encoding="utf-8"?>
<labels xmlns="http://mulan.sourceforge.net/labels">
<label name="is_big"><label name="is red"></label></label>
</labels>
"""
DENSE_FEATURES = [[0.5, 3, 2], [-1e-3, 1.5, 0], [7, 0, 1]]
DENSE_LABELS = [[1, 0], [0, 1], [np.nan, 1]]


@pytest.fixture
def dense(tmp_path):
    path = tmp_path / "dense.arff"
    path.write_text(DENSE)
    return path


@pytest.fixture
def sparse(tmp_path):
    path = tmp_path / "sparse.arff"
    path.write_text(SPARSE)
    return path


@pytest.fixture
def xml(tmp_path):
    path = tmp_path / "labels.xml"
    path.write_text(XML)
    return path


def test_labels_can_be_told_in_every_way(dense, xml):
    for columns in (-2, ["is red", "is_big"], xml, None):
        data = read_arff(dense, columns)
        np.testing.assert_array_equal(data.features, DENSE_FEATURES)
        np.testing.assert_array_equal(data.labels, DENSE_LABELS)
        assert data.label_names == ("is red", "is_big")
        assert data.feature_names == ("size", "count", "colour")
        assert (data.name, len(data.train), len(data.test)) == ("dense", 3, 0)


def test_order_of_given_names_is_kept(dense):
    data = read_arff(dense, ["is_big", "is red"])
    np.testing.assert_array_equal(data.labels, np.array(DENSE_LABELS)[:, ::-1])


def test_first_attributes_can_be_labels(tmp_path):
    path = tmp_path / "first.arff"
    path.write_text("@relation 'x: -C 1'\n@attribute y {0,1}\n@attribute x real\n@data\n1,0.5\n0,2\n")
    for columns in (1, None):
        data = read_arff(path, columns)
        np.testing.assert_array_equal(data.labels, [[1], [0]])
        np.testing.assert_array_equal(data.features, [[0.5], [2]])


def test_sparse_files_give_sparse_features(sparse):
    data = read_arff(sparse, -2)
    assert isinstance(data.features, csr_array)
    np.testing.assert_array_equal(data.features.toarray(), [[2.5, 0, 0], [0, 0, 0], [0, 1, -1], [0, 0, 0]])
    np.testing.assert_array_equal(data.labels, [[1, 0], [0, 0], [0, 1], [np.nan, 0]])
    between = read_arff(sparse, ["beach", "two"])
    np.testing.assert_array_equal(between.labels, [[1, 0], [0, 0], [0, 1], [np.nan, 0]])


@given(
    features=arrays(
        np.float64, (5, 3), elements=st.floats(allow_nan=False, allow_infinity=False, width=32) | st.just(0.0)
    ),
    labels=arrays(np.float64, (5, 2), elements=st.sampled_from([0.0, 1.0])),
    sparse=st.booleans(),
)
@settings(max_examples=25)
def test_what_liac_arff_writes_is_read_back(tmp_path_factory, features, labels, sparse):
    path = tmp_path_factory.mktemp("arff") / "written.arff"
    rows = [[*x, *(str(int(value)) for value in y)] for x, y in zip(features, labels, strict=True)]
    if sparse:
        rows = [{k: value for k, value in enumerate(row) if value not in (0, "0")} for row in rows]
    attributes = [*((f"x{k}", "REAL") for k in range(3)), *((f"y{k}", ["0", "1"]) for k in range(2))]
    path.write_text(arff.dumps({"relation": "written", "attributes": attributes, "data": rows}))
    data = read_arff(path, -2)
    read = data.features.toarray() if isinstance(data.features, csr_array) else data.features
    np.testing.assert_array_equal(read, features)
    np.testing.assert_array_equal(data.labels, labels)


@pytest.mark.parametrize("text", [DENSE, SPARSE])
def test_truncated_files_are_refused_or_shorter(tmp_path, text):
    """A cut at the end of a row cannot be seen; no other cut may change what is read."""
    path = tmp_path / "cut.arff"
    path.write_text(text)
    whole = read_arff(path, -2)
    refused = 0
    for length in range(len(text)):
        path.write_text(text[:length])
        try:
            part = read_arff(path, -2)
        except ValueError as error:
            assert str(path) in str(error)  # noqa: PT017
            refused += 1
        else:
            np.testing.assert_array_equal(part.labels, whole.labels[: part.num_instances])
            assert abs(part.features - whole.features[: part.num_instances]).max() == 0
    assert refused > len(text) - 25


@given(position=st.integers(0, len(DENSE) - 1), byte=st.integers(0, 255), sparse=st.booleans())
@settings(max_examples=150)
@pytest.mark.filterwarnings("ignore:corrupted.arff. expected text in UTF-8")
def test_corrupted_files_never_fail_otherwise(tmp_path_factory, position, byte, sparse):
    content = bytearray((SPARSE if sparse else DENSE).encode())
    content[position % len(content)] = byte
    path = tmp_path_factory.mktemp("arff") / "corrupted.arff"
    path.write_bytes(content)
    try:
        assert read_arff(path, -2).num_labels == 2
    except ValueError as error:
        assert "corrupted.arff" in str(error)  # noqa: PT017


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (["is red", "is blue"], r"labels: .* unknown names \['is blue'\]"),
        (["is red", "is red"], "labels: expected each name only once"),
        ([], "labels: expected some columns as labels, others as features"),
        (["is red", "size"], "labels: expected 0, 1 or NaN"),
        (5, "labels: expected a number from 1 to 4, got 5"),
        (0, "labels: expected a number from 1 to 4, got 0"),
    ],
)
def test_labels_that_do_not_fit_are_refused(dense, columns, message):
    with pytest.raises(ValueError, match=r"path: .*dense\.arff: " + message):
        read_arff(dense, columns)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("{0,1,2}", "{red,green,blue}"), r"line 9: attribute .colour.: expected one of .*blue.*, got .2."),
        (("{0,1,2}", "STRING"), r"strings in \['colour'\]"),
        (("{0,1,2}", "{0,1,2,many}"), "attribute 'colour': expected numbers"),
        (("0.5,", "?,"), "features: expected finite values, got 1 NaN"),
        (("0.5,", "nan,"), "features: expected finite values, got 1 NaN"),
        (("0.5,3", "0.5"), "line 9: expected 5 values, got 4"),
        (("7,0", "7,0,0%"), "line 13: expected 5 values, got 3"),
        (("0,0,TRUE", "0,,TRUE"), "line 11: expected values between commas, got an empty value"),
        (("0.5,", "half,"), "line 9: attribute .size.: expected a number, got .half."),
        (("-C -2", ""), "labels: expected MEKA's option"),
        (("-C -2", "-C 0"), "labels: expected a number from 1 to 4, got 0"),
        (("{FALSE,TRUE}", "{FALSE,TRUE,2}"), None),
        (("colour", "size"), r"expected distinct names of attributes, got ..size.. more"),
    ],
)
def test_bad_dense_files_are_refused(dense, change, message):
    dense.write_text(DENSE.replace(*change))
    if message is None:
        np.testing.assert_array_equal(read_arff(dense).labels, DENSE_LABELS)
    else:
        with pytest.raises(ValueError, match=r"path: .*dense\.arff: .*" + message):
            read_arff(dense)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("{0 2.5, 3 1}", "{9 2.5, 3 1}"), r"line 8: expected distinct indices from 0 to 4, got \[9, 3\]"),
        (("{3 ?}", "{36 ?}"), r"line 11: expected distinct indices from 0 to 4, got \[36\]"),
        (("{}", "1,2,3,0,1"), "line 9: expected a row in braces, like the first row"),
        (("two {0,1}", "two {1,0}"), r"expected 0 as the first value .* columns \[1\]"),
        (("sunset {0,1}", "sunset {1,0}"), r"expected 0 as the first value .* columns \[4\]"),
        (("{0 2.5", "{0 ?"), "features: expected finite values"),
    ],
)
def test_bad_sparse_files_are_refused(sparse, change, message):
    sparse.write_text(SPARSE.replace(*change))
    with pytest.raises(ValueError, match=r"path: .*sparse\.arff: .*" + message):
        read_arff(sparse, -2)


def test_missing_and_bad_label_files_are_named(tmp_path, dense, xml):
    with pytest.raises(FileNotFoundError, match=r"path: .*nothing\.arff"):
        read_arff(tmp_path / "nothing.arff", -2)
    with pytest.raises(FileNotFoundError, match=r"labels: .*nothing\.xml"):
        read_arff(dense, tmp_path / "nothing.xml")
    for text in (
        XML[:-5],
        XML.replace("utf-8", "utf-9"),
        "<labels></labels>",
        "<labels><label/></labels>",
        "",
    ):
        xml.write_text(text)
        with pytest.raises(ValueError, match=r"labels: .*labels\.xml"):
            read_arff(dense, xml)
    xml.write_text(XML.replace("is_big", "is_small"))
    with pytest.raises(ValueError, match=r"dense\.arff: labels: .* unknown names \['is_small'\]"):
        read_arff(dense, xml)
