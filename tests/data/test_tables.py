"""Tables as people have them: commas and tabs, quotes, missing values, and frames of other libraries."""

from __future__ import annotations

import gzip
import time

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmbm_torch.data.formats.table import open_table

CSV = 'age,town,"x, y"\n31,Århus,1.5\n,"Rome, city",NA\n-2e3,?,0\n'


def test_columns_are_numbers_or_texts_and_missing_values_are_marked(tmp_path):
    (tmp_path / "people.csv").write_text(CSV, encoding="utf-8")
    table = open_table(tmp_path / "people.csv")
    assert (table.name, table.num_rows) == ("people", 3)
    assert list(table.columns) == ["age", "town", "x, y"]
    assert np.array_equal(table.columns["age"], [31, np.nan, -2000], equal_nan=True)
    assert table.columns["town"].tolist() == ["Århus", "Rome, city", None]
    assert np.array_equal(table.columns["x, y"], [1.5, np.nan, 0], equal_nan=True)


def test_delimiters_compression_and_byte_order_marks_change_nothing(tmp_path):
    expected = {"a": [1.0, 2.0], "b": ["u", "v"]}
    with gzip.open(tmp_path / "t.tsv.gz", "wt") as stream:
        stream.write("a\tb\n1\tu\n2\tv\n")
    (tmp_path / "s.csv").write_text("a;b\n1;u\n\n2;v\n")
    (tmp_path / "bom.csv").write_text("a,b\r\n1,u\r\n2,v\r\n", encoding="utf-8-sig")
    (tmp_path / "t.arff").write_text(
        "@relation t\n@attribute a {1,2}\n@attribute b {u,v,w}\n@data\n1,u\n2,v\n"
    )
    for name, delimiter in (("t.tsv.gz", None), ("s.csv", ";"), ("bom.csv", None), ("t.arff", None)):
        table = open_table(tmp_path / name, delimiter)
        assert {column: values.tolist() for column, values in table.columns.items()} == expected


def test_frames_are_taken_by_what_they_can_do():
    frame = pd.DataFrame(
        {
            "number": [1, 2, 3],
            "truth": [True, False, True],
            "nullable": pd.array([1, None, 0], dtype="Int64"),
            "maybe": pd.array([True, None, False], dtype="boolean"),
            "text": ["a", None, "b"],
            "kind": pd.Categorical(["u", "v", "u"]),
            7: [0.5, np.nan, 1.5],
        }
    )
    table = open_table(frame)
    assert list(table.columns) == ["number", "truth", "nullable", "maybe", "text", "kind", "7"]
    numbers = {"number": [1, 2, 3], "truth": [1, 0, 1], "nullable": [1, np.nan, 0], "maybe": [1, np.nan, 0]}
    for name, values in {**numbers, "7": [0.5, np.nan, 1.5]}.items():
        assert np.array_equal(table.columns[name], values, equal_nan=True), name
    assert table.columns["text"].tolist() == ["a", None, "b"]
    assert table.columns["kind"].tolist() == ["u", "v", "u"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "expected a first line of column names"),
        ("a,b\n", "expected a table with at least one row"),
        (",b\n0,1\n", r"expected a name for every column, got none for \[0\]"),
        ("a,a\n0,1\n", r"expected each column name once, got \['a'\]"),
        ("a,b\n1,2\n3\n", "line 3: expected 2 values, got 1"),
        ("a,b\n1,2,3\n", "line 2: expected 2 values, got 3"),
        ('a,b\n"1,2\n', "unexpected end of data"),
        (b"\xef\xbb\xbfa,b\n1,\xff\n", "expected text in UTF-8 or cp1252, got other bytes such as 0xff"),
    ],
)
def test_damaged_files_are_refused_by_name(tmp_path, content, message):
    path = tmp_path / "bad.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=rf"(?s)path: .*bad\.csv: .*{message}"):
        open_table(path)


def test_other_sources_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.csv"):
        open_table(tmp_path / "none.csv")
    with pytest.raises(ValueError, match=r"path: expected a file ending in one of \.csv"):
        open_table(tmp_path / "data.xlsx")
    with pytest.raises(TypeError, match="source: expected a path or a data frame, got int"):
        open_table(3)
    (tmp_path / "cut.csv.gz").write_bytes(gzip.compress(CSV.encode() * 50)[:-20])
    with pytest.raises(ValueError, match=r"cut\.csv\.gz"):
        open_table(tmp_path / "cut.csv.gz")
    (tmp_path / "sparse.arff").write_text("@relation t\n@attribute a numeric\n@data\n{0 1}\n")
    with pytest.raises(ValueError, match=r"sparse\.arff: expected a dense ARFF"):
        open_table(tmp_path / "sparse.arff")
    with pytest.raises(
        ValueError,
        match=r"column 'both': expected a column of numbers, texts or dates, got \['int', 'list'\]",
    ):
        open_table(pd.DataFrame({"both": pd.Series([1, ["a"]], dtype=object)}))
    with pytest.raises(ValueError, match="frame: expected at least one row"):
        open_table(pd.DataFrame({"a": []}))


@given(st.binary(max_size=200))
@pytest.mark.filterwarnings("ignore:any.csv. expected text in UTF-8")
def test_no_bytes_do_worse_than_a_clear_refusal(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("fuzz") / "any.csv"
    path.write_bytes(content)
    try:
        table = open_table(path)
    except ValueError as error:
        refusal = str(error)
    else:
        assert {len(values) for values in table.columns.values()} == {table.num_rows}
        return
    assert "any.csv" in refusal


def test_numbers_of_python_code_are_texts(tmp_path):
    (tmp_path / "t.csv").write_text("year,a\n2020_01,1\n2020_02,2\n")
    table = open_table(tmp_path / "t.csv")
    assert table.columns["year"].tolist() == ["2020_01", "2020_02"]


def test_many_columns_take_no_square_of_time(tmp_path):
    names = [f"c{column}" for column in range(100_000)]
    (tmp_path / "t.csv").write_text(",".join(names) + "\n" + ",".join("1" * len(names)) + "\n")
    started = time.process_time()
    assert len(open_table(tmp_path / "t.csv").columns) == len(names)
    assert time.process_time() - started < 20
