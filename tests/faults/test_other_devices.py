"""What was saved on a GPU is read where there is none: by files that say so, made without one."""

from __future__ import annotations

import io
import zipfile

import numpy as np
import pytest
import torch
from problems.small import gradient_module, last_checkpoint, quiet_trainer, served, small_data

from lmbm_torch import load, save
from lmbm_torch.estimators import (
    ConditionalRBMClassifier,
    LMSBNClassifier,
)
from lmbm_torch.training.runs import WholeCheckpoints

# As pickle writes a text: what torch notes with every tensor of the device that it was on.
CPU, CUDA = (b"X" + len(name).to_bytes(4, "little") + name.encode() for name in ("cpu", "cuda:0"))
ESTIMATORS = {
    "network": LMSBNClassifier(random_state=0),
    "kernel": LMSBNClassifier(kernel="rbf", random_state=0),
    "hidden": ConditionalRBMClassifier(num_hidden=2, objective="mle_mf", max_iter=1, random_state=0),
}


def as_from_a_gpu(checkpoint: bytes) -> bytes:
    """The checkpoint, its tensors noted as ones of a GPU."""
    stream = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(checkpoint)) as archive, zipfile.ZipFile(stream, "w") as other:
        for entry in archive.infolist():
            content = archive.read(entry)
            if entry.filename.endswith("data.pkl"):
                assert CPU in content
                content = content.replace(CPU, CUDA)
            other.writestr(entry.filename, content)
    return stream.getvalue()


@pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty:UserWarning")
def test_a_checkpoint_of_a_gpu_is_read_and_resumed_on_the_cpu(tmp_path):
    module = gradient_module()
    trainer = quiet_trainer(tmp_path, 1, last_checkpoint(tmp_path), plugins=[WholeCheckpoints()])
    trainer.fit(module, datamodule=served(small_data()))
    file = tmp_path / "gpu.ckpt"
    file.write_bytes(as_from_a_gpu((tmp_path / "last.ckpt").read_bytes()))
    if not torch.cuda.is_available():
        with pytest.raises(RuntimeError, match="CUDA"):
            torch.load(file, weights_only=True)
    weights = load(file).estimator.model.state_dict()
    assert {weight.device.type for weight in weights.values()} == {"cpu"}
    assert all(torch.equal(weight, weights[name]) for name, weight in module.model.state_dict().items())
    resumed = gradient_module()
    trainer = quiet_trainer(tmp_path, 2, last_checkpoint(tmp_path), plugins=[WholeCheckpoints()])
    trainer.fit(resumed, datamodule=served(small_data()), ckpt_path=file, weights_only=True)
    assert trainer.current_epoch == 2


@pytest.mark.parametrize("name", ESTIMATORS)
def test_an_estimator_of_a_gpu_predicts_on_the_cpu(tmp_path, name):
    data, estimator = small_data(), ESTIMATORS[name]
    estimator.fit(data.train_features, data.train_labels)
    expected = estimator.predict(data.features)
    nested = [key for key in estimator.get_params() if key.rpartition("__")[2] == "device"]
    assert nested
    save(estimator.set_params(**dict.fromkeys(nested, "cuda")), tmp_path / "model.safetensors")
    found = load(tmp_path / "model.safetensors")
    assert {found.get_params()[key] for key in nested} == {"cpu"}
    assert np.array_equal(found.predict(data.features), expected)
