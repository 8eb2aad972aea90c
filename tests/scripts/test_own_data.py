"""A stranger's afternoon: a table in, a model trained, new rows named, and a report to look at."""

from __future__ import annotations

import csv
import html
import json
import re
from importlib import import_module
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from lmbm_torch import load, save
from lmbm_torch.cli.configuration import CONFIGURATION
from lmbm_torch.data import SevenSegment
from lmbm_torch.data.formats.table import new_rows
from lmbm_torch.estimators import (
    ConditionalRBMClassifier,
    LMBMClassifier,
    LMSBNClassifier,
    LMSBNEnsembleClassifier,
    MultiClassSVM,
    StructuralSVMClassifier,
    ThresholdTunedClassifier,
)

LABELS = ["likes_sun", "likes_sea", "likes_<ski>"]


@pytest.fixture(scope="module")
def scripts():
    """Import a command's module by its name."""
    return lambda name: import_module(f"lmbm_torch.cli.{name}")


def people(count: int = 120) -> pd.DataFrame:
    generator = np.random.default_rng(0)
    age = generator.normal(40, 12, count)
    town = generator.choice(["Rome", "Oslo", "Århus"], count)
    sun = age / 12 - 3.3 + (town == "Rome") + generator.normal(size=count) > 0
    sea = 2.0 * sun - 1 + generator.normal(size=count) > 0
    ski = (town == "Oslo") - 1.5 * sea + generator.normal(size=count) > 0
    names = [f"n{row}" for row in range(count)]
    columns = {"name": names, "age": age, "town": town, **dict(zip(LABELS, (sun, sea, ski), strict=True))}
    return pd.DataFrame(columns)


def train(scripts, folder, run, *more):
    """Train on the table of a folder."""
    overrides = [
        "data=table",
        "training=dual",
        f"data.train={folder / 'people.csv'}",
        "data.labels=[likes_*]",
        "data.ignore=[name]",
    ]
    quiet = ["callbacks.progress_bar=null", "trainer.enable_progress_bar=false", f"paths.run={run}"]
    with initialize_config_dir(CONFIGURATION, version_base="1.3"):
        scripts("jobs").start(compose("train", overrides=[*overrides, *quiet, *more]))


@pytest.fixture(scope="module")
def run(scripts, tmp_path_factory):
    """A folder with a table, new rows and a run on the table."""
    folder = tmp_path_factory.mktemp("own")
    people().to_csv(folder / "people.csv", index=False)
    people(7).drop(columns=["name", *LABELS]).to_csv(folder / "new.csv", index=False)
    train(scripts, folder, folder / "run")
    return folder


def test_the_run_keeps_the_table_s_names(run):
    saved = load(run / "run" / "model.safetensors")
    assert list(saved.label_names) == LABELS
    assert saved.schema.feature_names == ("age", "town=Oslo", "town=Rome", "town=Århus")
    assert json.loads((run / "run" / "metrics.json").read_text())["test/exact_match"] > 0.2


@pytest.mark.parametrize("source", ["run", "run/last.ckpt", "run/model.safetensors"])
def test_new_rows_are_named(scripts, run, tmp_path, source):
    output = tmp_path / "predictions.csv"
    scripts("predict").main(
        [str(run / source), str(run / "new.csv"), "--top-k", "8", "--output", str(output)]
    )
    with output.open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 7 * 8
    for first in range(0, 56, 8):
        assert sum(float(row["probability"]) for row in rows[first : first + 8]) == pytest.approx(1)
        assert len({row["labels"] for row in rows[first : first + 8]}) == 8
    for row in rows:
        assert (
            row["labels"].split(";") == [name for name in LABELS if row[name] == "1"] or row["labels"] == ""
        )


def test_a_run_predicts_frames_and_is_served_by_the_page(run, tmp_path, monkeypatch):
    testing = pytest.importorskip("fastapi.testclient", reason="the extra 'serve' is not installed")
    predictor, rows = load(run / "run"), pd.read_csv(run / "new.csv")
    names = predictor.predict_names(rows)
    expected = predictor.answer(new_rows(run / "new.csv", predictor.schema).features)[1].labels
    np.testing.assert_array_equal(predictor.predict(rows), expected)
    assert {*sum(names, ())} <= {*LABELS}
    page = (Path(__file__).parents[2] / "docs" / "guide" / "serving.md").read_text(encoding="utf-8")
    _, server, _ = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (tmp_path / "wines").symlink_to(run / "run")
    monkeypatch.chdir(tmp_path)
    scope = {}
    exec(compile(server, "serving.md", "exec"), scope)
    client = testing.TestClient(scope["app"])
    answer = client.post("/tags", json=rows.to_dict("records"))
    assert answer.json() == [list(each) for each in names]
    with pytest.warns(UserWarning, match=r"column 'town': .* got \['Rio'\] in 1 of 1 rows"):
        assert client.post("/tags", json=[{"age": None, "town": "Rio"}]).status_code == 200
    assert client.post("/tags", json=[{"town": "Rio"}]).status_code == 422


def test_answers_obey_a_file_of_rules_and_say_which_of_them_bound(scripts, run, tmp_path, capsys):
    rules, listed, held = (tmp_path / name for name in ("rules.txt", "listed.csv", "held.csv"))
    sun, sea, _ = LABELS
    rule = f"'{sun}' -> not '{sea}'"
    rules.write_text(f"# Not both.\n\n{rule}  # never\n", encoding="utf-8")
    command = [str(run / "run"), str(run / "people.csv"), "--part", "all"]
    scripts("predict").main([*command, "--top-k", "8", "--output", str(listed)])
    scripts("predict").main([*command, "--rules", str(rules), "--output", str(held)])
    everything, found = pd.read_csv(listed), pd.read_csv(held, keep_default_na=False)
    broken = everything[(everything["rank"] == 1)][[sun, sea]].to_numpy().all(1)
    assert 0 < broken.sum() < len(found)
    assert (found["bound_by"] == np.where(broken, rule, "")).all()
    allowed = everything[(everything[sun] * everything[sea] == 0).to_numpy()]
    best = allowed.groupby("row").first()
    assert np.array_equal(found[LABELS], best[LABELS])
    assert np.allclose(found["objective"], best["objective"])
    assert (found["exact"] == 1).all()
    # Probabilities are those of what the rules allow.
    share = allowed["probability"] / allowed.groupby("row")["probability"].transform("sum")
    assert np.allclose(found["probability"], share.groupby(allowed["row"]).first())
    for name in LABELS:
        assert np.allclose(found[f"P({name})"], (share * allowed[name]).groupby(allowed["row"]).sum())
    for ending in ("html", "md"):
        output = tmp_path / f"report.{ending}"
        scripts("report").main([*command, "--rules", str(rules), "--output", str(output)])
        page = html.unescape(output.read_text(encoding="utf-8"))
        assert "Which rules bound" in page
        assert rule in page
        assert ", ".join(map(str, broken.nonzero()[0][:12])) in page
    rules.write_text(f"'{sun}' -> '{sea}'\nnot a ->\n", encoding="utf-8")
    with pytest.raises(SystemExit):
        scripts("predict").main([*command, "--rules", str(rules)])
    assert "rules.txt: line 2: constraints: expected" in capsys.readouterr().err


def test_rules_of_a_run_are_kept_with_it_and_obeyed(scripts, run, tmp_path):
    rule = f"'{LABELS[0]}' -> not '{LABELS[1]}'"
    (tmp_path / "mine.txt").write_text(rule + "\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"rules: .*new\.csv: line 1"):
        train(scripts, run, tmp_path / "wrong", f"rules={run / 'new.csv'}")
    assert not (tmp_path / "wrong").exists()
    train(scripts, run, tmp_path / "run", f"rules={tmp_path / 'mine.txt'}")
    (tmp_path / "mine.txt").unlink()
    for source in ("run", "run/last.ckpt"):
        output = tmp_path / f"{Path(source).name}.csv"
        scripts("predict").main([str(tmp_path / source), str(run / "people.csv"), "--output", str(output)])
        found = pd.read_csv(output, keep_default_na=False)
        assert not (found[LABELS[0]] & found[LABELS[1]]).any()
        assert rule in set(found["bound_by"])


def test_without_an_output_the_first_rows_are_shown(scripts, run, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    scripts("predict").main([str(run / "run"), str(run / "new.csv")])
    shown = capsys.readouterr().out
    assert "likes_sun" in shown
    assert "7 rows, 7 proven optimal; probabilities of labels: exact, by enumeration" in shown
    assert "more" not in shown
    scripts("predict").main([str(run / "run"), str(run / "people.csv")])
    assert "--output FILE writes all of them" in capsys.readouterr().out


def test_the_report_is_one_page_that_needs_no_other(scripts, run, tmp_path, capsys):
    output = tmp_path / "report.html"
    scripts("report").main([str(run / "run"), "--output", str(output)])
    assert "24 of" in capsys.readouterr().out
    page = output.read_text(encoding="utf-8")
    assert "likes_&lt;ski&gt;" in page
    assert "likes_<ski>" not in page
    assert "on the 24 test rows of people" in page
    assert page.count('src="data:image/png;base64,') >= 4
    assert "http" not in page
    measured = json.loads((run / "run" / "metrics.json").read_text())
    assert f"<td>{measured['test/exact_match']:.3f}</td>" in page


def test_a_model_card_has_its_figures_beside(scripts, run, tmp_path):
    output = tmp_path / "report.md"
    arguments = [str(run / "run"), str(run / "people.csv"), "--output", str(output)]
    with pytest.raises(SystemExit):
        scripts("report").main(arguments)
    assert not output.exists()
    scripts("report").main([*arguments, "--part", "all", "--card"])
    _, front, page = output.read_text(encoding="utf-8").split("---\n", 2)
    assert OmegaConf.create(front)["model-index"][0]["results"][0]["dataset"]["name"] == "people"
    assert "on 120 rows of people" in page
    figures = sorted(file.name for file in (tmp_path / "report_figures").iterdir())
    assert {"calibration.png", "dependencies.png", "labels.png", "nodes.png"} <= set(figures)
    assert all(f"report_figures/{name}" in page for name in figures)


def test_an_encoder_is_made_as_the_run_describes_it(scripts, tmp_path):
    overrides = ["experiment=seven_segment_mlp", "trainer.max_epochs=1", f"paths.run={tmp_path / 'run'}"]
    quiet = ["callbacks.progress_bar=null", "trainer.enable_progress_bar=false"]
    with initialize_config_dir(CONFIGURATION, version_base="1.3"):
        measured = scripts("jobs").start(compose("train", overrides=[*overrides, *quiet]))
    scripts("report").main([str(tmp_path / "run"), "--output", str(tmp_path / "report.html")])
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert f"<td>{measured['test/exact_match']:.3f}</td>" in page
    digits = SevenSegment()
    arrays = {"x": digits.test_features, "y": digits.test_labels, "label_names": digits.label_names}
    np.savez(tmp_path / "digits.npz", **arrays)
    for arguments in (["run"], ["run", "digits.npz"]):
        places = [str(tmp_path / name) for name in (*arguments, "metrics.json")]
        scripts("evaluate").main([*places[:-1], "--output", places[-1], "--force"])
        found = json.loads((tmp_path / "metrics.json").read_text())
        assert found == pytest.approx({name: measured[f"test/{name}"] for name in found})


@pytest.fixture
def saved(scripts, run, tmp_path):
    """Fits an estimator to the table and saves it; gives its features and the arguments of the scripts."""
    data = new_rows(people(), load(run / "run" / "model.safetensors").schema)
    X = pd.DataFrame(data.features, columns=data.feature_names)

    def fit(estimator) -> tuple[pd.DataFrame, list[str]]:
        estimator.fit(X, people()[LABELS]).save(tmp_path / "model.safetensors")
        X.join(people()[LABELS].astype(int)).to_csv(tmp_path / "rows.csv", index=False)
        return X, [str(tmp_path / "model.safetensors"), str(tmp_path / "rows.csv")]

    return fit


@pytest.mark.parametrize(
    ("estimator", "several"),
    [
        (LMSBNClassifier(random_state=0), True),
        (LMSBNClassifier(kernel="rbf", random_state=0), True),
        (LMSBNClassifier(decoder="exact_match", random_state=0), True),
        (LMSBNClassifier(decoder="f1", random_state=0), False),
        (LMSBNEnsembleClassifier(num_members=3, random_state=0), False),
        (ThresholdTunedClassifier(LMSBNClassifier(random_state=0)), True),
        (LMBMClassifier(coupling_penalty=10.0, decoder="lp_relaxation"), True),
        (StructuralSVMClassifier(tol=0.5, random_state=0), True),
        (ConditionalRBMClassifier(num_hidden=2, max_iter=2, random_state=0), False),
    ],
    ids=lambda each: type(each).__name__,
)
def test_saved_estimators_are_models_too(scripts, saved, tmp_path, estimator, several, capsys):
    X, arguments = saved(estimator)
    output = tmp_path / "out.csv"
    scripts("predict").main([*arguments, "--output", str(output)])
    found = pd.read_csv(output)
    assert np.array_equal(found[LABELS], estimator.predict(X))
    assert np.allclose(found["objective"], estimator.predict_decoding(X).objective)
    if hasattr(estimator, "predict_proba"):
        assert np.allclose(found[[f"P({name})" for name in LABELS]], estimator.predict_proba(X))
        assert np.allclose(found["probability"].apply(np.log), estimator.log_prob(X, found[LABELS]))
    else:
        assert [*found] == ["row", "rank", "labels", *LABELS, "objective", "bound", "exact"]
        assert "none, since the model only scores them" in " ".join(capsys.readouterr().out.split())
    scripts("evaluate").main([*arguments, "--output", str(tmp_path / "metrics.json")])
    right = (estimator.predict(X) == people()[LABELS]).all(axis=1).mean()
    assert json.loads((tmp_path / "metrics.json").read_text())["exact_match"] == pytest.approx(right)
    if several:
        scripts("predict").main([*arguments, "--top-k", "2", "--output", str(output), "--force"])
        first, second = (rows for _, rows in pd.read_csv(output).groupby("rank"))
        assert np.allclose(first["objective"], found["objective"], atol=1e-6)
        assert (second[LABELS].to_numpy() != first[LABELS].to_numpy()).any(1).all()
    else:
        with pytest.raises(SystemExit):
            scripts("predict").main([*arguments, "--top-k", "2"])
        assert "expected" in capsys.readouterr().err


def test_an_ensemble_is_reported_on_and_scores_alone_are_not(scripts, saved, tmp_path, capsys):
    _, arguments = saved(LMSBNEnsembleClassifier(num_members=2, random_state=0))
    scripts("report").main([*arguments, "--output", str(tmp_path / "ensemble.html")])
    assert "LMSBNEnsembleClassifier" in (tmp_path / "ensemble.html").read_text(encoding="utf-8")
    (tmp_path / "model.safetensors").unlink()
    saved(StructuralSVMClassifier(tol=0.5))
    with pytest.raises(SystemExit):
        scripts("report").main([*arguments, "--output", str(tmp_path / "scores.html")])
    assert "expected a model with probabilities of labels" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "scores.html").exists()


@pytest.mark.parametrize("estimator", [LMSBNClassifier(), MultiClassSVM()])
def test_estimators_of_classes_are_refused(scripts, run, tmp_path, estimator, capsys):
    save(estimator.fit(np.eye(6), np.arange(6) % 3), tmp_path / "model.safetensors")
    with pytest.raises(SystemExit):
        scripts("predict").main([str(tmp_path / "model.safetensors"), str(run / "new.csv")])
    assert "use lmbm_torch.load(path).predict(X)" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run/model.safetensors", "--output", "out.html"], "file: expected a file, got none"),
        (["run", "--output", "out.doc"], "expected a file ending in .html or .md"),
        (["run", "--output", "out.html", "--card"], "--card: expected --output to end in .md"),
        (["run", "new.csv", "--output", "out.html"], "labels: expected all labels"),
        (
            ["run", "none.csv", "--output", "out.html"],
            "file: expected a file or a folder, found none at none.csv",
        ),
    ],
)
def test_reports_without_what_they_need_are_refused(scripts, run, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(run)
    with pytest.raises(SystemExit):
        scripts("report").main(arguments)
    assert message in " ".join(capsys.readouterr().err.split())
    assert not list(run.glob("out.*"))
