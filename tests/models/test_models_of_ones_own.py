"""A model class of the user's own is saved and loaded like the library's, and only once it is imported."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from problems.own_model import OWN_MODEL
from torch import nn

from lmbm_torch import load, save
from lmbm_torch.energies import PairwiseEnergy
from lmbm_torch.models import BoltzmannMachine, Model


@pytest.fixture
def own(tmp_path, monkeypatch):
    """The module of a user's model, imported."""
    (tmp_path / "own_model.py").write_text(OWN_MODEL)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_model", raising=False)
    return __import__("own_model")


@pytest.mark.parametrize("with_encoder", [False, True])
def test_a_class_of_ones_own_comes_back(own, tmp_path, with_encoder):
    torch.manual_seed(0)
    model = own.Attraction(3, 4, scale=2.0, encoder=nn.Linear(5, 3) if with_encoder else None)
    nn.init.normal_(model.field)
    nn.init.normal_(model.pull)
    save(model, tmp_path / "model.safetensors")
    found = load(tmp_path / "model.safetensors", encoder=nn.Linear(5, 3) if with_encoder else None)
    assert type(found) is own.Attraction
    assert found.scale == 2.0
    x = torch.randn(2, 5 if with_encoder else 3)
    assert isinstance(found(x), PairwiseEnergy)
    assert torch.equal(found(x).unary, model(x).unary)
    assert torch.equal(found(x).pairwise, model(x).pairwise)


def test_a_file_imports_nothing(own, tmp_path):
    save(own.Attraction(3, 4), tmp_path / "model.safetensors")
    read = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
from lmbm_torch import load

try:
    load({str(tmp_path / "model.safetensors")!r})
except ValueError as error:
    print(error)
print("own_model" in sys.modules)
import own_model
print(type(load({str(tmp_path / "model.safetensors")!r})) is own_model.Attraction)
"""
    run = subprocess.run([sys.executable, "-c", read], capture_output=True, text=True, check=True)
    message, was_imported, is_rebuilt = run.stdout.splitlines()
    assert "got own_model.Attraction; trust a class of your own by name" in message
    assert (was_imported, is_rebuilt) == ("False", "True")


def test_a_class_that_is_defined_again_is_the_one_that_is_built(own, tmp_path):
    old = own.Attraction(3, 4)
    namespace: dict = {"__name__": "own_model"}
    exec(OWN_MODEL, namespace)
    save(old, tmp_path / "old.safetensors")
    assert type(load(tmp_path / "old.safetensors")) is namespace["Attraction"]


@pytest.mark.parametrize("forgotten", ["energy", "weights", "couples", "arguments"])
def test_a_model_that_lacks_a_method_cannot_be_made(forgotten):
    kind = type("Lacking", (BoltzmannMachine,), {forgotten: getattr(Model, forgotten, None)})
    # Abstract as in the base, which is where the method then comes from.
    with pytest.raises(TypeError, match=rf"abstract.*{forgotten}"):
        kind(2, 3)


def test_an_argument_that_no_file_holds_is_named(tmp_path):
    class Strange(BoltzmannMachine):
        def arguments(self):
            return {**super().arguments(), "cliques": object()}

    with pytest.raises(
        TypeError, match=r"arguments\.cliques: expected a value that a file can hold, got object"
    ):
        save(Strange(2, 3), tmp_path / "model.safetensors")
