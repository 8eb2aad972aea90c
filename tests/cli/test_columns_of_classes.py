"""Columns of classes and uncertain labels from the shell: the models of Python, and columns written back."""

from __future__ import annotations

import csv

import numpy as np
import pandas as pd
import pytest
from hydra import compose, initialize_config_dir

from lmbm_torch import load
from lmbm_torch.cli import compare, estimated, jobs, predict
from lmbm_torch.cli.configuration import CONFIGURATION
from lmbm_torch.cli.given_files import check_files
from lmbm_torch.estimators import LMSBNClassifier

ROWS = 60


@pytest.fixture(scope="module")
def frame():
    random = np.random.default_rng(0)
    frame = pd.DataFrame({"a": random.normal(size=ROWS).round(3), "b": random.normal(size=ROWS).round(3)})
    frame["sun"] = ((frame["a"] > 0) ^ (random.random(ROWS) < 0.1)).astype(int)
    frame["colour"] = np.where(frame["b"] > 0.5, "red", np.where(frame["b"] < -0.5, "blue", "a green"))
    frame.loc[::9, "colour"] = "red"
    frame.loc[5, "colour"] = None
    return frame


def composed(file, *overrides, config="train"):
    of_data = ["data=table", f"data.train={file}", "data.labels=[sun,colour]", *overrides]
    with initialize_config_dir(CONFIGURATION, version_base="1.3"):
        return compose(config, overrides=of_data)


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_classes_are_written_back_as_one_column(frame, tmp_path, ending):
    file = tmp_path / f"mine.{ending}"
    frame.to_csv(file, index=False) if ending == "csv" else frame.to_parquet(file)
    config = composed(file, f"paths.run={tmp_path / 'run'}")
    check_files(config)
    estimated.start(config)
    rule = 'exactly_one("colour=a green", "colour=blue", "colour=red")\n'
    assert (tmp_path / "run" / "rules.txt").read_text() == rule
    out = tmp_path / f"found.{ending}"
    predict.main([str(tmp_path / "run"), str(file), "--output", str(out), "--part", "all"])
    found = pd.read_csv(out) if ending == "csv" else pd.read_parquet(out)
    assert [*found.columns][3:8] == ["labels", "sun", "colour", "P(sun)", "P(colour=a green)"]
    assert {*found["colour"]} == {"a green", "blue", "red"}
    assert (found["labels"].str.contains(found["colour"][0]) == (found["colour"] == found["colour"][0])).all()
    assert (found["colour"] == frame["colour"]).mean() > 0.7
    # The run alone, and as Python loads it.
    names = [";".join(each) for each in load(tmp_path / "run").predict_names(frame[["a", "b"]])]
    assert found["labels"].fillna("").tolist() == names


@pytest.mark.parametrize("uncertain", ["zeros", "ones", "ignored", "self_trained"])
def test_uncertain_labels_give_the_model_of_python(frame, tmp_path, uncertain):
    doubt = np.random.default_rng(1).random(ROWS) < 0.2
    doubtful = frame.assign(sun=np.where(doubt, -1, frame["sun"]))
    doubtful.to_csv(tmp_path / "mine.csv", index=False)
    config = composed(
        tmp_path / "mine.csv",
        f"data.uncertain={uncertain}",
        "data.test_fraction=0",
        f"paths.run={tmp_path / 'run'}",
    )
    estimated.start(config)
    model = load(tmp_path / "run").estimator
    expected = LMSBNClassifier(random_state=0).fit(
        doubtful[["a", "b"]].to_numpy(), doubtful[["sun", "colour"]], uncertain=uncertain
    )
    np.testing.assert_array_equal(model.coef_, expected.coef_)


def test_self_training_needs_an_estimator(frame, tmp_path):
    frame.assign(sun=frame["sun"].where(frame.index > 9, -1)).to_csv(tmp_path / "mine.csv", index=False)
    options = ["data.uncertain=self_trained", f"paths.run={tmp_path / 'run'}"]
    with pytest.raises(ValueError, match="uncertain: expected 'zeros', 'ones' or 'ignored'"):
        jobs.start(composed(tmp_path / "mine.csv", *options, "training=gradient"))
    with pytest.raises(ValueError, match="uncertain: expected 'zeros', 'ones' or 'ignored'"):
        compare._run(composed(tmp_path / "mine.csv", options[0], config="compare"))
    with pytest.raises(ValueError, match="uncertain: expected one of"):
        check_files(composed(tmp_path / "mine.csv", "data.uncertain=maybe"))


def test_training_by_epochs_keeps_the_rules_of_classes(frame, tmp_path):
    frame.to_csv(tmp_path / "mine.csv", index=False)
    run = tmp_path / "run"
    jobs.start(
        composed(tmp_path / "mine.csv", "training=gradient", "trainer.max_epochs=1", f"paths.run={run}")
    )
    predict.main(
        [str(run), str(tmp_path / "mine.csv"), "--output", str(tmp_path / "found.csv"), "--part", "all"]
    )
    with (tmp_path / "found.csv").open() as stream:
        assert {row["colour"] for row in csv.DictReader(stream)} <= {"a green", "blue", "red"}


@pytest.mark.parametrize("ending", ["csv", "parquet", "arff"])
def test_all_faults_of_a_table_come_at_once_in_the_spelling_of_the_shell(tmp_path, ending):
    cells = [*"123456", "50%", "n.a."]
    frame = pd.DataFrame({"a": cells, "sun": [0, 1] * 4, "colour": ["yes", "no"] * 3 + ["maybe", "no"]})
    file = tmp_path / f"mine.{ending}"
    frame.to_csv(file, index=False) if ending == "csv" else frame.to_parquet(file)
    if ending == "arff":
        header = "@relation r\n@attribute a string\n@attribute sun {0,1}\n@attribute colour string\n@data\n"
        rows = frame.map(lambda cell: f"'{cell}'" if isinstance(cell, str) else cell)
        file.write_text(header + rows.to_csv(index=False, header=False).replace('"', ""))
    config = composed(file, "data.ignore=b", "rules=none.txt")
    config.data.test = "???"
    with pytest.raises(ValueError, match="rules: ") as faults:
        check_files(config, ["data"])
    test, rules, ignored, label, column = str(faults.value).split("\n  ")
    assert test.startswith("data.test: expected a value")
    assert rules.startswith("rules: expected a file")
    assert ignored.startswith("data.ignore: expected names or patterns of columns, got 'b'")
    assert label.startswith("data.train: label 'colour': expected 0, 1")
    assert "data.label_words=" in label
    assert column.startswith("data.train: column 'a': expected numbers, got texts such as ['n.a.', '50%']")
    assert "data.odd_numbers='coerce'" in column


def test_a_wrong_pair_of_words_is_named_by_its_option(frame, tmp_path):
    frame.to_csv(tmp_path / "mine.csv", index=False)
    with pytest.raises(ValueError, match=r"^data.label_words: expected two different words"):
        check_files(composed(tmp_path / "mine.csv", "data.label_words=[a]"))
