"""Where numba's internals are not as they were, kernels are compiled by its public interface."""

from __future__ import annotations

import subprocess
import sys
import warnings

import numpy as np
import pytest

pytest.importorskip("numba")
import numba
from sweeps import slow

from lmbm_torch.estimators import LMSBNClassifier
from lmbm_torch.kernels import jit, numba_internals

KERNELS = """
from lmbm_torch.kernels.jit import njit, part

@part
def half(number):
    return number / 2

@njit(cache=True, error_model="numpy")
def quarters(values):
    return half(half(values.sum()))
"""
WITHOUT = """
import importlib
import sys

import numpy as np

import numba

# Let numba import what it needs of itself.
numba.njit(lambda: 1)()
library, name = sys.argv[1].rsplit(".", 1)
delattr(importlib.import_module(library), name)
"""
COMPILE = """
import kernels
how = {"KernelCache": "kept", "NullCache": "plain"}[type(kernels.quarters._cache).__name__]
print(kernels.quarters(np.arange(8.0)), how)
"""
FIT = """
from lmbm_torch.estimators import LMSBNClassifier

random = np.random.default_rng(0)
X = random.standard_normal((40, 5))
Y = (X[:, :3] + random.standard_normal((40, 3)) > 0).astype(int)
model = LMSBNClassifier(random_state=0).fit(X, Y)
print(model.predict(X).tolist(), *model.coef_.ravel().tolist(), sep="\\n")
"""


def run(program, taken, folder):
    command = [sys.executable, "-c", WITHOUT + program, taken]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.splitlines(), done.stderr


@pytest.mark.parametrize("taken", ["numba.core.caching.FunctionCache", "numba.core.serialize.dumps"])
def test_a_name_that_numba_takes_away_is_done_without_and_said_once(tmp_path, taken):
    (tmp_path / "kernels.py").write_text(KERNELS)
    said, warned = run(COMPILE, taken, tmp_path)
    assert said == ["7.0 plain"]
    assert warned.count("RuntimeWarning") == 1
    assert f"numba {numba.__version__} has changed internals" in warned


def test_names_that_numba_takes_away_and_nobody_uses_change_nothing(tmp_path):
    (tmp_path / "kernels.py").write_text(KERNELS)
    assert run(COMPILE, "numba.core.caching.InTreeCacheLocator", tmp_path) == (["7.0 kept"], "")


@pytest.mark.parametrize(
    "taken", [slow("numba.core.caching.InTreeCacheLocator"), "numba.core.caching.FunctionCache"]
)
def test_an_estimator_learns_the_same_without(tmp_path, taken):
    random = np.random.default_rng(0)
    X = random.standard_normal((40, 5))
    Y = (X[:, :3] + random.standard_normal((40, 3)) > 0).astype(int)
    model = LMSBNClassifier(random_state=0).fit(X, Y)
    (labels, *weights), _ = run(FIT, taken, tmp_path)
    assert labels == str(model.predict(X).tolist())
    np.testing.assert_allclose(np.array(weights, float), model.coef_.ravel(), rtol=1e-9)


def test_a_release_that_nobody_has_tried_is_tried_before_it_is_used(monkeypatch):
    monkeypatch.setattr(numba_internals, "TRIED", set())
    chosen = numba.config.CACHE_DIR
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert jit._internals.__wrapped__() is numba_internals
    assert chosen == numba.config.CACHE_DIR


@pytest.mark.parametrize("fault", ["load_overload", "save_overload"])
def test_a_release_that_keeps_no_code_is_used_by_its_public_interface(monkeypatch, fault):
    monkeypatch.setattr(numba_internals, "TRIED", set())
    monkeypatch.setattr(numba_internals.KernelCache, fault, lambda *_: None)
    with pytest.warns(RuntimeWarning, match=r"has changed internals \(RuntimeError: expected 7.0"):
        assert jit._internals.__wrapped__() is None


def test_parts_and_kernels_compile_without_the_internals(monkeypatch):
    monkeypatch.setattr(jit, "_internals", lambda: None)
    before = jit.num_compiled()

    @jit.part
    def half(number):
        return number / 2

    @jit.njit(cache=True)
    def quarter(number):
        return half(half(number))

    assert quarter(8.0) == 2.0
    assert jit.num_compiled() == before + 2
