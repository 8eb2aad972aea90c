"""Models, predictors and loaders in spawned workers, to which everything is pickled: answers are alike."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import joblib
import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.model_selection import cross_val_predict
from strategies.bipartite import random_bipartite_energy
from strategies.chain import random_chain_energy
from strategies.directed import random_directed_energy
from strategies.label_problems import random_inputs
from strategies.pairwise import random_pairwise_energy

from lmbm_torch import decode
from lmbm_torch.data import open_mapped, write_mapped
from lmbm_torch.data.batches import shuffled
from lmbm_torch.data.datamodule import MappedDataModule, MultilabelDataModule
from lmbm_torch.data.dataset import without_split
from lmbm_torch.estimators import LMBMClassifierCV, LMSBNClassifier
from lmbm_torch.inference.messages import matrix_bp
from lmbm_torch.models import BoltzmannMachine, SigmoidBeliefNetwork
from lmbm_torch.prediction import answers
from lmbm_torch.prediction.predictor import Predictor

X, Y = random_inputs(0, 60, 4, 3)


@pytest.fixture(scope="module")
def worker():
    """A worker process that shares nothing with this one."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        yield pool


def decoded(model: Callable[..., Any], *given: Any) -> torch.Tensor:
    return decode(model(*given)).labels


def believed(energy: Any) -> torch.Tensor:
    return matrix_bp.marginals(energy).visible


@pytest.mark.parametrize("draw", [random_directed_energy, random_pairwise_energy, random_chain_energy])
def test_energies_are_decoded_alike(worker, draw):
    energy = draw(0, 5)
    there = worker.submit(decode, energy).result(120)
    here = decode(energy)
    assert torch.equal(there.labels, here.labels)
    assert torch.equal(there.objective, here.objective)


@pytest.mark.parametrize("make", [SigmoidBeliefNetwork, BoltzmannMachine])
def test_models_are_alike(worker, make):
    torch.manual_seed(0)
    model = (make(4, 3, [2, 0, 1]) if make is SigmoidBeliefNetwork else make(4, 3)).double()
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_()
    rows = torch.from_numpy(X)
    assert torch.equal(worker.submit(decoded, model, rows).result(120), decoded(model, rows))


def test_beliefs_are_alike(worker):
    energy = random_bipartite_energy(0, 6, 5)
    assert torch.equal(worker.submit(believed, energy).result(120), believed(energy))


def answered(predictor: Any, rows: np.ndarray) -> np.ndarray:
    if isinstance(predictor, Predictor):
        return np.concatenate([found.labels.numpy() for found in answers.decode(predictor, rows)])
    return predictor.predict(rows)


def test_predictors_are_alike(worker):
    model = LMSBNClassifier(random_state=0).fit(X, Y)
    for predictor in (model.compile_predictor(), Predictor.of(model)):
        there = worker.submit(answered, predictor, X).result(120)
        np.testing.assert_array_equal(there, answered(predictor, X))
        np.testing.assert_array_equal(there, model.predict(X))


def parts(folder: Any) -> dict[str, Any]:
    """Parts of data sets by kind, each to be fetched in batches."""
    csr, names = sparse.csr_array(X), ["a", "b", "c"]
    found: dict[str, Any] = {}
    for name, rows in (("dense", X), ("sparse", csr)):
        module = MultilabelDataModule(without_split(name, rows, Y, names, list("wxyz")))
        found[name] = module.train_set
        write_mapped(folder / name, [(rows, Y)], label_names=names)
        found[f"mapped {name}"] = MappedDataModule(open_mapped(folder / name)).train_set
    return found


# Of torch, which rebuilds a sparse tensor that another process has sent.
@pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled:UserWarning")
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dense", "sparse", "mapped dense", "mapped sparse"])
def test_loaders_serve_the_same_batches(tmp_path, kind):
    part = parts(tmp_path)[kind]
    spawned = {"num_workers": 1, "multiprocessing_context": "spawn", "timeout": 120}
    for here, there in zip(shuffled(part, 7, 0), shuffled(part, 7, 0, **spawned), strict=True):
        for ours, theirs in zip(here, there, strict=True):
            torch.testing.assert_close(theirs, ours, rtol=0, atol=0, equal_nan=True)


@pytest.mark.slow
@pytest.mark.parametrize("model", [LMSBNClassifier(random_state=0), LMBMClassifierCV(random_state=0, cv=2)])
def test_folds_are_learned_alike_by_workers_of_joblib(model):
    here = cross_val_predict(model, X, Y, cv=3)
    with joblib.parallel_config("loky", n_jobs=2):
        there = cross_val_predict(model, X, Y, cv=3)
    np.testing.assert_array_equal(there, here)
