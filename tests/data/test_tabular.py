"""From a table to features and labels and back to new rows: what training decided is kept."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_array, issparse

from lmbm_torch.data import read_table
from lmbm_torch.data.formats.table import new_rows, open_table
from lmbm_torch.data.tables.columns import Column
from lmbm_torch.persistence.archives import pack, unpack


def people(**changes) -> pd.DataFrame:
    columns = {
        "age": [30, 40, 50, 60],
        "town": ["Rome", "Oslo", "Rome", "Bern"],
        "tag_sun": [1, 0, 1, 0],
        "tag_sea": ["yes", "no", "no", "yes"],
    }
    return pd.DataFrame({**columns, **changes})


def test_texts_become_one_feature_each_and_names_are_kept():
    data = read_table(people(), ["tag_sea", "tag_*"])
    assert data.label_names == ("tag_sea", "tag_sun")
    assert data.feature_names == ("age", "town=Bern", "town=Oslo", "town=Rome")
    assert data.features.tolist() == [[30, 0, 0, 1], [40, 0, 1, 0], [50, 0, 0, 1], [60, 1, 0, 0]]
    assert data.labels.tolist() == [[1, 1], [0, 0], [0, 1], [1, 0]]
    assert data.train.tolist() == [0, 1, 2, 3]
    assert data.with_split(np.arange(2), np.arange(2, 4)).schema == data.schema


def test_a_file_and_its_frame_are_the_same_data_set(tmp_path):
    people().to_csv(tmp_path / "people.csv", index=False)
    of_file, of_frame = read_table(tmp_path / "people.csv", "tag_*"), read_table(people(), "tag_*")
    assert of_file.sha256() == of_frame.sha256()
    assert of_file.schema == of_frame.schema
    assert of_file.name == "people"


def test_sparse_features_are_the_same_numbers():
    dense, sparse = (read_table(people(), "tag_*", sparse=sparse) for sparse in (False, True))
    assert isinstance(sparse.features, csr_array)
    assert np.array_equal(sparse.features.toarray(), dense.features)
    joined = read_table(people(), "tag_*", test=people(), sparse=True)
    assert joined.features.shape == (8, 4)


def test_new_rows_are_read_by_name_whatever_their_order_and_without_labels(tmp_path):
    schema = read_table(people(), "tag_*", id_columns="town").schema
    assert unpack(pack(schema)) == schema
    schema = read_table(people(), "tag_*").schema
    frame = pd.DataFrame({"extra": [9], "town": ["Oslo"], "tag_sun": [1], "age": [1]})
    with pytest.warns(UserWarning, match=r"columns: expected those of training, got \['extra'\] as well"):
        rows = new_rows(frame, schema)
    assert rows.features.tolist() == [[1, 0, 1, 0]]
    assert np.array_equal(rows.labels, [[1, np.nan]], equal_nan=True)


def test_empty_labels_are_unknown_or_negative(tmp_path):
    marked = people(tag_sea=["yes", None, None, "yes"], tag_sun=[1, None, 1, None])
    marked.to_csv(tmp_path / "marked.csv", index=False)
    for source in (marked, tmp_path / "marked.csv"):
        assert np.isnan(read_table(source, "tag_*").labels).sum() == 4
        data = read_table(source, ["tag_sea", "tag_sun"], test=source, missing_labels="negative")
        assert data.labels.tolist() == [[1, 1], [0, 0], [0, 1], [1, 0]] * 2
    held_out = read_table(marked, "tag_*", missing_labels="negative", test_fraction=0.5, unknown="zeros")
    assert len(held_out.test) == 2
    with pytest.raises(ValueError, match="missing_labels: expected 'unknown' or 'negative', got 'zero'"):
        read_table(marked, "tag_*", missing_labels="zero")


@pytest.mark.parametrize("groups", [None, "town"])
def test_without_rows_that_have_all_labels_none_is_held_out(groups):
    holes = people(tag_sea=[1, None, 1, None], tag_sun=[None, 1, None, 1])
    assert len(read_table(holes, "tag_*", groups=groups).test) == 0
    with pytest.raises(ValueError, match=r"test_fraction: expected rows that have all labels.* found 0"):
        read_table(holes, "tag_*", groups=groups, test_fraction=0.5)


def test_codes_may_be_categories():
    data = read_table(people(age=[1, 2, 1, 2]), "tag_*", categorical=["a*"], ignore="town")
    assert data.feature_names == ("age=1", "age=2")
    assert data.features.tolist() == [[1, 0], [0, 1], [1, 0], [0, 1]]


def test_missing_features_are_refused_or_filled_from_training_rows():
    holes = people(age=[30, None, 50, 1000], town=["Rome", None, "Rome", "Bern"])
    with pytest.raises(
        ValueError, match=r"column 'age': expected no missing values, got 1 in 4 rows, the first in row 1"
    ):
        read_table(holes, "tag_*", missing="refuse")
    data = read_table(holes, "tag_*")
    assert data.schema.columns == (Column("age", None, 50.0), Column("town", ("Bern", "Rome"), "Rome"))
    assert data.features[1].tolist() == [50, 0, 1]
    test = people(age=[None, 1, 1, 1], town=[None, "Bern", "Bern", "Bern"])
    both = read_table(holes, "tag_*", test=test)
    assert both.test_features[0].tolist() == [50, 0, 1]
    strict = read_table(people(), "tag_*", missing="refuse").schema
    with pytest.raises(ValueError, match="column 'age': expected no missing values"):
        new_rows(holes, strict)


def test_missing_labels_are_kept_and_never_held_out():
    many = pd.concat([people()] * 10, ignore_index=True).astype({"tag_sun": float})
    many.loc[:29, "tag_sun"] = np.nan
    data = read_table(many, "tag_*", test_fraction=0.5, seed=1)
    assert len(data.test) == 5
    assert not np.isnan(data.test_labels).any()
    assert np.isnan(data.train_labels).sum() == 30
    assert read_table(many, "tag_*", test_fraction=0.5, seed=1).test.tolist() == data.test.tolist()


def test_medians_are_those_of_the_training_part():
    rows = pd.concat([people()] * 10, ignore_index=True)
    rows["age"] = np.arange(40.0)[::-1] ** 2
    rows.loc[0, "age"] = np.nan
    data = read_table(rows, "tag_*", test_fraction=0.25, ignore="town")
    trained = np.setdiff1d(data.train, [0])
    assert data.schema.columns[0].fill == np.median((39.0 - trained) ** 2)


def test_unknown_categories_are_refused_or_none_of_them():
    new = people(town=["Rome", "Rio", "Rome", "Lima"])
    with pytest.raises(
        ValueError,
        match=r"DataFrame: column 'town': .* its 3 categories, got \['Lima', 'Rio'\] in 2 of 4 rows",
    ):
        read_table(people(), "tag_*", test=new, unknown="refuse")
    with pytest.warns(UserWarning, match=r"DataFrame: column 'town': .* \['Lima', 'Rio'\] in 2 of 4 rows"):
        assert read_table(people(), "tag_*", test=new).test_features[:, 1:].sum() == 2
    data = read_table(people(), "tag_*", test=new, unknown="zeros")
    assert data.test_features[:, 1:].sum(1).tolist() == [1, 0, 1, 0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"labels": ["tag_snow"]},
            r"labels: expected names or patterns of columns, got 'tag_snow', .*; the table has \['tag_sun",
        ),
        ({"labels": ["age"]}, r"label 'age': expected 0, 1, true.* got \[30\.0, 40\.0"),
        ({"labels": ["town"]}, r"label 'town': expected 0, 1, true.* got \['Bern', 'Oslo', 'Rome'\]"),
        ({"labels": []}, "labels: expected (at least one label|columns that are no labels)"),
        ({"labels": "*"}, "labels: expected (at least one label|columns that are no labels)"),
        (
            {"labels": "tag_*", "ignore": ["id"]},
            "ignore: expected names or patterns of columns, got 'id', which fits no column",
        ),
        (
            {"labels": "tag_*", "missing": "drop"},
            r"missing: expected one of \['impute', 'refuse'\], got 'drop'",
        ),
        ({"labels": "tag_*", "unknown": "drop"}, "unknown: expected one of .*'zeros'], got 'drop'"),
        ({"labels": "tag_*", "test": people(), "test_fraction": 0.5}, "test_fraction: expected 0"),
        ({"labels": "tag_*", "test": people().drop(columns="age")}, r"without columns \['age'\]"),
        (
            {"labels": "tag_*", "test": people().drop(columns="tag_sun")},
            r"test: .* a table without the columns \['tag_sun'\]",
        ),
    ],
)
def test_what_does_not_fit_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        read_table(people(), **options)


def test_columns_that_say_nothing_or_name_the_rows_are_left_out_with_a_warning():
    with pytest.warns(UserWarning, match="column 'age' has no values and is left out"):
        assert read_table(people(age=[None] * 4), "tag_*").num_features == 3
    with pytest.raises(ValueError, match="column 'age': expected finite numbers, got 1 infinities"):
        read_table(people(age=[1, 2, 3, np.inf]), "tag_*")
    named = pd.concat([people()] * 10, ignore_index=True)
    named["name"], named["row"] = [f"n{row}" for row in range(40)], np.arange(5, 45)
    said = (
        r"column 'town' tells 'tag_sun' of every row.* 40 different texts in 40 rows.* 'row' looks like names"
    )
    with pytest.warns(UserWarning, match=said):
        data = read_table(named, "tag_*")
    assert data.feature_names == ("age", "town=Bern", "town=Oslo", "town=Rome", "row")
    assert read_table(named, "tag_*", categorical="name", ignore=["row", "town", "age"]).num_features == 40
    schema = read_table(people(), "tag_*").schema
    with pytest.warns(UserWarning, match=r"column 'age': expected numbers, got \['old'\] in 1 of 4 rows"):
        found = schema.features(open_table(people(age=["31", None, "old", "4"])))
    assert found[:, 0].tolist() == [31, 45, 45, 4]
    as_texts = schema.features(open_table(people(age=["31", "1.5", "-2", "4"])))
    assert as_texts[:, 0].tolist() == [31, 1.5, -2, 4]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a,sun\n1,2\n", r"people: label 'sun': expected 0, 1"),
        (
            "a,moon\n1,1\n",
            r"people: labels: expected names or patterns of columns, got 'sun', which fits no column",
        ),
        (
            "a,sun\n,1\n",
            r"people: expected a column to make features from, got none; column 'a' has no values",
        ),
        ("a,sun\ninf,1\n", r"people: column 'a': expected finite numbers"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_with_its_name(tmp_path, content, message):
    (tmp_path / "people.csv").write_text(content)
    with pytest.raises(ValueError, match=rf"^{message}"):
        read_table(tmp_path / "people.csv", "sun")


def test_the_rarest_of_many_categories_are_no_features_unless_insisted_on():
    rows = np.arange(100_000) // 2
    frame = pd.DataFrame({"town": [f"t{row}" for row in rows], "sun": rows % 2})
    with pytest.warns(UserWarning, match=r"column 'town' has 50000 categories, .* in 98000 rows"):
        data = read_table(frame, "sun")
    assert data.features.shape == (100_000, 1000)
    assert data.features.sum() == 2000
    insisted = read_table(frame, "sun", categorical="town").features
    assert issparse(insisted)
    assert insisted.shape == (100_000, 50_000)
    with pytest.raises(
        ValueError, match=r"features: .* got 100000 x 50000; sparse=True keeps categories sparse"
    ):
        read_table(frame, "sun", categorical="town", sparse=False)
