"""A trained model's file predicts as its checkpoint does, and says what is wrong with it."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from problems.latent import latent_module
from problems.small import (
    NAMES,
    NUM_FEATURES,
    dual_module,
    gradient_module,
    last_checkpoint,
    network,
    quiet_trainer,
    served,
    small_data,
)
from torch import nn

from lmbm_torch import load, save
from lmbm_torch.data import read_table
from lmbm_torch.data.scaling import standardise
from lmbm_torch.models import BoltzmannMachine, SigmoidBeliefNetwork
from lmbm_torch.prediction import reading
from lmbm_torch.prediction.predictor import Predictor
from lmbm_torch.prediction.trained import TrainedModel, description
from lmbm_torch.training import runs


def table() -> pd.DataFrame:
    data = small_data()
    features = pd.DataFrame(data.features, columns=data.feature_names)
    features["kind"] = ["odd" if row % 3 else "even" for row in range(len(features))]
    return features.join(pd.DataFrame(data.labels, columns=NAMES))


def assert_alike(first: Predictor, second: Predictor) -> None:
    settings = ("label_names", "margin", "schema")
    assert [getattr(first, name) for name in settings] == [getattr(second, name) for name in settings]
    for name in ("scaling", "inference"):
        assert (getattr(first, name) is None) == (getattr(second, name) is None)
    assert description(first.estimator.decoder) == description(second.estimator.decoder)
    if first.scaling is not None:
        assert first.scaling.agrees(second.scaling)
    if first.inference is not None:
        assert first.inference.stored_parts() == second.inference.stored_parts()
    weights, others = first.estimator.model.state_dict(), second.estimator.model.state_dict()
    assert weights.keys() == others.keys()
    for name, weight in weights.items():
        assert weight.dtype == others[name].dtype
        assert torch.equal(weight, others[name])


@pytest.mark.parametrize("make", [SigmoidBeliefNetwork, BoltzmannMachine])
def test_a_run_on_a_table_leaves_a_model_that_reads_such_tables(tmp_path, make):
    data = served(read_table(table(), list(NAMES), test_fraction=0.2), scaling=standardise)
    module = dual_module(make(data.num_features, 4).double(), margin=0.5)
    runs.fit_and_measure(tmp_path, quiet_trainer(tmp_path, 3, last_checkpoint(tmp_path)), module, data)
    saved = load(tmp_path / "model.safetensors")
    assert saved.schema == data.data.schema
    assert saved.margin == 0.5
    assert_alike(load(tmp_path / "last.ckpt"), saved)
    new = table().drop(columns=list(NAMES))[["kind", *small_data().feature_names[::-1]]]
    new.to_csv(tmp_path / "new.csv", index=False)
    rows = reading.read(tmp_path / "new.csv", saved)
    assert np.array_equal(rows.features, data.data.features)
    assert np.isnan(rows.labels).all()


def test_a_run_goes_on_with_the_same_table_alone(tmp_path):
    first = served(read_table(table(), list(NAMES)), scaling=standardise)
    module = gradient_module(SigmoidBeliefNetwork(first.num_features, 4).double())
    quiet_trainer(tmp_path, 1, last_checkpoint(tmp_path)).fit(module, datamodule=first)
    others = table().replace({"kind": {"odd": "strange"}})
    other = served(read_table(others, list(NAMES)), scaling=standardise)
    trainer = quiet_trainer(tmp_path, 2)
    with pytest.raises(ValueError, match="schema: expected the checkpoint's schema, got another"):
        trainer.fit(module, datamodule=other, ckpt_path=tmp_path / "last.ckpt", weights_only=True)


def test_inference_of_hidden_units_is_kept(tmp_path):
    module, data = latent_module(), served(small_data())
    runs.fit_and_measure(tmp_path, quiet_trainer(tmp_path, 1, last_checkpoint(tmp_path)), module, data)
    saved = load(tmp_path / "model.safetensors")
    assert saved.inference.stored_parts() == module.inference.stored_parts()
    assert_alike(load(tmp_path / "last.ckpt"), saved)


def test_an_encoder_is_the_callers_to_give(tmp_path):
    encoder = nn.Linear(NUM_FEATURES, NUM_FEATURES).double()
    saved = Predictor.of_model(network(encoder=encoder).eval(), NAMES, 1.0, None)
    save(saved, tmp_path / "model.safetensors")
    again = nn.Linear(NUM_FEATURES, NUM_FEATURES)
    assert_alike(load(tmp_path / "model.safetensors", encoder=again), saved)
    with pytest.raises(ValueError, match=r"encoder: expected the encoder of the training"):
        load(tmp_path / "model.safetensors")


def test_files_of_other_things_are_refused(tmp_path, monkeypatch):
    path = tmp_path / "model.safetensors"
    saved = Predictor.of_model(network().eval(), NAMES, 1.0, None)
    save(saved, path)
    content = path.read_bytes()
    with pytest.raises(FileExistsError):
        save(saved, path)
    for length in (0, 100, len(content) - 1):
        (tmp_path / "cut").write_bytes(content[:length])
        with pytest.raises(ValueError, match=r"cut: "):
            load(tmp_path / "cut")
    save(network(), tmp_path / "bare")
    with pytest.raises(
        ValueError, match="bare: expected a trained model or an estimator, got only a SigmoidBel"
    ):
        Predictor.load(tmp_path / "bare")
    for changes, message in (
        ({"label_names_": ("one",)}, "label_names: expected 4 names, got 1"),
        ({"margin": 0.0}, "margin: expected a finite number above 0"),
        ({"label_names_": None}, "NoneType"),
    ):
        with monkeypatch.context() as patched:
            parts = saved.estimator.stored_parts() | changes
            patched.setattr(TrainedModel, "stored_parts", lambda _, parts=parts: parts)
            save(saved, tmp_path / "bad", "w")
        with pytest.raises(ValueError, match=rf"path: .*bad: .*{message}"):
            load(tmp_path / "bad")
