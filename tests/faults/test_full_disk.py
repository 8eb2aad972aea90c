"""On a full disk the message names the file, and what was there before stays."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Callback
from matplotlib.figure import Figure
from problems.full_disk import fill
from problems.small import (
    assert_bitwise_equal,
    gradient_module,
    last_checkpoint,
    quiet_trainer,
    served,
    small_data,
    weights_of,
)
from rich.console import Console

from lmbm_torch import save
from lmbm_torch.estimators import LMSBNClassifier
from lmbm_torch.files import replacing, replacing_text, write_figure, write_text
from lmbm_torch.training import runs
from lmbm_torch.training.runs import WholeCheckpoints
from reproduce.cells import Cell, compute


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    file = tmp_path / "notes"
    with replacing(file) as stream:
        stream.write(b"first")
    fill(monkeypatch, file)
    message = r"No space left .*an older file of this name is kept: '.*notes'"
    with pytest.raises(OSError, match=message) as refused, replacing(file) as stream:
        stream.write(b"second" * 100)
    assert refused.value.errno == errno.ENOSPC
    assert file.read_bytes() == b"first"
    with replacing(file) as stream:
        stream.write(b"third")
    assert [path.name for path in tmp_path.iterdir()] == ["notes"]
    assert file.read_bytes() == b"third"


def test_text_replaces_a_file_whole_or_not_at_all(tmp_path, monkeypatch):
    file = tmp_path / "notes"
    write_text(file, "ä\r\nb\n")
    assert file.read_bytes() == "ä\r\nb\n".encode()
    fill(monkeypatch, file)
    with pytest.raises(OSError, match=r"No space left .*an older file of this name is kept: '.*notes'"):
        write_text(file, "second" * 100_000)
    assert file.read_bytes() == "ä\r\nb\n".encode()
    assert [path.name for path in tmp_path.iterdir()] == ["notes"]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_whatever_goes_wrong_leaves_the_file_and_no_other(tmp_path, error):
    file = tmp_path / "notes"
    write_text(file, "first")

    def fail(stream):
        stream.write("second")
        raise error

    with pytest.raises(error), replacing_text(file) as stream:
        fail(stream)
    assert file.read_text() == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["notes"]


def test_an_error_of_another_file_keeps_its_name(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"'.*none'"), replacing(tmp_path / "notes"):
        (tmp_path / "none").read_bytes()
    with pytest.raises(FileNotFoundError, match=r"'.*notes'"), replacing(tmp_path / "none" / "notes"):
        pass


@pytest.mark.parametrize("since", ["before", "meanwhile"])
def test_a_file_that_exists_is_not_replaced_unless_that_is_meant(tmp_path, since):
    file = tmp_path / "notes"
    if since == "before":
        file.write_text("mine")
    message = r"path: expected a path without a file, but .*notes exists"
    with pytest.raises(FileExistsError, match=message), replacing(file, "x"):
        file.write_text("mine" if since == "meanwhile" else "lost")
    assert file.read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["notes"]


def test_a_figure_has_the_format_of_its_ending(tmp_path):
    for ending, start in (("png", b"\x89PNG"), ("pdf", b"%PDF")):
        write_figure(tmp_path / f"one.{ending}", Figure())
        assert (tmp_path / f"one.{ending}").read_bytes().startswith(start)


class FillDisk(Callback):
    """Fills the disk in the middle of an epoch."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, checkpoint: Path, epoch: int) -> None:
        self.monkeypatch = monkeypatch
        self.checkpoint = checkpoint
        self.epoch = epoch

    def on_train_epoch_start(self, trainer, *_):
        if trainer.current_epoch == self.epoch:
            fill(self.monkeypatch, self.checkpoint)


@pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty:UserWarning")
def test_a_training_goes_on_when_there_is_room_again(tmp_path, monkeypatch):
    file = tmp_path / "last.ckpt"

    def fit(*callbacks, **options):
        module = gradient_module()
        trainer = quiet_trainer(
            tmp_path, 5, *callbacks, last_checkpoint(tmp_path), plugins=[WholeCheckpoints()]
        )
        trainer.fit(module, datamodule=served(small_data(), 20), **options)
        return weights_of(module)

    undisturbed = fit()
    file.unlink()
    with pytest.raises(OSError, match=r"No space left on device; .*last\.ckpt"):
        fit(FillDisk(monkeypatch, file, 3))
    assert torch.load(file, weights_only=True)["epoch"] == 2
    assert_bitwise_equal(fit(ckpt_path=file, weights_only=True), undisturbed)


def test_a_run_without_room_for_its_model_is_measured_when_there_is(tmp_path, monkeypatch):
    def measure():
        trainer = quiet_trainer(tmp_path, 2, last_checkpoint(tmp_path), plugins=[WholeCheckpoints()])
        return runs.fit_and_measure(tmp_path, trainer, gradient_module(), served(small_data(), 20))

    fill(monkeypatch, tmp_path / runs.MODEL)
    with pytest.raises(OSError, match=r"No space left on device; .*model\.safetensors"):
        measure()
    assert not (tmp_path / runs.METRICS).exists()
    assert measure()["test/exact_match"] > 0
    assert (tmp_path / runs.MODEL).is_file()
    assert (tmp_path / runs.METRICS).is_file()


def test_an_estimator_keeps_the_file_that_it_had(tmp_path, monkeypatch):
    file, data = tmp_path / "model.safetensors", small_data()
    network = LMSBNClassifier(random_state=0).fit(data.train_features, data.train_labels)
    save(network, file)
    before = file.read_bytes()
    fill(monkeypatch, file)
    with pytest.raises(OSError, match=r"No space left on device; .*model\.safetensors"):
        save(network, file, "w")
    assert file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [file]


def test_a_table_keeps_the_cells_that_it_had(tmp_path, monkeypatch):
    (tmp_path / "cells").mkdir()
    fill(monkeypatch, tmp_path / "cells" / "toys_second.json")
    calls = []

    def cells():
        for method in ("first", "second"):
            yield Cell("toys", method, lambda method=method: calls.append(method) or {"A": 0.5})

    with pytest.raises(OSError, match="No space left"):
        compute(cells(), tmp_path, Console(quiet=True))
    assert len(compute(cells(), tmp_path, Console(quiet=True))) == 2
    assert calls == ["first", "second", "second"]
