"""Columns of labels in every usual form become 0, 1 and NaN, in training and in new rows."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from lmbm_torch.data import read_table
from lmbm_torch.data.formats.table import new_rows
from lmbm_torch.persistence.archives import pack, unpack

X = np.nan


def written(tmp_path, labels, name="mine.csv", title="sun"):
    file = tmp_path / name
    pd.DataFrame({"size": np.arange(len(labels)), title: labels}).to_csv(file, index=False)
    return file


@pytest.mark.parametrize(
    ("cells", "options", "expected"),
    [
        ([0, 1, None, 1], {}, [0, 1, X, 1]),
        (["yes", "no", "", "YES"], {}, [1, 0, X, 1]),
        (["y", "n", "N", "1"], {}, [1, 0, 0, 1]),
        ([True, False, None, True], {}, [1, 0, X, 1]),
        (["x", "", "X", ""], {}, [1, 0, 1, 0]),
        (["✓", "", "", ""], {}, [1, 0, 0, 0]),
        (["ja", "nein", "", "Ja"], {"label_words": ["nein", "ja"]}, [1, 0, X, 1]),
        ([2, 1, None, 2], {"label_words": [1, 2]}, [1, 0, X, 1]),
        (["-1", "+1", "", "-1"], {"label_words": ["-1", "+1"]}, [0, 1, X, 0]),
    ],
)
def test_a_column_of_one_label(tmp_path, cells, options, expected):
    file = written(tmp_path, cells)
    data = read_table(file, "sun", **options)
    np.testing.assert_array_equal(data.labels[:, 0], expected)
    assert data.label_names == ("sun",)
    schema = unpack(pack(data.schema))
    assert schema == data.schema
    np.testing.assert_array_equal(new_rows(file, schema).labels[:, 0], expected)
    joined = read_table(file, "sun", test=file, missing_labels="negative", **options)
    np.testing.assert_array_equal(joined.test_labels[:, 0], np.nan_to_num(expected))


@pytest.mark.parametrize(
    ("cells", "options", "empty"),
    [
        (["red;blue", "", "blue", "red; green"], {}, 0),
        (["red|blue", "", "blue", "red | green"], {"label_separator": "|"}, 0),
        (['["red", "blue"]', "", '["blue"]', '["red", "green"]'], {}, X),
        (['["red", "blue"]', "[]", '["blue"]', '["green", "red"]'], {}, 0),
    ],
)
def test_a_column_of_names_of_labels(tmp_path, cells, options, empty):
    file = written(tmp_path, cells, title="tags")
    data = read_table(file, "tags", **options)
    expected = [[1, 0, 1], [empty] * 3, [1, 0, 0], [0, 1, 1]]
    assert data.label_names == ("blue", "green", "red")
    assert data.feature_names == ("size",)
    np.testing.assert_array_equal(data.labels, expected)
    schema = unpack(pack(data.schema))
    new = written(tmp_path, cells[:1], "new.csv", "tags")
    np.testing.assert_array_equal(new_rows(new, schema).labels, [[1, 0, 1]])
    assert np.isnan(new_rows(new, schema, labelled=False).labels).all()
    assert read_table(file, "tags", test=new, **options).test_labels.tolist() == [[1, 0, 1]]
    other = written(
        tmp_path, ["red;pink"] if "[" not in cells[0] else ['["red", "pink"]'], "other.csv", "tags"
    )
    with pytest.raises(
        ValueError,
        match=r"other: label .tags.: expected names of labels from training such as .* got \[.*pink",
    ):
        new_rows(other, schema) if "|" not in cells[0] else read_table(file, "tags", test=other, **options)


def test_several_columns_of_names_have_their_columns_in_front(tmp_path):
    frame = pd.DataFrame({"size": [1, 2], "tags": ["a;b", "b"], "kinds": ["u", "u;v"], "sun": [0, 1]})
    frame.to_csv(tmp_path / "mine.csv", index=False)
    data = read_table(tmp_path / "mine.csv", ["tags", "sun", "kinds"])
    assert data.label_names == ("tags=a", "tags=b", "sun", "kinds=u", "kinds=v")
    assert data.labels.tolist() == [[1, 1, 0, 1, 0], [0, 1, 1, 1, 1]]
    # A column of a label's name is a feature.
    data = read_table(frame.rename(columns={"size": "a"})[["a", "tags"]], "tags")
    assert (data.label_names, data.feature_names) == (("tags=a", "tags=b"), ("a",))


@pytest.mark.parametrize("ending", [".parquet", ".csv"])
def test_lists_of_files_are_names_of_labels(tmp_path, ending):
    tags = [["red", "blue"], [], ["blue"], ["red"]]
    file = tmp_path / f"mine{ending}"
    if ending == ".parquet":
        pd.DataFrame({"size": [1.0, 2, 3, 4], "town": list("abab"), "tags": tags}).to_parquet(file)
    else:
        frame = pd.DataFrame({"size": [1.0, 2, 3, 4], "town": list("abab")})
        frame.assign(tags=[*map(json.dumps, tags)]).to_csv(file, index=False)
    data = read_table(file, "tags", test_fraction=0.25)
    assert data.feature_names == ("size", "town=a", "town=b")
    assert data.labels.tolist() == [[1, 1], [0, 0], [1, 0], [0, 1]]


@pytest.mark.parametrize(
    ("cells", "options", "message"),
    [
        (
            ["red", "blue", "red"],
            {},
            r"label .sun.: expected 0, 1, .* got \[.blue., .red.\]; .* label_words=",
        ),
        ([1, 2, 1], {}, r"label .sun.: expected 0, 1, .* got \[2.0\]"),
        (["ja", "nein", "x"], {"label_words": ["nein", "ja"]}, r".*got \[.x.\]"),
        (["ja", "nein", "ja"], {"label_words": ["ja", "ja"]}, "label_words: expected two different words"),
        (["a", "b", "c"], {"label_words": "ab"}, "label_words: expected two different words"),
        (
            ["", "", ""],
            {"label_separator": ";"},
            "label .sun.: expected names of labels in the cells, got none",
        ),
        (["[1, ", "[2]", "[3]"], {}, r"label .sun.: expected 0, 1,"),
    ],
)
def test_other_cells_are_refused(tmp_path, cells, options, message):
    with pytest.raises(ValueError, match=f"mine: {message}"):
        read_table(written(tmp_path, cells), "sun", **options)


def test_a_column_of_classes_is_a_label_for_each_class(tmp_path):
    colours = ["red", "blue", "green", "", "red", "blue", "green"]
    file = written(tmp_path, colours, title="colour")
    data = read_table(file, "colour")
    assert data.label_names == ("colour=blue", "colour=green", "colour=red")
    expected = [[0, 0, 1], [1, 0, 0], [0, 1, 0], [X, X, X]]
    np.testing.assert_array_equal(data.labels[:4], expected)
    form = data.schema.label_form
    assert form.classes == (data.label_names,)
    assert unpack(pack(data.schema)) == data.schema
    assert form.written(data.labels[:3].astype(int)) == {"colour": ["red", "blue", "green"]}
    assert form.written(np.array([[1, 0, 1]])) == {"colour": ["blue;red"]}
    other = written(tmp_path, ["pink"], "other.csv", "colour")
    with pytest.raises(
        ValueError, match=r"label .colour.: expected names of labels from training such as .* got \[.pink"
    ):
        new_rows(other, data.schema)


def test_classes_of_numbers_are_named(tmp_path):
    file = written(tmp_path, [1, 3, None, 1.5], title="stars")
    with pytest.raises(ValueError, match="label_classes"):
        read_table(file, "stars")
    data = read_table(file, "stars", label_classes="st*")
    assert data.label_names == ("stars=1", "stars=1.5", "stars=3")
    np.testing.assert_array_equal(data.labels, [[1, 0, 0], [0, 0, 1], [X, X, X], [0, 1, 0]])
    with pytest.raises(ValueError, match="label_classes: expected names or patterns of columns, got 'size'"):
        read_table(file, "stars", label_classes="size")


def test_marks_stay_marks_in_new_rows(tmp_path):
    schema = read_table(written(tmp_path, ["x", "", "x"]), "sun").schema
    none = written(tmp_path, ["", ""], "none.csv")
    assert new_rows(none, schema).labels.tolist() == [[0], [0]]
    other = written(tmp_path, ["", "maybe"], "other.csv")
    with pytest.raises(ValueError, match=r"got \[.maybe.\]"):
        new_rows(other, schema)


@pytest.mark.parametrize(
    ("uncertain", "value"), [("zeros", 0), ("ones", 1), ("ignored", X), ("self_trained", X)]
)
def test_uncertain_labels_have_the_value_of_their_convention(tmp_path, uncertain, value):
    file = written(tmp_path, [1, -1, 0, None, 1, 0, 1, 0])
    data = read_table(file, "sun", test=file, uncertain=uncertain)
    np.testing.assert_array_equal(data.train_labels[:4, 0], [1, value, 0, X])
    np.testing.assert_array_equal(data.test_labels[:4, 0], [1, X, 0, X])
    np.testing.assert_array_equal(new_rows(file, data.schema).labels[:4, 0], [1, X, 0, X])
    assert (data.uncertain is None) == (uncertain != "self_trained")
    held = read_table(file, "sun", test_fraction=0.5, uncertain=uncertain)
    assert 1 in held.train
    if held.uncertain is not None:
        assert np.flatnonzero(held.uncertain).tolist() == [1]
        with pytest.raises(ValueError, match="uncertain: expected 'zeros'"):
            held.check_certain()


def test_other_conventions_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"uncertain: expected one of \['zeros', .* got 'maybe'"):
        read_table(written(tmp_path, [1, -1, 0]), "sun", uncertain="maybe")


@pytest.mark.parametrize("values", [["true", "false"], [True, False]])
def test_words_may_turn_booleans_round(values):
    frame = pd.DataFrame({"x": [0.5, 1.5] * 3, "kept": values * 3})
    assert read_table(frame, "kept", label_words=["true", "false"]).labels[:2, 0].tolist() == [0, 1]
