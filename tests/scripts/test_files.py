"""scripts/evaluate.py and scripts/predict.py: from a checkpoint and a file to metrics and predictions."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from importlib import import_module

import numpy as np
import pytest
import torch
from hydra import compose, initialize_config_dir
from sweeps import slow

from lmbm_torch import load
from lmbm_torch.cli.configuration import CONFIGURATION
from lmbm_torch.inference.enumeration import exact

LABELS = ("sun", "sea", "sand")


@pytest.fixture(scope="module")
def scripts():
    """Import a command's module by its name."""
    return lambda name: import_module(f"lmbm_torch.cli.{name}")


@pytest.fixture(scope="module", params=["sigmoid_belief", "boltzmann"])
def trained(request, scripts, tmp_path_factory):
    """A data file and the directory of a run on it."""
    folder = tmp_path_factory.mktemp("trained")
    generator = np.random.default_rng(0)
    features = generator.normal(2.0, 3.0, size=(90, 4))
    labels = (features @ generator.normal(size=(4, 3)) > 1).astype(np.uint8)
    np.savez(
        folder / "small.npz",
        x_train=features[:60],
        y_train=labels[:60],
        x_test=features[60:],
        y_test=labels[60:],
        label_names=LABELS,
    )
    overrides = ["data=npz", f"data.data.path={folder / 'small.npz'}", f"paths.run={folder / 'run'}"]
    overrides += [f"model={request.param}", "training=dual"]
    overrides += ["+data.scaling={_target_: lmbm_torch.data.scaling.standardise, _partial_: true}"]
    quiet = ["callbacks.progress_bar=null", "trainer.enable_progress_bar=false"]
    with initialize_config_dir(CONFIGURATION, version_base="1.3"):
        scripts("jobs").start(compose("train", overrides=[*overrides, *quiet]))
    return folder / "small.npz", folder / "run"


def test_evaluation_repeats_the_metrics_of_the_run(scripts, trained, tmp_path, capsys):
    file, run = trained
    scripts("evaluate").main([str(run / "last.ckpt"), str(file), "--output", str(tmp_path / "out.json")])
    of_run = json.loads((run / "metrics.json").read_text())
    expected = {name.removeprefix("test/"): value for name, value in of_run.items() if "test/" in name}
    assert json.loads((tmp_path / "out.json").read_text()) == pytest.approx(expected)
    printed = capsys.readouterr().out
    assert "exact_match" in printed
    assert "rows measured; " in printed


def test_predictions_carry_their_certificates(scripts, trained, tmp_path):
    file, run = trained
    output = tmp_path / "predictions.csv"
    scripts("predict").main([str(run / "last.ckpt"), str(file), "--output", str(output)])
    with output.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    alone = [f"P({name})" for name in LABELS]
    assert [*rows[0]] == [
        "row",
        "rank",
        "labels",
        *LABELS,
        *alone,
        "probability",
        "objective",
        "bound",
        "exact",
    ]
    with np.load(file) as arrays:
        right = [[int(row[name]) for name in LABELS] for row in rows] == arrays["y_test"]
    assert right.all(1).mean() == pytest.approx(
        json.loads((run / "metrics.json").read_text())["test/exact_match"]
    )
    assert all(row["exact"] == "1" and row["objective"] == row["bound"] for row in rows)
    assert {float(row["objective"]) >= 0 for row in rows} == {True}


def test_the_most_probable_labels_are_given_on_request(scripts, trained, tmp_path):
    file, run = trained
    arguments = [str(run / "last.ckpt"), str(file), "--most-probable", "--output"]
    scripts("predict").main([*arguments, str(tmp_path / "predictions.csv")])
    scripts("evaluate").main([*arguments, str(tmp_path / "metrics.json")])
    with np.load(file) as arrays, torch.no_grad():
        energy = load(run / "last.ckpt").energies(torch.from_numpy(arrays["x_test"]))[0]
        known = arrays["y_test"]
    best = exact.decode(energy)
    with (tmp_path / "predictions.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [[int(row[name]) for name in LABELS] for row in rows] == best.labels.tolist()
    assert [float(row["objective"]) for row in rows] == pytest.approx(best.objective.tolist(), abs=1e-5)
    right = (best.labels.numpy() == known).all(1).mean()
    assert json.loads((tmp_path / "metrics.json").read_text())["exact_match"] == pytest.approx(right)


def test_parts_are_chosen(scripts, trained, tmp_path):
    file, run = trained
    for part, count in (("train", 60), ("test", 30), ("all", 90)):
        output = tmp_path / f"{part}.csv"
        scripts("predict").main([str(run / "last.ckpt"), str(file), "--part", part, "--output", str(output)])
        assert len(output.read_text().splitlines()) == count + 1


def test_labels_need_not_be_known_to_predict(scripts, trained, tmp_path):
    file, run = trained
    with np.load(file) as arrays:
        np.savez(tmp_path / "new.npz", x=arrays["x_test"], y=np.full((30, 3), np.nan))
    for source, output in ((file, tmp_path / "known.csv"), (tmp_path / "new.npz", tmp_path / "new.csv")):
        scripts("predict").main([str(run / "last.ckpt"), str(source), "--output", str(output)])
    assert (tmp_path / "known.csv").read_text() == (tmp_path / "new.csv").read_text()


@pytest.mark.parametrize("name", ["predict", "evaluate"])
def test_an_output_is_overwritten_only_by_force(scripts, trained, tmp_path, name, capsys):
    file, run = trained
    output = tmp_path / "output"
    output.write_text("mine")
    arguments = [str(run / "last.ckpt"), str(file), "--output", str(output)]
    with pytest.raises(SystemExit):
        scripts(name).main(arguments)
    assert "exists; use another name, or --force to overwrite it" in capsys.readouterr().err
    assert output.read_text() == "mine"
    scripts(name).main([*arguments, "--force"])
    assert output.read_text() != "mine"


@pytest.mark.parametrize("name", ["predict", "evaluate"])
def test_bad_files_are_named_and_leave_nothing(scripts, trained, tmp_path, name, capsys):
    file, run = trained
    (tmp_path / "cut.ckpt").write_bytes((run / "last.ckpt").read_bytes()[:-100])
    np.savez(tmp_path / "narrow.npz", x=np.zeros((2, 3)), y=np.zeros((2, 3)), label_names=LABELS)
    for checkpoint, data, message in (
        (tmp_path / "cut.ckpt", file, "cut.ckpt"),
        (file, file, "small.npz"),
        (run / "last.ckpt", tmp_path / "none.npz", "none.npz"),
        (run / "last.ckpt", tmp_path / "narrow.npz", "features: expected shape (at least 1, 4)"),
    ):
        with pytest.raises(SystemExit):
            scripts(name).main([str(checkpoint), str(data), "--output", str(tmp_path / "output")])
        assert message in capsys.readouterr().err
        assert not (tmp_path / "output").exists()


@pytest.mark.parametrize("trained", ["boltzmann", slow("sigmoid_belief")], indirect=True)
def test_predicting_needs_neither_lightning_nor_hydra(trained, tmp_path):
    file, run = trained
    code = (
        "import sys; sys.modules.update(lightning=None, hydra=None);"
        "from lmbm_torch.cli import predict; predict.main(sys.argv[1:])"
    )
    arguments = [str(run / "last.ckpt"), str(file), "--output", str(tmp_path / "out.csv")]
    subprocess.run([sys.executable, "-c", code, *arguments], check=True)
    assert len((tmp_path / "out.csv").read_text().splitlines()) == 31
