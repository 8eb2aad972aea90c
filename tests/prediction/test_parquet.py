"""Predictions of Parquet files: those of the estimator, file by file, with memory for some rows alone."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from lmbm_torch.cli import predict
from lmbm_torch.estimators import LMSBNClassifier
from lmbm_torch.prediction import answers, reading, tables
from lmbm_torch.prediction.predictor import Predictor

pyarrow = pytest.importorskip("pyarrow")
from pyarrow import parquet as files  # noqa: E402

from lmbm_torch.prediction import parquet  # noqa: E402

LABELS = ["sun", "sea", "sand"]


def frame(rows: int, seed: int = 0) -> pd.DataFrame:
    random = np.random.default_rng(seed)
    found = pd.DataFrame(random.normal(size=(rows, 3)), columns=["a", "b", "c"])
    # Columns that nothing is made of may hold anything.
    return found.assign(id=[f"r{row:05}" for row in range(rows)], at=pd.Timestamp(0), number=np.arange(rows))


@pytest.fixture(scope="module")
def estimator() -> LMSBNClassifier:
    X = frame(80)[["a", "b", "c"]]
    Y = pd.DataFrame((X.to_numpy() @ np.ones((3, 3)) + np.eye(3)[0] > 0).astype(int), columns=LABELS)
    return LMSBNClassifier(C=1.0, random_state=0).fit(X, Y)


@pytest.fixture
def saved(estimator) -> Predictor:
    found = Predictor.of(estimator)
    assert found.schema is not None
    return replace(found, schema=replace(found.schema, id_columns=("id", "number")))


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A part of several row groups, one of a single one, and an empty one."""
    monkeypatch.setattr(parquet, "BATCH_SIZE", 16)
    (tmp_path / "in").mkdir()
    for name, rows, seed in (("part-0", 50, 1), ("part-1", 7, 2), ("part-2", 0, 3)):
        frame(rows, seed).to_parquet(tmp_path / "in" / f"{name}.parquet", row_group_size=20)
    return tmp_path / "in"


def decoded(saved):
    return lambda data: (answers.predict(saved, data.features), {})


def test_each_file_gets_one_of_the_same_name_with_the_estimators_answers(saved, folder):
    parquet.write_predictions(folder, folder.parent / "out", saved, decoded(saved))
    written = sorted((folder.parent / "out").iterdir())
    assert [file.name for file in written] == ["part-0.parquet", "part-1.parquet", "part-2.parquet"]
    for file in written:
        rows, found = pd.read_parquet(folder / file.name), pd.read_parquet(file)
        assert [*found.columns] == tables.columns(saved, 1, ["id", "number"])
        assert found["row"].tolist() == rows["number"].tolist() == found["number"].tolist()
        assert found["id"].tolist() == rows["id"].tolist()
        if len(rows):
            assert np.array_equal(found[LABELS], saved.estimator.predict(rows[["a", "b", "c"]].to_numpy()))
    assert files.read_schema(written[2]).field("number").type == pyarrow.int64()
    assert files.ParquetFile(written[0]).num_row_groups == 4


def test_the_command_reads_a_folder_and_writes_one(estimator, folder, tmp_path, capsys):
    estimator.save(tmp_path / "model.safetensors")
    (tmp_path / "rules.txt").write_text("sun -> not sea\n")
    call = [str(tmp_path / "model.safetensors"), str(folder), "--output", str(tmp_path / "out")]
    predict.main([*call, "--rules", str(tmp_path / "rules.txt")])
    assert "57 rows" in capsys.readouterr().out
    found = pd.read_parquet(tmp_path / "out" / "part-0.parquet")
    assert not (found["sun"] & found["sea"]).any()
    assert set(found["bound_by"]) == {"", "sun -> not sea"}
    for wrong, said in [
        (call, "--force"),
        (call[:2], "--output: expected"),
        ([*call, "--force", "--part", "test"], "--part"),
    ]:
        with pytest.raises(SystemExit):
            predict.main(wrong)
        assert said in capsys.readouterr().err


def test_memory_is_that_of_some_rows(saved, tmp_path):
    """Of six times as many row groups the peak is the same, within a quarter."""
    peaks = []
    for groups in (2, 12):
        file = tmp_path / f"{groups}.parquet"
        frame(1024 * groups).to_parquet(file, row_group_size=1024)
        in_arrow = []

        def answer(data, in_arrow=in_arrow):
            in_arrow.append(pyarrow.total_allocated_bytes())
            return answers.predict(saved, data.features), {}

        tracemalloc.start()
        parquet.write_predictions(file, tmp_path / f"{groups}.out.parquet", saved, answer)
        peaks.append(tracemalloc.get_traced_memory()[1] + max(in_arrow))
        tracemalloc.stop()
    assert peaks[1] < 1.25 * peaks[0]


def test_nothing_is_overwritten_or_left_half_written(saved, folder):
    out = folder.parent / "out"
    out.mkdir()
    (out / "part-1.parquet").write_bytes(b"mine")
    with pytest.raises(FileExistsError, match=r"part-1\.parquet"):
        parquet.write_predictions(folder, out, saved, decoded(saved))
    assert (out / "part-1.parquet").read_bytes() == b"mine"
    (folder / "part-0.parquet").write_bytes(b"PAR1 no more")
    with pytest.raises(ValueError, match=r"part-0\.parquet: "):
        parquet.write_predictions(folder, folder.parent / "others", saved, decoded(saved))
    assert not [*(folder.parent / "others").iterdir()]


def test_what_is_refused_is_said(estimator, saved, folder):
    with pytest.raises(ValueError, match="output: expected another path"):
        parquet.write_predictions(folder, folder, saved, decoded(saved), "w")
    with pytest.raises(ValueError, match="trained without column names"):
        parquet.write_predictions(folder, "out", Predictor(estimator), decoded(saved))
    with pytest.raises(FileNotFoundError, match=r"\.parquet"):
        parquet.parts(folder.parent)
    frame(3).drop(columns="b").to_parquet(folder / "part-0.parquet")
    with pytest.raises(ValueError, match=r"part-0\.parquet: .*without columns \['b'\]"):
        parquet.write_predictions(folder, folder.parent / "out", saved, decoded(saved))
    assert reading.is_parquet(folder)
    assert not reading.is_parquet(folder.parent)


def test_the_same_call_goes_on_where_it_was_interrupted(estimator, folder, tmp_path, capsys, monkeypatch):
    estimator.save(tmp_path / "model.safetensors")
    out = tmp_path / "out"
    call = [str(tmp_path / "model.safetensors"), str(folder), "--output", str(out)]
    write, done = parquet._write_part, []

    def interrupted(source, target, *rest):
        if len(done) == 1:
            raise KeyboardInterrupt
        write(source, target, *rest)
        done.append(target.name)

    monkeypatch.setattr(parquet, "_write_part", interrupted)
    with pytest.raises(KeyboardInterrupt):
        predict.main(call)
    before = (out / "part-0.parquet").stat().st_mtime_ns
    assert [file.name for file in out.iterdir()] == ["part-0.parquet"]
    monkeypatch.setattr(parquet, "_write_part", write)
    # What others ask for is no part of it, and neither is what was made of another source.
    with pytest.raises(SystemExit):
        predict.main([*call, "--top-k", "2"])
    assert "part-0.parquet" in (said := capsys.readouterr().err)
    assert "--force overwrites it" in said
    assert [file.name for file in out.iterdir()] == ["part-0.parquet"]
    predict.main(call)
    assert sorted(file.name for file in out.iterdir()) == [f"part-{part}.parquet" for part in range(3)]
    assert (out / "part-0.parquet").stat().st_mtime_ns == before
    frame(9, 5).to_parquet(folder / "part-1.parquet")
    with pytest.raises(SystemExit):
        predict.main(call)
    assert "part-1.parquet" in capsys.readouterr().err
    assert len(pd.read_parquet(out / "part-1.parquet")) == 7
