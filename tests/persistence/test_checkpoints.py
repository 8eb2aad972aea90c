"""A checkpoint rebuilds its model, and no file that is not one gets through the door or runs anything."""

from __future__ import annotations

import json
import pickle
import struct
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from problems.small import (
    NAMES,
    NUM_FEATURES,
    ORDERING,
    dual_module,
    gradient_module,
    last_checkpoint,
    network,
    quiet_trainer,
    served,
    small_data,
)

from lmbm_torch import load
from lmbm_torch.data.scaling import standardise
from lmbm_torch.persistence.archives import VERSION
from lmbm_torch.persistence.files import RECORD


def encoder():
    return torch.nn.Sequential(torch.nn.Linear(NUM_FEATURES, NUM_FEATURES), torch.nn.Tanh()).double()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a checkpoint without an encoder, and its module."""
    folder = tmp_path_factory.mktemp("trained")
    data = served(small_data(), scaling=standardise)
    module = dual_module(network(degree=3), margin=0.5)
    quiet_trainer(folder, 5, last_checkpoint(folder)).fit(module, datamodule=data)
    return folder, module


@pytest.fixture
def checkpoint(trained):
    return torch.load(trained[0] / "last.ckpt", weights_only=True)


def test_the_model_comes_back(trained):
    folder, module = trained
    saved = load(folder / "last.ckpt")
    assert saved.label_names == NAMES
    assert saved.margin == 0.5
    assert saved.num_inputs == NUM_FEATURES
    assert saved.estimator.model.degree == 3
    assert tuple(saved.estimator.model.ordering.tolist()) == ORDERING
    assert not saved.estimator.model.training
    for name, value in module.model.state_dict().items():
        assert torch.equal(saved.estimator.model.state_dict()[name], value)


def test_its_energy_is_of_raw_features(trained):
    folder, module = trained
    rows = torch.from_numpy(small_data().test_features)
    scaled = torch.from_numpy(served(small_data(), scaling=standardise).test_set.features)
    with torch.no_grad():
        assert torch.equal(load(folder / "last.ckpt").energies(rows)[0].unary, module(scaled).unary)


@pytest.mark.filterwarnings("ignore::lightning.fabric.utilities.warnings.PossibleUserWarning")
def test_without_data_of_the_library_features_are_taken_as_they_are(tmp_path):
    module, loader = gradient_module(), served(small_data()).train_dataloader()
    quiet_trainer(tmp_path, 1, last_checkpoint(tmp_path)).fit(module, train_dataloaders=loader)
    saved = load(tmp_path / "last.ckpt")
    assert saved.scaling is None
    assert saved.num_inputs == NUM_FEATURES
    assert saved.label_names == ("label_0", "label_1", "label_2", "label_3")
    rows = torch.from_numpy(small_data().test_features)
    assert torch.equal(saved.energies(rows)[0].unary, module(rows).unary)


def test_an_encoder_is_the_callers_to_give(tmp_path, trained):
    module = gradient_module(network(encoder=encoder()))
    quiet_trainer(tmp_path, 2, last_checkpoint(tmp_path)).fit(module, datamodule=served(small_data()))
    rows = torch.from_numpy(small_data().test_features)
    saved = load(tmp_path / "last.ckpt", encoder=encoder())
    assert torch.equal(saved.energies(rows)[0].unary, module(rows).unary)
    assert saved.num_inputs == NUM_FEATURES
    assert replace(saved, scaling=None).num_inputs is None
    with pytest.raises(ValueError, match=r"encoder: expected the encoder of the training"):
        load(tmp_path / "last.ckpt")
    with pytest.raises(ValueError, match=r"(?s)last\.ckpt.*encoder"):
        load(tmp_path / "last.ckpt", encoder=torch.nn.Tanh())
    with pytest.raises(ValueError, match="encoder: expected None"):
        load(trained[0] / "last.ckpt", encoder=encoder())


class Malicious:
    """Makes a file where it is unpickled."""

    def __init__(self, target: Path):
        self.target = target

    def __reduce__(self):
        return Path.touch, (self.target,)


def assert_refused(path, target):
    with pytest.raises(ValueError, match=r"bad\.ckpt: expected a checkpoint"):
        load(path)
    assert not target.exists()
    torch.load(path, weights_only=False)
    assert target.exists(), "the file was harmless, so that nothing was tested"


@pytest.mark.parametrize("hidden_in", ["record", "tensors", "alone"])
def test_a_malicious_object_is_refused_and_not_executed(tmp_path, checkpoint, hidden_in):
    target, path = tmp_path / "executed", tmp_path / "bad.ckpt"
    if hidden_in == "alone":
        checkpoint = Malicious(target)
    else:
        checkpoint[RECORD][hidden_in] = Malicious(target)
    torch.save(checkpoint, path)
    assert_refused(path, target)


def test_a_plain_pickle_is_refused_and_not_executed(tmp_path):
    target, path = tmp_path / "executed", tmp_path / "bad.ckpt"
    torch.save(Malicious(target), path, _use_new_zipfile_serialization=False)
    assert_refused(path, target)
    path.write_bytes(pickle.dumps({RECORD: 1}))
    with pytest.raises(ValueError, match=r"bad\.ckpt: expected a checkpoint"):
        load(path)


def test_no_truncation_gets_through(tmp_path, trained):
    content = (trained[0] / "last.ckpt").read_bytes()
    for length in (0, 10, 1000, len(content) // 2, len(content) - 1):
        (tmp_path / "cut.ckpt").write_bytes(content[:length])
        with pytest.raises(ValueError, match=r"cut\.ckpt"):
            load(tmp_path / "cut.ckpt")


def test_an_entry_that_announces_more_than_the_file_holds_is_refused(tmp_path, trained):
    damaged = bytearray((trained[0] / "last.ckpt").read_bytes())
    last = damaged.rindex(b"PK\x01\x02")
    struct.pack_into("<II", damaged, last + 20, 10**6, 10**6)
    (tmp_path / "greedy.ckpt").write_bytes(damaged)
    with pytest.raises(ValueError, match=r"greedy\.ckpt"):
        load(tmp_path / "greedy.ckpt")


def test_flipped_bits_are_found(tmp_path, trained):
    path = trained[0] / "last.ckpt"
    with zipfile.ZipFile(path) as archive:
        entries = [entry for entry in archive.infolist() if "/data/" in entry.filename]
    assert len(entries) > 5
    for entry in entries:
        damaged = bytearray(path.read_bytes())
        name_and_extra = struct.unpack_from("<HH", damaged, entry.header_offset + 26)
        damaged[entry.header_offset + 30 + sum(name_and_extra) + entry.file_size // 2] ^= 0x10
        (tmp_path / "flipped.ckpt").write_bytes(damaged)
        with pytest.raises(ValueError, match=rf"flipped\.ckpt: .* the corrupted entry {entry.filename}"):
            load(tmp_path / "flipped.ckpt")


def without(record, name):
    return {key: value for key, value in record.items() if key != name}


def of_record(checkpoint, change):
    """The same with other parts of the trained model, by name."""
    record = json.loads(checkpoint[RECORD]["record"])
    outer = dict(record["parts"][":dict"])
    parts = dict(outer["estimator"]["parts"][":dict"])
    change(parts)
    outer["estimator"]["parts"][":dict"] = [*map(list, parts.items())]
    record["parts"][":dict"] = [*map(list, outer.items())]
    return {**checkpoint, RECORD: {**checkpoint[RECORD], "record": json.dumps(record)}}


def with_part(checkpoint, name, value):
    """The same with another part of the trained model."""
    return of_record(checkpoint, lambda parts: parts.update({name: value}))


def built_of(checkpoint, **others):
    """The same with other arguments of its model."""

    def change(parts):
        arguments = dict(parts["model"]["parts"][":dict"])["arguments"][":dict"]
        arguments[:] = [[name, others.get(name, value)] for name, value in arguments]

    return of_record(checkpoint, change)


def decoded_by(checkpoint, routine, **settings):
    """The same with another decoder."""
    described = {"routine": routine, "settings": {":dict": [*map(list, settings.items())]}}
    return with_part(checkpoint, "decoder", {":dict": [*map(list, described.items())]})


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda c: [1, 2], "expected a checkpoint of lmbm_torch, got another file"),
        (lambda c: without(c, RECORD), "expected a checkpoint of lmbm_torch, got another file"),
        (lambda c: {**c, RECORD: {**c[RECORD], "version": str(VERSION + 1)}}, f"version {VERSION + 1}"),
        (lambda c: {**c, RECORD: {**c[RECORD], "version": "0"}}, "version 0; read the file with"),
        (lambda c: with_part(c, "model", {":kind": "Forest", "parts": None}), "Forest"),
        (lambda c: of_record(c, lambda parts: parts.pop("margin")), "margin"),
        (lambda c: with_part(c, "margin", 0.0), "margin"),
        (lambda c: with_part(c, "label_names_", {":tuple": ["one"]}), "label_names"),
        (lambda c: with_part(c, "calibration", [1.0]), "calibration: expected a Calibration or None"),
        (
            lambda c: decoded_by(c, "os.system"),
            "expected the path of a decoder in lmbm_torch.inference, got os.system",
        ),
        (
            lambda c: decoded_by(c, "lmbm_torch.inference.enumeration.exact.log_partition"),
            "decoder: expected the path of a decoder in",
        ),
        (
            lambda c: decoded_by(c, "lmbm_torch." + "inference.none.decode"),
            "decoder: expected the path of a decoder in",
        ),
        (lambda c: decoded_by(c, "lmbm_torch.inference.enumeration.exact.decode", strange=1), "strange"),
        (lambda c: built_of(c, ordering=[0, 0, 1, 2]), "ordering"),
        (lambda c: built_of(c, num_features=3), "feature_weight"),
        (lambda c: {**c, "state_dict": without(c["state_dict"], "model.bias")}, "bias"),
        (
            lambda c: {**c, "state_dict": {**c["state_dict"], "model.bias": torch.full((4,), torch.nan)}},
            "bias",
        ),
    ],
)
def test_foreign_and_inconsistent_files_are_refused(tmp_path, checkpoint, damage, message):
    torch.save(damage(checkpoint), tmp_path / "bad.ckpt")
    with pytest.raises(ValueError, match=rf"(?s)bad\.ckpt.*{message}"):
        load(tmp_path / "bad.ckpt")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.ckpt"):
        load(tmp_path / "none.ckpt")
