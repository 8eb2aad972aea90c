"""Files of models, run by onnxruntime, against the models themselves."""

from __future__ import annotations

from typing import Any

import jaxtyping
import numpy as np
import pytest
import torch
from torch import nn

from lmbm_torch.energies import DirectedEnergy
from lmbm_torch.estimators import LMSBNClassifier
from lmbm_torch.inference.search import branch_and_bound
from lmbm_torch.models import BoltzmannMachine, ConditionalRBM, SigmoidBeliefNetwork, export_onnx

pytest.importorskip("onnxscript")
onnxruntime = pytest.importorskip("onnxruntime")


@pytest.fixture(autouse=True)
def symbolic_sizes():
    """No checks of types at run time: while a model is traced, its batch size is no ``int``."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def encoder():
    return nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Dropout(0.5), nn.Linear(7, 4))


MODELS = {
    "network": lambda: SigmoidBeliefNetwork(5, 4, [2, 0, 3, 1]),
    "network of triples": lambda: SigmoidBeliefNetwork(5, 4, degree=3),
    "network behind an encoder": lambda: SigmoidBeliefNetwork(4, 3, encoder=encoder()),
    "Boltzmann machine": lambda: BoltzmannMachine(5, 4),
    "cliques that hold features": lambda: BoltzmannMachine(5, 3, [(0, 1), (1, 2)], clique_features=[1, None]),
    "conditional RBM": lambda: ConditionalRBM(5, 4, 3),
}


def run(path, x):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    outputs = [output.name for output in session.get_outputs()]
    return dict(zip(outputs, session.run(None, {"x": x.numpy()}), strict=True))


@pytest.mark.parametrize("name", MODELS)
def test_a_file_says_what_the_model_says(name, tmp_path):
    torch.manual_seed(0)
    model = MODELS[name]()
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    names = export_onnx(model, tmp_path / "model.onnx", torch.randn(3, 5))
    model.eval()
    # The batch of the example is not that of the file.
    for batch in (1, 6):
        x = torch.randn(batch, 5)
        found, energy = run(tmp_path / "model.onnx", x), model(x)
        assert tuple(found) == names
        for field, value in found.items():
            expected = getattr(energy, field).detach().numpy()
            np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-5, err_msg=field)


def test_what_a_file_says_is_decoded_with_a_certificate(tmp_path):
    random = np.random.default_rng(0)
    X = random.standard_normal((60, 5))
    Y = (X[:, :4] + random.standard_normal((60, 4)) > 0).astype(int)
    network = LMSBNClassifier(random_state=0).fit(X, Y)
    example = torch.from_numpy(X)
    export_onnx(network.model_, tmp_path / "model.onnx", example)
    found: Any = {
        name: torch.from_numpy(value) for name, value in run(tmp_path / "model.onnx", example).items()
    }
    decoding = branch_and_bound.decode_hinge(DirectedEnergy(**found))
    assert decoding.status.exact.all()
    np.testing.assert_array_equal(decoding.labels.numpy(), network.predict(X))


def test_a_single_example_is_refused(tmp_path):
    with pytest.raises(ValueError, match="example: expected two or more inputs"):
        export_onnx(BoltzmannMachine(5, 4), tmp_path / "model.onnx", torch.randn(1, 5))
