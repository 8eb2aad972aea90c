"""Frames of pandas, polars and Arrow as features: kinds of columns, odd cells, columns that say too much."""

from __future__ import annotations

import datetime
import warnings
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import issparse
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.feature_extraction.text import TfidfVectorizer

from lmbm_torch import LMSBNClassifier, load, save
from lmbm_torch.data import TableEncoder, read_table
from lmbm_torch.data.tables.names import MISSING, written_numbers

TEXTS = ["dry red wine", "dry white wine", "sweet red port", "sweet white wine"]


def wines(**changes) -> pd.DataFrame:
    columns = {
        "year": [2001.0, np.nan, 2003.0, 2009.0],
        "land": ["Spain", "Italy", None, "Italy"],
        "organic": [True, False, True, False],
        "sold": pd.to_datetime(["2026-01-31 12:00", "2026-02-01 00:00", None, "2024-02-29 00:00"]),
    }
    return pd.DataFrame({**columns, **changes})


def numbers_of(*values) -> np.ndarray:
    frame = pd.DataFrame({"x": [*values]}, dtype=object)
    return TableEncoder(odd_numbers="coerce").fit_transform(frame)[:, 0]


def test_encode_a_feature_for_each_part_of_each_kind_of_column():
    encoder = TableEncoder().fit(wines())
    names = [
        "year",
        "land=Italy",
        "land=Spain",
        "organic",
        *(f"sold:{x}" for x in ("year", "month", "day", "weekday", "hour")),
    ]
    assert encoder.get_feature_names_out().tolist() == names
    found = encoder.transform(wines())
    assert found[:, 0].tolist() == [2001, 2003, 2003, 2009]
    assert found[:, 1:4].tolist() == [[0, 1, 1], [1, 0, 0], [1, 0, 1], [1, 0, 0]]
    np.testing.assert_array_equal(found[0, 5:], [1, 31, 5, 12])
    np.testing.assert_array_equal(found[3, 5:], [2, 29, 3, 0])
    moment = datetime.datetime(2026, 1, 31, 12, tzinfo=datetime.UTC).timestamp()
    assert found[0, 4] == pytest.approx(1970 + moment / (365.2425 * 86400))


def test_a_missing_date_is_the_median():
    dates = pd.DataFrame({"d": pd.to_datetime(["2026-01-01", "2026-01-05", "2026-01-09", None])})
    found = TableEncoder().fit_transform(dates)
    assert found[3].tolist() == found[1].tolist()
    assert TableEncoder().fit(dates).get_feature_names_out().tolist() == [
        "d:year",
        "d:month",
        "d:day",
        "d:weekday",
    ]


@pytest.mark.parametrize("kind", ["polars", "arrow", "texts"])
def test_frames_of_other_libraries_and_texts_of_files_give_the_same_features(kind):
    frame = wines(note=TEXTS)
    expected = TableEncoder(text="note").fit(frame)
    if kind == "texts":
        # As CSV has it.
        other = frame.astype({"year": object}).assign(
            year=["2001", "NULL", " 2003", "2009.0"],
            land=["Spain", "Italy", "#N/A", "Italy"],
            sold=["2026-01-31 12:00", "2026-02-01T00:00:00", "n/a", "2024-02-29"],
        )
    else:
        other = pytest.importorskip(kind if kind == "polars" else "pyarrow")
        build = other.from_pandas if kind == "polars" else other.Table.from_pandas
        other = build(frame.astype({"land": "category"}))
    found = TableEncoder(text="note").fit(other)
    assert found.get_feature_names_out().tolist() == expected.get_feature_names_out().tolist()
    np.testing.assert_array_equal(found.transform(other).toarray(), expected.transform(frame).toarray())
    np.testing.assert_array_equal(expected.transform(other).toarray(), expected.transform(frame).toarray())


def test_categories_by_type_may_be_numbers_and_times_of_days_or_zones_are_dates():
    frame = pd.DataFrame(
        {"code": pd.Categorical([3, 7, 3]), "at": pd.to_datetime(["2026-01-01 01:30+02:00"] * 3)}
    )
    assert TableEncoder().fit(frame).get_feature_names_out().tolist()[:2] == ["code=3", "code=7"]
    assert TableEncoder().fit_transform(frame)[0, 3:].tolist() == [12, 31, 2, 23.5]
    assert TableEncoder().fit_transform(pd.DataFrame({"t": pd.to_timedelta([1, 90], "s")})).tolist() == [
        [1],
        [90],
    ]


def test_free_texts_are_tf_idf_without_being_named():
    frame = pd.DataFrame({"note": [f"{TEXTS[row % 4]} no{row}" for row in range(40)], "x": np.arange(40) % 7})
    encoder = TableEncoder().fit(frame)
    found = encoder.transform(frame)
    assert issparse(found)
    expected = TfidfVectorizer(min_df=2).fit_transform(frame["note"])
    np.testing.assert_allclose(found[:, :-1].toarray(), expected.toarray())
    assert encoder.get_feature_names_out()[0] == "note:dry"
    # Repeated texts are categories, and so are few texts without a common word.
    assert (
        TableEncoder().fit(pd.DataFrame({"note": TEXTS * 2})).get_feature_names_out()[0] == f"note={TEXTS[0]}"
    )
    few = pd.DataFrame({"note": ["New York", "Los Angeles", "San Diego"]})
    assert TableEncoder().fit(few).get_feature_names_out()[0] == "note=Los Angeles"
    assert TableEncoder().fit(pd.DataFrame({"note": TEXTS})).get_feature_names_out()[0] == "note:dry"


@pytest.mark.parametrize("text", sorted(MISSING))
def test_what_pandas_takes_for_missing_is_missing(text):
    assert numbers_of("1", text, "3", "2").tolist() == [1, 2, 3, 2]
    frame = pd.DataFrame({"x": ["a", text, "a", "b"]})
    assert TableEncoder().fit(frame).get_feature_names_out().tolist() == ["x=a", "x=b"]


@pytest.mark.parametrize("odd", ["-", "1 000", "1,234", "50%", "many"])
def test_an_odd_cell_among_numbers_is_refused_by_name_or_coerced(odd):
    values = [*map(str, range(1, 10)), odd]
    frame = pd.DataFrame({"price": values * 3})
    with pytest.raises(
        ValueError, match=rf"column 'price': expected numbers, got texts such as \['{odd}'\] in 3 of 30"
    ):
        TableEncoder().fit(frame)
    expected = {"1 000": 1000, "1,234": 1234, "50%": 0.5}.get(odd)
    with warnings.catch_warnings():
        warnings.simplefilter("error" if expected else "ignore")
        assert numbers_of(*values)[-1] == (5 if expected is None else expected)
    if expected is None:
        with pytest.warns(
            UserWarning, match=rf"column 'price': texts such as \['{odd}'\] among numbers are missing"
        ):
            TableEncoder(odd_numbers="coerce").fit(frame)
    assert TableEncoder(categorical="price").fit(frame).get_feature_names_out().size == 10


def test_numbers_of_readers_have_one_sign_between_thousands():
    assert written_numbers(["1,234.5", "-2 000", "12'345", "3 %"]) == {
        "1,234.5": 1234.5,
        "-2 000": -2000,
        "12'345": 12345,
        "3 %": 0.03,
    }
    assert written_numbers(["1.234,5", "7,25"]) == {"1.234,5": 1234.5, "7,25": 7.25}
    assert written_numbers(["1,2,3", "1.2.3", "12,34,567"]) == {}


def test_new_rows_are_taken_whole_with_one_warning_that_counts():
    encoder = TableEncoder().fit(wines())
    new = wines(land=["Spain", "Chile", "Peru", "Chile"], extra=1, year=["old", "2001", "x", "2002"])[
        ["extra", "sold", "organic", "land", "year"]
    ]
    said = (
        r"'extra'.*'year': expected numbers, got \['old', 'x'\] in 2 .*'land'.*\['Chile', 'Peru'\] in 3 of 4"
    )
    with pytest.warns(UserWarning, match=said) as caught:
        found = encoder.transform(new)
    assert len(caught) == 1
    assert found[:, 0].tolist() == [2003, 2001, 2003, 2002]
    assert found[:, 1:3].sum(1).tolist() == [1, 0, 0, 0]
    np.testing.assert_array_equal(encoder.set_params(unknown="zeros").encoding_.unknown, "warn")
    silent = TableEncoder(unknown="zeros").fit(wines())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(silent.transform(new), found)
    with pytest.raises(ValueError, match=said):
        TableEncoder(unknown="refuse").fit(wines()).transform(new)
    with pytest.raises(
        ValueError, match=r"without columns \['land', 'sold'\]; similar names are \['lands'\]"
    ):
        encoder.transform(wines().drop(columns="sold").rename(columns={"land": "lands"}))


def test_a_text_where_training_had_none_is_refused_if_missing_is():
    strict = TableEncoder(missing="refuse").fit(wines()[["organic"]])
    with pytest.raises(
        ValueError, match=r"column 'organic': expected numbers, got \['perhaps'\] in 1 of 1 rows"
    ):
        strict.transform(pd.DataFrame({"organic": ["perhaps"]}))


def test_all_faults_of_a_frame_are_told_at_once():
    frame = pd.DataFrame({"a": ["1", "2", "-"], "b": [1, 2, np.inf], "c": ["5%", "6", "7"]})
    with pytest.raises(ValueError, match=r"column 'a': .*'-'.*; column 'c': .*'5%'"):
        TableEncoder().fit(frame)
    lists = pd.DataFrame({"a": [[1], [2]], "b": [{1}, {2}]})
    with pytest.raises(ValueError, match=r"column 'a': .* got lists; .*column 'b': .* got lists"):
        TableEncoder().fit(lists)


def test_columns_that_name_rows_or_tell_labels_are_named():
    rows = np.arange(60)
    frame = pd.DataFrame(
        {
            "key": [f"k{row}" for row in rows],
            "userId": rows[::-1] * 7,
            "paid": np.where(rows % 3 == 0, 9.5, 1.5) + rows / 100,
            "debt": np.where(rows % 3 == 0, -9.5, -1.5) - rows / 100,
            "grade": np.where(rows % 2, "pass", "fail"),
            "x": np.sin(rows),
        }
    )
    Y = pd.DataFrame({"premium": np.where(rows % 3 == 0, "yes", "no"), "passed": rows % 2})
    with pytest.warns(UserWarning, match="^DataFrame: column 'key'") as caught:
        encoder = TableEncoder().fit(frame, Y)
    (said,) = [str(each.message) for each in caught]
    assert "'key' looks like names of the rows, with 60 different texts in 60 rows, and is left out" in said
    assert "'userId' looks like names of the rows" in said
    assert "'paid' tells 'premium' of every row" in said
    assert "'debt' tells 'premium' of every row" in said
    assert "'grade' tells 'passed' of every row" in said
    assert "'x'" not in said
    assert "key" not in encoder.get_feature_names_out()
    noisy = Y.assign(
        premium=Y["premium"].where(rows != 1, "yes"), passed=np.where(rows == 58, 1, Y["passed"])
    )
    with pytest.warns(UserWarning, match="^DataFrame: column 'key'") as caught:
        TableEncoder().fit(frame, noisy)
    assert "tells" not in str(caught[0].message)


def test_rare_categories_beyond_the_bound_are_no_features_and_never_new():
    towns = ["a"] * 5 + ["b"] * 4 + ["c"] * 3 + [f"t{row}" for row in range(3)] * 2
    frame = pd.DataFrame({"town": towns, "x": np.arange(18) % 5})
    with pytest.warns(
        UserWarning, match=r"'town' has 6 categories, of which the rarest, in 9 rows, .* max_categories=2"
    ):
        encoder = TableEncoder(max_categories=2).fit(frame)
    assert encoder.get_feature_names_out().tolist() == ["town=a", "town=b", "x"]
    assert encoder.transform(frame)[:, :2].sum() == 9
    assert TableEncoder(max_categories=2, categorical="town").fit(frame).get_feature_names_out().size == 7


def test_an_encoder_is_a_transformer_that_files_hold(tmp_path):
    frame = wines(note=TEXTS)
    encoder = clone(TableEncoder(text=["note"], missing="impute")).fit(frame)
    with pytest.raises(NotFittedError):
        save(TableEncoder(), tmp_path / "none.safetensors")
    save(encoder, tmp_path / "encoder.safetensors")
    again = load(tmp_path / "encoder.safetensors")
    assert again.get_params() == encoder.get_params()
    assert again.feature_names_in_.tolist() == [*frame.columns]
    np.testing.assert_array_equal(again.transform(frame).toarray(), encoder.transform(frame).toarray())
    shown = TableEncoder().set_output(transform="pandas").fit_transform(wines())
    assert shown.columns[1] == "land=Italy"
    with pytest.raises(TypeError, match="X: expected a data frame of pandas, polars or Arrow, got ndarray"):
        encoder.transform(np.zeros((2, 2)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"missing": "drop"}, r"missing: expected one of \['impute', 'refuse'\], got 'drop'"),
        ({"unknown": "drop"}, "unknown: expected one of .* got 'drop'"),
        ({"odd_numbers": "drop"}, "odd_numbers: expected one of .* got 'drop'"),
        ({"max_categories": 0}, "max_categories: expected a number from 1, got 0"),
        ({"ignore": ["lnad"]}, r"ignore: .* got 'lnad', which fits no column; the table has \['land'\]"),
        ({"ignore": "*"}, "expected a column to make features from, got none"),
        (
            {"missing": "refuse"},
            "column 'year': expected no missing values.*column 'land': expected no missing",
        ),
    ],
)
def test_options_that_do_not_fit_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        TableEncoder(**options).fit(wines())


@pytest.mark.parametrize(
    ("given", "later"),
    [
        ([True, False], ["True", "False"]),
        (["TRUE", "FALSE"], [True, False]),
        ([True, False, None], ["true", "false", "maybe"]),
        (["True", "False", "maybe"], [True, False]),
    ],
)
def test_booleans_of_files_are_those_of_frames(given, later):
    encoder = TableEncoder(unknown="zeros").fit(pd.DataFrame({"organic": given * 6}))
    found = encoder.transform(pd.DataFrame({"organic": later}))
    expected = encoder.transform(pd.DataFrame({"organic": given})[:2])
    assert (expected[0] != expected[1]).any()
    np.testing.assert_array_equal(found[:2], expected)


class DataSet:
    """The part of a data set of Hugging Face that is read: names of columns, features, and pandas."""

    def __init__(self, frame, **kinds):
        self.frame, self.features = frame, dict.fromkeys(frame.columns) | kinds
        self.column_names = [*frame.columns]

    def __getitem__(self, name):
        return self.frame[name].tolist()

    def to_pandas(self):
        return self.frame.copy()


def test_data_sets_of_hugging_face_are_frames():
    kind = SimpleNamespace(names=["dry", "red", "sweet"])
    texts = pd.DataFrame({"text": TEXTS * 4, "land": ["Spain", "Italy", None, "Italy"] * 4})
    sets = [["red", "dry"], ["dry"], ["red", "sweet"], ["sweet"]] * 4
    codes = [np.array([kind.names.index(name) for name in each]) for each in sets]
    labels = DataSet(pd.DataFrame({"labels": codes}), labels=SimpleNamespace(feature=kind))
    model = LMSBNClassifier(random_state=0).fit(DataSet(texts), labels)
    expected = LMSBNClassifier(random_state=0).fit(texts, sets)
    assert model.label_names_ == ("dry", "red", "sweet")
    np.testing.assert_array_equal(model.predict(DataSet(texts)), expected.predict(texts))
    assert model.score(DataSet(texts), labels) == expected.score(texts, sets)
    classes = DataSet(texts.assign(taste=[0, 1, 2, -1] * 4), taste=kind)
    data = read_table(classes, ["taste"])
    assert data.label_names == ("taste=dry", "taste=red", "taste=sweet")
    np.testing.assert_array_equal(data.labels[:4], [*np.eye(3), [np.nan] * 3])
    lists = DataSet(texts.assign(labels=codes), labels=SimpleNamespace(feature=kind))
    np.testing.assert_array_equal(read_table(lists, ["labels"]).labels[:2], [[1, 1, 0], [1, 0, 0]])
