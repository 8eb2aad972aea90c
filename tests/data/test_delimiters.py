"""CSV files are read by the delimiter that they look like, and columns of names and texts are kept."""

from __future__ import annotations

import gzip

import numpy as np
import pytest
from scipy.sparse import issparse
from sklearn.feature_extraction.text import TfidfVectorizer

from lmbm_torch.data import read_table
from lmbm_torch.data.formats.table import cells, new_rows, open_table
from lmbm_torch.persistence.archives import pack, unpack

ROWS = [("x", "note", "tag"), ("1", "a", "1"), ("2", "b", "0"), ("3", "a", "1")]


def written(tmp_path, delimiter, rows=ROWS, name="mine.csv"):
    file = tmp_path / name
    file.write_text("\n".join(delimiter.join(row) for row in rows), encoding="utf-8")
    return file


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_the_delimiter_is_found_and_kept(tmp_path, delimiter):
    table = open_table(written(tmp_path, delimiter))
    assert [*table.columns] == ["x", "note", "tag"]
    assert table.columns["x"].tolist() == [1, 2, 3]
    assert table.delimiter == delimiter


def test_a_packed_file_is_sniffed_too(tmp_path):
    file = tmp_path / "mine.csv.gz"
    file.write_bytes(gzip.compress(written(tmp_path, ";").read_bytes()))
    assert open_table(file).delimiter == ";"


def test_numbers_with_decimal_commas_are_numbers_beside_semicolons(tmp_path):
    rows = [("x", "y", "z"), ("1,5", "7", "1,5"), ("-2", "1.000,5", "?"), ("0,25", "8", "2.5")]
    columns = open_table(written(tmp_path, ";", rows)).columns
    assert columns["x"].tolist() == [1.5, -2, 0.25]
    # A point may stand for thousands: such a column is no number.
    assert columns["y"].dtype == columns["z"].dtype == object


def test_commas_within_values_do_not_deceive(tmp_path):
    rows = [("text, long", "tag"), ("a, b, c", "1"), ("d", "0")]
    assert [*open_table(written(tmp_path, ";", rows)).columns] == ["text, long", "tag"]


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_a_short_row_is_said_to_be_one_whatever_the_delimiter(tmp_path, delimiter):
    rows = [("a", "b, so", "c"), ("1", "2"), ("3", "4", "5")]
    with pytest.raises(ValueError, match=r"line 2: expected \d values, got 2"):
        open_table(written(tmp_path, delimiter, rows if delimiter != "," else [("a", "b", "c"), *rows[1:]]))


def test_rows_of_another_width_are_still_refused(tmp_path):
    with pytest.raises(ValueError, match=r"line 3: expected 3 values, got 2"):
        open_table(written(tmp_path, ",", [("a", "b", "c"), ("1", "2", "3"), ("1", "2")]))


def test_new_rows_are_looked_at_with_the_delimiter_of_training_first(tmp_path):
    # Both would do: each row has one bar and one semicolon.
    rows = [("x|;tag",), ("1|;1",), ("0|;0",)]
    file = written(tmp_path, "", rows)
    assert [*open_table(file).columns] == ["x|", "tag"]
    assert [*open_table(file, expected="|").columns] == ["x", ";tag"]
    data = read_table(written(tmp_path, "|", name="first.csv"), "tag")
    assert data.schema.delimiter == "|"
    # Another one than in training is found.
    assert new_rows(written(tmp_path, ";"), data.schema).features.tolist() == data.features.tolist()


def test_columns_that_name_rows_are_no_features_and_keep_their_text(tmp_path):
    rows = [("id", "x", "tag"), ("007", "1", "1"), ("010", "2", "0")]
    file = written(tmp_path, ";", rows)
    data = read_table(file, "tag", id_columns="id")
    assert data.feature_names == ("x",)
    assert data.schema.id_columns == ("id",)
    assert cells(file, data.schema.id_columns, ";") == {"id": ["007", "010"]}
    assert cells(file, ["none"], ";") == {}


def test_labels_of_new_rows_may_be_anything(tmp_path):
    schema = read_table(written(tmp_path, ","), "tag").schema
    rows = [("x", "note", "tag"), ("1", "a", "perhaps")]
    file = written(tmp_path, ",", rows, "new.csv")
    with pytest.raises(ValueError, match="perhaps"):
        new_rows(file, schema)
    assert np.isnan(new_rows(file, schema, labelled=False).labels).all()


TEXTS = ["the sun and the sea", "the sea at night", "snow at night", "sun", "", "snow and sun, Sea"]


def of_texts(tmp_path, texts=TEXTS):
    rows = [("x", "body", "tag"), *((str(n), f'"{text}"', str(n % 2)) for n, text in enumerate(texts))]
    return written(tmp_path, ",", rows, "texts.csv")


def test_words_of_texts_are_features_by_tf_idf(tmp_path):
    data = read_table(of_texts(tmp_path), "tag", text="body")
    assert issparse(data.features)
    reference = TfidfVectorizer(min_df=2).fit(TEXTS)
    words = reference.get_feature_names_out()
    assert data.feature_names == ("x", *(f"body:{word}" for word in words))
    assert np.allclose(data.features.toarray()[:, 1:], reference.transform(TEXTS).toarray())
    assert data.features.toarray()[:, 0].tolist() == [0, 1, 2, 3, 4, 5]


def test_words_are_those_of_training_rows(tmp_path):
    data = read_table(of_texts(tmp_path), "tag", text="body", test_fraction=0.5, seed=3)
    reference = TfidfVectorizer(min_df=2).fit([TEXTS[row] for row in data.train])
    assert data.feature_names[1:] == tuple(f"body:{word}" for word in reference.get_feature_names_out())


def test_texts_are_kept_in_plain_types(tmp_path):
    schema = read_table(of_texts(tmp_path), "tag", text="body", id_columns="x").schema
    state = pack(schema)
    assert state["tensors"] == {}
    again = unpack(state)
    assert again == schema
    assert again.delimiter == ","
    new = of_texts(tmp_path, ["sun, unknown words", "snow"])
    assert np.array_equal(new_rows(new, again).features.toarray(), new_rows(new, schema).features.toarray())


def test_texts_without_common_words_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"column 'body': expected texts with words that occur in two rows"):
        read_table(of_texts(tmp_path, ["one", "two", "three", "four"]), "tag", text="body")


@pytest.mark.parametrize(
    ("texts", "found"),
    [
        (["1.234,5", "7", "-12,25"], "1.234,5"),
        (["7.5", "1,234.5"], "1,234.5"),
        (["2", "1.234.567"], "1.234.567"),
        (["1.234,5", "many"], None),
        (["01.02.2020", "03.04.2021"], None),
        (["1.2.3", "1,2,3"], None),
    ],
)
def test_numbers_with_signs_between_thousands_are_no_categories(tmp_path, texts, found):
    rows = [("x", "tag"), *((text, str(place % 2)) for place, text in enumerate(texts))]
    file = written(tmp_path, ";", rows)
    assert read_table(file, "tag", categorical="x").num_features == len(texts)
    if found is None:
        assert read_table(file, "tag").num_features == len(texts)
        return
    with pytest.raises(ValueError, match=rf"column 'x': expected numbers, got texts such as .*'{found}'"):
        read_table(file, "tag")
    assert read_table(file, "tag", odd_numbers="coerce").features.max() > 1234


def test_texts_in_the_encoding_of_windows_are_read_with_a_warning(tmp_path):
    file = tmp_path / "mine.csv"
    file.write_bytes("town,tag\r\nBern,0\r\nZürich,1\r\n".encode("cp1252"))
    with pytest.warns(UserWarning, match=r"mine\.csv: .* in line 3; reading as cp1252: 'Zürich,1'") as told:
        assert open_table(file).columns["town"].tolist() == ["Bern", "Zürich"]
    assert len(told) == 1
    assert open_table(file, encoding="latin-1").columns["town"].tolist() == ["Bern", "Zürich"]
    with pytest.raises(ValueError, match=r"mine\.csv: expected text in UTF-8 .* 0xfc; .*iconv"):
        open_table(file, encoding="utf-8")
    with pytest.raises(ValueError, match="encoding: expected a name such as cp1252, got 'utf-88'"):
        open_table(file, encoding="utf-88")


def test_commas_within_texts_stay_whatever_the_separator(tmp_path):
    rows = [("note", "tag"), ("red, green", "1"), ("1,5", "0")]
    for delimiter in (";", "\t", "|"):
        table = open_table(written(tmp_path, delimiter, rows))
        assert table.columns["note"].tolist() == ["red, green", "1,5"]


@pytest.mark.parametrize("word", ["NULL", "None", "#N/A", "<NA>", "n/a", "#NV", "NaN", "?", "", "-nan"])
def test_what_other_programs_write_for_missing_is_missing(tmp_path, word):
    table = open_table(written(tmp_path, ";", [("x", "tag"), ("1", "1"), (word, "0"), ("2.5", "1")]))
    np.testing.assert_array_equal(table.columns["x"], [1, np.nan, 2.5])


def test_the_first_line_may_tell_the_separator(tmp_path):
    file = tmp_path / "mine.csv"
    # By the rows alone the separator would be a comma.
    file.write_bytes("\ufeffsep=|\r\na,b|c,d\r\n1,5|2,5\r\n3,5|4,5,6\r\n5|\r\n".encode())
    table = open_table(file)
    assert table.delimiter == "|"
    assert table.columns["a,b"].tolist() == [1.5, 3.5, 5]
    assert cells(file, ["c,d"], "|") == {"c,d": ["2,5", "4,5,6", ""]}
    file.write_text("sep=;\na;b\n1;2\n3\n")
    with pytest.raises(ValueError, match=r"line 4: expected 2 values, got 1"):
        open_table(file)
