"""CONTRIBUTING's table is true: the files that a row names are all that a new part takes.

Each test writes a row's files into a copy of the repository, where it trains, evaluates, predicts, saves and
loads.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import lmbm_torch

REPOSITORY = Path(lmbm_torch.__file__).parents[1]
ENERGY = '''
"""Labels that like their number to be even."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from lmbm_torch.energies.base import BaseEnergy


@dataclass(frozen=True)
class EvenEnergy(BaseEnergy):
    """score(y) = Σ_i unary_i y_i + even · [Σ_i y_i is even]."""

    unary: Tensor
    even: Tensor
    PER_EXAMPLE: ClassVar[dict[str, int]] = {"unary": 2}

    def score(self, labels: Tensor) -> Tensor:
        """(*samples, batch) of labels (*samples, batch, labels)."""
        return (labels * self.unary).sum(-1) + self.even * (labels.sum(-1) % 2 == 0)
'''
MODEL = '''
"""Labels whose weights all share one scale."""

import torch
from torch import nn

from {energies} import {energy}
from lmbm_torch.models.base import Model


class OwnModel(Model):
    """x → {energy}."""

    def __init__(self, num_features, num_labels, scale=1.0, encoder=None):
        super().__init__(num_features, num_labels, encoder)
        self.scale = scale
        self.field = nn.Parameter(torch.zeros(num_labels, num_features))
        self.common = nn.Parameter(torch.zeros(()))

    def energy(self, features):
        unary = self.scale * features @ self.field.mT
        return {energy}(unary, {shared})

    def weights(self):
        return torch.cat([self.field.flatten(), self.common[None]])

    def couples(self):
        return torch.arange(self.field.numel() + 1) == self.field.numel()

    def arguments(self):
        return {{"num_features": self.num_features, "num_labels": self.num_labels, "scale": self.scale}}
'''
PAIRWISE = {
    "energies": "lmbm_torch.energies",
    "energy": "PairwiseEnergy",
    "shared": "self.common * (1 - torch.eye(self.num_labels))",
}
EVEN = {"energies": "lmbm_torch.energies.own_energy", "energy": "EvenEnergy", "shared": "self.common"}
MODEL_CONFIGURATION = "_target_: lmbm_torch.models.own_model.OwnModel\n_partial_: true\nscale: 0.5\n"
DECODER = '''
"""Each label by the sign of its own field when it is the only one that is on."""

import torch

from lmbm_torch.energies import Energy
from lmbm_torch.inference.common.results import Decoding, Status


def decode(energy: Energy, threshold: float = 0.0) -> Decoding:
    """1 for every label whose being on alone scores more than ``threshold`` above no label's being on."""
    alone = torch.eye(energy.num_labels, dtype=energy.dtype, device=energy.device)
    zeros = torch.zeros(energy.batch_size, energy.num_labels, dtype=energy.dtype, device=energy.device)
    none = energy.score(zeros)
    gains = torch.stack([energy.score(one.expand_as(zeros)) - none for one in alone], 1)
    labels = (gains > threshold).long()
    objective = energy.score(labels.to(energy.dtype))
    unproven = torch.zeros_like(objective, dtype=torch.bool)
    status = Status(unproven, ~unproven, unproven.long(), torch.full_like(objective, torch.inf))
    return Decoding(labels, objective, torch.full_like(objective, torch.inf), status=status)
'''
LOSS = '''
"""The squared distance of local fields from what the labels ask for."""


def own_loss(energy, labels, margin=1.0):
    """Σ_i (margin − m_i)², (batch,)."""
    return (margin - energy.local_margins(labels)).square().sum(-1)
'''
READER = '''
"""Lines of JSON: features under x, labels under y, the last quarter for testing."""

import json

import numpy as np

from lmbm_torch.data.dataset import MultilabelData, without_split
from lmbm_torch.files import reading


def read_json_lines(path) -> MultilabelData:
    """The data set of a file."""
    rows = [json.loads(line) for line in open(path, encoding="utf-8")]
    features, labels = (np.array([row[key] for row in rows], np.float64) for key in ("x", "y"))
    names = tuple(f"label_{k}" for k in range(labels.shape[1]))
    columns = tuple(f"x{k}" for k in range(features.shape[1]))
    data = without_split("json lines", features, labels, names, columns)
    every, start = np.arange(len(rows)), len(rows) * 3 // 4
    return data.with_split(every[:start], every[start:])
'''


# By the words that a row begins with: the files that it names, and the overrides that choose the new part.
GRADIENT = ("training=gradient", "trainer.max_epochs=3", "coupling_penalty=2")
ROWS = {
    "a decoder": (
        {
            "lmbm_torch/inference/own_decoder.py": DECODER,
            "conf/inference/own_decoder.yaml": "_target_: "
            "lmbm_torch.inference.own_decoder.decode\n_partial_: true\nthreshold: 0.1\n",
        },
        ("inference=own_decoder", "trainer.max_epochs=2"),
    ),
    "a kind of energy": (
        {
            "lmbm_torch/energies/own_energy.py": ENERGY,
            "lmbm_torch/models/even_model.py": MODEL.format(**EVEN),
            "conf/model/even_model.yaml": MODEL_CONFIGURATION.replace("own_model", "even_model"),
        },
        ("model=even_model", *GRADIENT, "loss=log_likelihood", "inference=map"),
    ),
    "a model": (
        {
            "lmbm_torch/models/own_model.py": MODEL.format(**PAIRWISE),
            "conf/model/own_model.yaml": MODEL_CONFIGURATION,
        },
        ("model=own_model", *GRADIENT),
    ),
    "a loss": (
        {
            "lmbm_torch/losses/own_loss.py": LOSS,
            "conf/loss/own_loss.yaml": "_target_: lmbm_torch.losses.own_loss.own_loss\n"
            "_partial_: true\nmargin: ${margin}\n",
        },
        ("loss=own_loss", *GRADIENT),
    ),
    "a data set": (
        {
            "lmbm_torch/data/formats/json_lines.py": READER,
            "conf/data/json_lines.yaml": "defaults:\n  - module\ndata:\n"
            "  _target_: lmbm_torch.data.formats.json_lines.read_json_lines\n  path: ???\n",
        },
        ("data=json_lines", "data.data.path=../rows.jsonl", "trainer.max_epochs=2"),
    ),
}
TOGETHER = "all at once"
RUNS = {words: overrides for words, (_, overrides) in ROWS.items()} | {
    TOGETHER: (
        "model=own_model",
        *GRADIENT,
        "loss=own_loss",
        "inference=own_decoder",
        *ROWS["a data set"][1][:2],
    )
}
# All in one process, since starting one takes longer than all that it does here.
WORK = """
import json, os, runpy, sys
scripts = os.path.abspath("scripts")

def call(script, *arguments):
    sys.argv = [f"{scripts}/{script}.py", *arguments]
    runpy.run_path(sys.argv[0], run_name="__main__")

import lmbm_torch
for folder, overrides in json.loads(sys.argv[1]).items():
    os.makedirs(folder)
    os.chdir(folder)
    quiet = ["callbacks.progress_bar=null", "trainer.enable_progress_bar=false", "paths.run=run"]
    call("train", *quiet, *overrides)
    call("evaluate", "run", "--output", "evaluated.json")
    call("predict", "run", "../new.npz", "--output", "run.csv")
    lmbm_torch.save(lmbm_torch.load("run"), "copy.safetensors")
    call("predict", "copy.safetensors", "../new.npz", "--output", "copy.csv")
    os.chdir("..")
"""


def copy_with_every_row(folder: Path, *runs: str) -> Path:
    """The repository with the files of every row and data for a reader, after these runs were made of it."""
    for name in ("lmbm_torch", "conf", "scripts"):
        shutil.copytree(REPOSITORY / name, folder / name, ignore=shutil.ignore_patterns("kernels"))
    # No row adds to it, and its compiled kernels serve other tests.
    (folder / "lmbm_torch" / "kernels").symlink_to(REPOSITORY / "lmbm_torch" / "kernels")
    generator = np.random.default_rng(0)
    features = generator.normal(size=(80, 64))
    labels = features @ generator.normal(size=(64, 7)) > 0
    rows = [json.dumps({"x": x.tolist(), "y": y.tolist()}) for x, y in zip(features, labels, strict=True)]
    (folder / "rows.jsonl").write_text("\n".join(rows))
    np.savez(folder / "new.npz", x=features)
    for files, _ in ROWS.values():
        for name, content in files.items():
            file = folder / name
            assert not file.exists()
            file.write_text(content.lstrip(), encoding="utf-8")
    run = subprocess.run(
        [sys.executable, "-c", WORK, json.dumps({folder_of(words): RUNS[words] for words in runs})],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return folder


@pytest.fixture(scope="module")
def each_by_itself(tmp_path_factory) -> Path:
    return copy_with_every_row(tmp_path_factory.mktemp("copy"), *ROWS)


def folder_of(words: str) -> str:
    return words.replace(" ", "_")


def row_of(words: str) -> str:
    """The row of the table that begins so."""
    table = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (row,) = [line for line in table.splitlines() if line.startswith(f"| {words}")]
    return row


def check(run: Path) -> None:
    """The run was evaluated as it was tested, and predicts as the model does that was saved from it."""
    measured = json.loads((run / "run" / "metrics.json").read_text())
    assert json.loads((run / "evaluated.json").read_text()) == pytest.approx(
        {name[5:]: value for name, value in measured.items() if name.startswith("test/")}, rel=1e-5
    )
    predictions = (run / "run.csv").read_text()
    assert len(predictions.splitlines()) == 81
    assert (run / "copy.csv").read_text() == predictions


def test_a_model_a_loss_a_decoder_and_a_reader_go_together(tmp_path):
    check(copy_with_every_row(tmp_path, TOGETHER) / folder_of(TOGETHER))


@pytest.mark.slow
@pytest.mark.parametrize("words", ROWS)
def test_the_files_that_a_row_names_are_enough(each_by_itself, words):
    check(each_by_itself / folder_of(words))


@pytest.mark.parametrize("words", ROWS)
def test_files_are_where_their_row_says(words):
    for name in ROWS[words][0]:
        assert f"{name.removeprefix('lmbm_torch/').rpartition('/')[0]}/" in row_of(words)


def test_no_row_needs_the_files_of_another():
    stems = {words: {Path(name).stem for name in files} for words, (files, _) in ROWS.items()}
    for words, (files, overrides) in ROWS.items():
        said = "\n".join((*files.values(), *overrides))
        others = set().union(*(own for other, own in stems.items() if other != words))
        assert not [name for name in others if name in said]


def test_every_path_that_the_table_names_is_there():
    table = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## What every")[0]
    named = [
        name
        for row in table.splitlines()
        if row.startswith("| ")
        for name in re.findall(r"`([\w/.]+/[\w.]*)`", row)
    ]
    missing = [
        name
        for name in named
        if not (REPOSITORY / name).exists() and not (REPOSITORY / "lmbm_torch" / name).exists()
    ]
    assert named
    assert missing == []
