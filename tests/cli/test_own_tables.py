"""One's own tables from the shell: what was read is said, and titles say what was measured on what."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from omegaconf import OmegaConf
from scipy.sparse import csr_array

from lmbm_torch.cli import compare, options, predict, showing
from lmbm_torch.cli.configuration import CONFIGURATION
from lmbm_torch.data.scaling import standardise, usual
from lmbm_torch.prediction import reading, tables
from lmbm_torch.prediction.predictor import Predictor

CONTENT = """id;size;town;body;sun;sea;dead
a1;1,5;Rome;the sun and the sea;1;1;0
a2;2,5;Oslo;the sea at night;0;1;0
a3;3,5;Rome;snow at night;0;;0
a4;0,5;Oslo;sun;1;0;0
a5;4,5;Rome;sun and sea;1;1;0
a6;5,5;Oslo;snow and sea;0;1;0
"""


def composed(config: str, *overrides: str):
    with initialize_config_dir(CONFIGURATION, version_base="1.3"):
        return compose(config, overrides=list(overrides))


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A table with everything, as ``lmbm train`` serves it."""
    file = tmp_path_factory.mktemp("table") / "mine.csv"
    file.write_text(CONTENT)
    labels = ["data=table", f"data.train={file}", "data.labels=[sun,sea,dead]"]
    return instantiate(composed("train", *labels, "data.text=[body]", "data.id_columns=[id]").data), file


def test_what_was_read_is_said(served, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    showing.print_data(served[0].data, served[0])
    rows, columns, missing, dead = capsys.readouterr().out.splitlines()
    count = len(served[0].train_set)
    assert rows.startswith(f"mine: rows {count} to train, {6 - count} to test; ")
    assert rows.endswith(f"{served[0].data.num_features} features, 3 labels")
    assert columns == "columns: 1 of numbers, 1 of categories, 1 of texts; rows are named by id"
    assert missing == "missing labels: 1, in 1 of 6 rows; rows to test are drawn from the others"
    assert dead == "nothing to learn about 1 label, false in all training rows: dead"


def test_rows_to_validate_are_said_to_be_drawn_from_complete_ones(served, capsys):
    overrides = ["data=table", f"data.train={served[1]}", "data.labels=[sun,sea]", "data.ignore=[body,id]"]
    data = instantiate(composed("train", *overrides, "data.validation_fraction=0.4").data)
    showing.print_data(data.data, data)
    assert "rows to validate and to test are drawn from the others" in capsys.readouterr().out


def test_what_was_measured_is_said(served, capsys):
    data = served[0].data
    showing.print_measured(data, np.array([3, 5]))
    rows, columns, *fixed = capsys.readouterr().out.splitlines()
    assert rows == f"mine: 2 of 6 rows measured; {data.num_features} features, 3 labels"
    assert columns == "columns: 1 of numbers, 1 of categories, 1 of texts; rows are named by id"
    showing.print_measured(data, np.array([3]), "new.csv")
    assert capsys.readouterr().out.startswith("new.csv: 1 row measured; ")
    assert fixed == ["1 label false in all measured rows: dead"]


def test_the_test_part_has_the_name_of_its_file(served, tmp_path, capsys):
    file = tmp_path / "later.csv"
    file.write_text("size;tag;other\n1,5;1;0\n2,5;0;1\n")
    files = ["data=table", f"data.train={file}", f"data.test={file}"]
    module = instantiate(composed("train", *files, "data.labels=[tag]", "data.ignore=other").data)
    showing.print_data(module.data, module, str(file))
    said = capsys.readouterr().out.splitlines()[0]
    assert said == "later: rows 2 to train, 2 to test (later.csv); 1 feature, 1 label"


@pytest.mark.parametrize(
    ("file", "part", "test", "name"),
    [
        (None, None, "held/out.csv", "out.csv"),
        (None, "test", "held/out.csv", "out.csv"),
        (None, "train", "held/out.csv", None),
        (None, None, None, None),
        ("other.csv", None, "held/out.csv", None),
    ],
)
def test_measured_rows_have_the_name_of_their_file(tmp_path, file, part, test, name):
    OmegaConf.save({"data": {"test": test}}, tmp_path / "config.yaml")
    asked = SimpleNamespace(model=tmp_path, file=file and Path(file), part=part)
    assert options.test_file(asked) == name


def test_the_help_says_how_delimiters_are_found():
    assert "found from its first rows" in " ".join(options.file_parser("predict", None).format_help().split())


def test_rows_are_named_in_predictions(served):
    data, file = served
    schema = data.data.schema
    fields = {"schema": schema, "label_form": schema.label_form, "label_names": data.label_names}
    saved = SimpleNamespace(**fields, has_probabilities=False)
    ids = reading.ids(file, saved)
    assert ids == {"id": ["a1", "a2", "a3", "a4", "a5", "a6"]}
    assert tables.columns(saved, 1, [*ids])[:4] == ["row", "id", "rank", "labels"]
    saved.label_names = ("id",)
    with pytest.raises(ValueError, match=r"\['id'\]"):
        tables.columns(saved, 1, [*ids])


def test_unknown_texts_are_taken_as_the_command_line_says(served, tmp_path, monkeypatch):
    saved = Predictor(object(), served[0].data.schema)
    monkeypatch.setattr(Predictor, "load", classmethod(lambda cls, path, trust: saved))
    (tmp_path / "new.csv").write_text(CONTENT.replace("Rome", "Lima"))
    parser = options.file_parser("predict", None)
    warned, refused = (pytest.warns(UserWarning, match="Lima"), pytest.raises(ValueError, match="Lima"))
    for told, expected in (([], warned), (["refuse"], refused), (["zeros"], nullcontext())):
        words = ["--unknown", *told] if told else []
        model = options.opened_model(parser.parse_args(["run", "new.csv", *words]))
        with expected:
            found = reading.read_unlabelled(tmp_path / "new.csv", model)
            assert found.features[:, 1:3].sum(1).tolist() == [0, 1, 0, 1, 0, 1]
    saved = Predictor(object())
    with pytest.raises(ValueError, match="--unknown: expected no value for a model trained without"):
        options.opened_model(parser.parse_args(["run", "new.csv", "--unknown", "zeros"]))


def test_predicting_reads_rows_whose_labels_are_not_the_models(served, tmp_path):
    data, file = served
    saved = SimpleNamespace(schema=data.data.schema, label_names=data.label_names)
    (tmp_path / "new.csv").write_text(CONTENT.replace(";1;1;0", ";maybe;2;0"))
    found = reading.read_unlabelled(tmp_path / "new.csv", saved)
    assert np.isnan(found.labels).all()
    assert np.array_equal(found.features.toarray(), reading.read(file, saved).features.toarray())
    saved = SimpleNamespace(schema=None, label_names=("3", "5"), num_inputs=4)
    (tmp_path / "new.svm").write_text("9 1:0.5 4:1\n2,3 2:1\n")
    found = reading.read_unlabelled(tmp_path / "new.svm", saved)
    assert found.labels.shape == (2, 2)
    assert found.features.toarray().tolist() == [[0.5, 0, 0, 1], [0, 1, 0, 0]]


def test_svmlight_files_have_the_keys_of_tables(tmp_path):
    lines = [f"{n % 2},{2 + n % 3} 1:{n} 3:1" for n in range(30)]
    (tmp_path / "mine.svm").write_text("\n".join(lines))
    (tmp_path / "test.svm").write_text("0,2 1:1\n")
    train = ["data=svmlight", f"data.train={tmp_path / 'mine.svm'}"]
    held_out = instantiate(composed("train", *train).data)
    assert len(held_out.train_set) + len(held_out.test_set) == 30
    assert 4 <= len(held_out.test_set) <= 8
    both = instantiate(composed("train", *train, f"data.test={tmp_path / 'test.svm'}").data)
    assert (len(both.train_set), len(both.test_set)) == (30, 1)
    assert both.label_names == ("0", "1", "2", "3", "4")


@pytest.mark.parametrize("kind", ["npz", "arff"])
def test_files_without_a_test_part_have_one_held_out(tmp_path, kind):
    X, Y = np.arange(20.0)[:, None], np.arange(20)[:, None] % 2
    told = ["data.data.labels=[y]"] if kind == "arff" else []
    if kind == "npz":
        np.savez(tmp_path / "mine.npz", x=X, y=Y)
    else:
        rows = [f"{x},{y}" for (x,), (y,) in zip(X.tolist(), Y.tolist(), strict=True)]
        lines = ["@relation r", "@attribute x real", "@attribute y {0,1}", "@data", *rows]
        (tmp_path / "mine.arff").write_text("\n".join(lines))
    told = [f"data={kind}", f"data.data.path={tmp_path / 'mine'}.{kind}", *told]
    assert [len(part) for part in parts_of(*told)] == [16, 4]
    assert [len(part) for part in parts_of(*told, "data.test_fraction=0")] == [20, 0]
    if kind == "npz":
        np.savez(tmp_path / "mine.npz", x_train=X, y_train=Y, x_test=X[:2], y_test=Y[:2])
        assert [len(part) for part in parts_of(*told)] == [20, 2]


def parts_of(*overrides):
    module = instantiate(composed("train", *overrides).data)
    return module.train_set, module.test_set


def test_sequences_are_not_compared_on(tmp_path):
    config = composed("compare", "data=conll", "name=x", f"output={tmp_path / 'x'}")
    with pytest.raises(
        ValueError, match=r"data: expected a table of instances .* got the sequences of .*read_conll"
    ):
        compare._run(config)
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("sets", ["data=table", "data=svmlight", "data=seven_segment"])
def test_every_kind_of_data_can_be_compared_on(served, tmp_path, sets):
    overrides = {
        "data=table": [f"data.train={served[1]}", "data.labels=[sun]", "data.ignore=[body,id,sea,dead]"],
        "data=svmlight": [f"data.train={tmp_path / 'mine.svm'}"],
        "data=seven_segment": [],
    }[sets]
    (tmp_path / "mine.svm").write_text("1 1:1\n2 1:2\n1,2 1:3\n2 2:1\n1 2:3\n")
    data = compare._data(composed("compare", sets, *overrides).data)
    assert data.num_labels == {"data=table": 1, "data=svmlight": 2, "data=seven_segment": 7}[sets]


@pytest.mark.parametrize(
    ("data", "title"),
    [
        (["data=table", "data.train=own/mine.csv.gz", "data.labels=[tag]"], "table_mine"),
        (["data=npz", "data.data.path=own/other.npz"], "npz_other"),
        (["data=seven_segment"], "seven_segment"),
    ],
)
def test_tables_of_ones_own_are_compared_on_in_folders_of_their_own(monkeypatch, data, title):
    choices = SimpleNamespace(runtime=SimpleNamespace(choices={"data": data[0].partition("=")[2]}))
    monkeypatch.setattr("hydra.core.hydra_config.HydraConfig.get", lambda: choices)
    assert compare._title(composed("compare", *data)) == title


def test_sparse_features_keep_their_zeros_when_scaled():
    dense = np.array([[3.0, 0.0], [-4.0, 2.0], [0.0, 0.0]])
    scaling = usual(csr_array(dense))
    assert scaling.scale.tolist() == [4, 2]
    assert not scaling.mean.any()
    rows = torch.from_numpy(dense)
    assert torch.equal(
        usual(dense).transform(rows), replace(standardise(dense), unit_rows=True).transform(rows)
    )


@pytest.mark.parametrize(
    ("file", "part", "test", "num_test", "words"),
    [
        ("other.csv", None, None, 5, "run on 9 rows of other.csv"),
        (None, None, None, 5, "run on the 9 test rows of mine"),
        (None, None, "held/out.csv", 5, "run on the 9 test rows of out.csv"),
        (None, "train", "held/out.csv", 5, "run on the 9 train rows of mine"),
        (None, None, None, 0, "run on all 9 rows that it was trained on (mine: there is no test part)"),
    ],
)
def test_titles_say_what_was_measured_on_what(tmp_path, monkeypatch, file, part, test, num_test, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    OmegaConf.save({"data": {"test": test}}, tmp_path / "run" / "config.yaml")
    asked = SimpleNamespace(model=Path("run"), file=file and Path(file), part=part)
    data = SimpleNamespace(name="mine", test=np.arange(num_test))
    assert options.title(asked, data, 9) == words


def test_a_folder_without_a_model_is_found_with_other_faults(tmp_path, capsys):
    with pytest.raises(SystemExit):
        predict.main([str(tmp_path), str(tmp_path / "none.csv")])
    said = capsys.readouterr().err
    assert "file: expected a file or a folder" in said
    assert "model: expected a run directory with model.safetensors" in said
