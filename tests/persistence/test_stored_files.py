"""One writer and one reader for whatever is kept, and nothing else is taken for it."""

from __future__ import annotations

import numpy as np
import pytest
from problems.small import NAMES, network

import lmbm_torch
from lmbm_torch import load, persistence, save
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.prediction.predictor import Predictor


def own_decoder(energy):
    return exact.decode(energy)


def test_save_and_load_are_at_the_top():
    assert (lmbm_torch.load, lmbm_torch.save) == (persistence.load, persistence.save)


@pytest.mark.parametrize("content", [{"a": 1}, np.zeros(2), None])
def test_plain_values_are_no_content_of_their_own(tmp_path, content):
    with pytest.raises(TypeError, match="content: expected a model, an estimator or a predictor"):
        save(content, tmp_path / "file")
    assert list(tmp_path.iterdir()) == []


def test_a_decoder_of_ones_own_is_never_replaced_in_silence(tmp_path):
    save(Predictor.of_model(network().eval(), NAMES, decoder=own_decoder), tmp_path / "model.safetensors")
    for path in (tmp_path, tmp_path / "model.safetensors"):
        found = load(path)
        with pytest.raises(
            ValueError, match=r"decoder: expected .*own_decoder, with which the model was trained"
        ):
            found.answer(np.zeros((1, found.num_inputs)))


def test_a_folder_without_a_model_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"model\.safetensors"):
        load(tmp_path)


@pytest.mark.parametrize("content", [b"", b"PK", b"PK\x03\x04 cut", b"\x80\x04K\x01."])
def test_other_files_are_refused(tmp_path, content):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(ValueError, match="file: expected a checkpoint"):
        load(tmp_path / "file")
