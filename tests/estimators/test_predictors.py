"""Prediction row by row: the compiled predictor's answers are those of the ordinary path, bit for bit."""

from __future__ import annotations

import multiprocessing
import pickle
import re
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.utils.validation import validate_data
from strategies.label_problems import random_inputs

from lmbm_torch import load
from lmbm_torch.data.seven_segment import SevenSegment
from lmbm_torch.estimators import LMBMClassifier, LMSBNClassifier, StructuralSVMClassifier
from lmbm_torch.estimators.networks.predictors import TURNS
from lmbm_torch.inference.search import branch_and_bound

X, Y = random_inputs(0, 60, 4, 5)
PAGE = (Path(__file__).parents[2] / "docs" / "guide" / "serving.md").read_text(encoding="utf-8")


@given(
    seed=st.integers(0, 2**16),
    degree=st.integers(1, 3),
    labels=st.integers(2, 20),
    cutoff=st.sampled_from([None, 1.5]),
    margin=st.sampled_from([0.3, 1.0]),
    precision=st.sampled_from([np.float32, np.float64]),
)
def test_one_row_is_answered_as_its_batch_and_as_the_energy_is(
    seed, degree, labels, cutoff, margin, precision
):
    rows, targets = random_inputs(seed, 20, 3, labels)
    rows = rows.astype(precision)
    network = LMSBNClassifier(
        1.0, ordering="random", degree=degree, cutoff=cutoff, tol=0.1, random_state=seed
    )
    network.set_params(margin=margin, decoding_margin=0.7 if seed % 2 else None)
    network.fit(rows, targets)
    ordinary = network.decode(rows)
    predictor = network.compile_predictor()
    found = predictor.decode(rows)
    np.testing.assert_array_equal(found.labels, ordinary.labels)
    for ours, theirs in (
        (found.loss, ordinary.objective),
        (found.bound, ordinary.bound),
        (found.exact, ordinary.status.exact),
        (found.converged, ordinary.status.converged),
    ):
        np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(network.predict(rows), found.labels)
    for i in range(len(rows)):
        one = network.decode(rows[i : i + 1])
        np.testing.assert_array_equal(network.predict(rows[i : i + 1]), found.labels[i : i + 1])
        np.testing.assert_array_equal(predictor.decode(rows[i : i + 1]).loss, one.objective)
        np.testing.assert_array_equal(predictor.predict(rows[i : i + 1].tolist()), found.labels[i : i + 1])


def test_the_predictor_is_kept_pickled_and_not_changed_by_later_fits():
    network = LMSBNClassifier(random_state=0).fit(X, Y)
    before = network.predict(X)
    predictor = network.compile_predictor()
    copy = pickle.loads(pickle.dumps(predictor))
    names = network.predict_names(X)
    network.model_.feature_weight.data.zero_()
    network.model_.bias.data -= 10
    network.fit(X, 1 - Y)
    assert (network.predict(X) != before).any()
    np.testing.assert_array_equal(predictor.predict(X), before)
    np.testing.assert_array_equal(copy.predict(X), before)
    assert predictor.names(predictor.predict(X)) == names


def test_predictions_follow_weights_and_settings_that_are_changed_after_the_fit():
    network = LMSBNClassifier(random_state=0).fit(X, Y)
    network.predict(X)
    with torch.no_grad():
        network.model_.bias.data += 1
        network.model_.parent_weight.data *= -2
    network.set_params(margin=2.0, cutoff=1.5)
    np.testing.assert_array_equal(network.predict(X), network.decode(X).labels)
    assert network.predict(X).mean() > Y.mean()


def test_what_cannot_be_compiled_is_predicted_as_before_and_refused_by_name():
    kernel = LMSBNClassifier(kernel="rbf", random_state=0).fit(X, Y)
    other = LMSBNClassifier(decoder="hamming", random_state=0).fit(X, Y)
    classes = LMSBNClassifier(random_state=0).fit(X, Y[:, 0])
    for estimator, reason in ((kernel, "kernel='linear'"), (other, "decoder='hinge'"), (classes, "classes")):
        with pytest.raises(ValueError, match=reason):
            estimator.compile_predictor()
        assert len(estimator.predict(X[:1])) == 1
    fitted = LMSBNClassifier(random_state=0).fit(X, Y)
    np.testing.assert_array_equal(fitted.predict(sparse.csr_array(X)), fitted.predict(X))
    with pytest.raises(NotFittedError):
        LMSBNClassifier().compile_predictor()
    with pytest.raises(NotFittedError):
        LMSBNClassifier().predict(X)


def test_bad_rows_are_refused():
    network = LMSBNClassifier(random_state=0).fit(X, Y)
    predictor = network.compile_predictor()
    bad = X[:2].copy()
    bad[1, 1] = np.nan
    huge = np.full((1, 4), 1e300)
    for predict in (network.predict, predictor.predict):
        with pytest.raises(ValueError, match=r"^X: expected finite values|^Input X contains NaN"):
            predict(bad)
        with pytest.raises(ValueError, match=r"features|shape"):
            predict(X[:, :3])
        with pytest.raises(ValueError, match=r"shape|1D"):
            predict(X[0])
        with pytest.raises(ValueError, match="magnitudes"):
            predict(huge)
    for strange in (X[:1].astype(complex), X[:1].astype(str), [[None] * 4]):
        with pytest.raises(ValueError, match=r"^X: expected real numbers, got"):
            predictor.predict(strange)
    for name, value in (("margin", -1.0), ("cutoff", 0.0), ("node_limit", 0), ("decoder", "f2")):
        with pytest.raises(ValueError, match=name):
            LMSBNClassifier(random_state=0).fit(X, Y).set_params(**{name: value}).predict(X)


def test_predictions_are_those_of_the_ordinary_path(monkeypatch):
    network = LMSBNClassifier(random_state=0).fit(X, Y)
    expected = network.predict(X)
    monkeypatch.setattr(LMSBNClassifier, "_why_not_compiled", lambda self: "something else")
    np.testing.assert_array_equal(network.predict(X), expected)


class Overlapping:
    """A search that knows how many calls were in it at once."""

    def __init__(self, search: branch_and_bound.HingeSearch) -> None:
        self.search, self.inside, self.most = search, 0, 0

    def __call__(self, unary: np.ndarray):
        self.inside += 1
        self.most = max(self.most, self.inside)
        time.sleep(0.005)
        self.inside -= 1
        return self.search(unary)


@pytest.mark.parametrize(("rows", "at_once"), [(1, 1), (60, 3)])
def test_short_calls_of_several_threads_go_in_one_after_the_other(rows, at_once):
    predictor = LMSBNClassifier(random_state=0).fit(X, Y).compile_predictor()
    expected, search = predictor.predict(X[:rows]), Overlapping(predictor.search)
    shared = replace(predictor, search=cast(branch_and_bound.HingeSearch, search))
    with ThreadPoolExecutor(3) as threads:
        for found in threads.map(shared.predict, [X[:rows]] * 6):
            np.testing.assert_array_equal(found, expected)
    assert search.most == at_once


def test_a_search_that_lasts_does_not_hold_up_the_others():
    predictor = LMSBNClassifier(random_state=0).fit(X, Y).compile_predictor()
    with TURNS.of(1):
        np.testing.assert_array_equal(predictor.predict(X[:1]), predictor.predict(X)[:1])


def test_turns_begin_anew_where_a_process_forks_during_a_call():
    with TURNS.of(1):
        child = multiprocessing.get_context("fork").Process(target=lambda: sys.exit(TURNS._lock.locked()))
        child.start()
        child.join(10)
    assert child.exitcode == 0


def test_ends_at_the_node_limit_are_told():
    network = LMSBNClassifier(node_limit=1, random_state=0).fit(X, Y)
    with pytest.warns(ConvergenceWarning, match="searches were ended by node_limit=1") as caught:
        network.predict(X)
    assert caught[0].filename == __file__
    assert not network.compile_predictor().decode(X).converged.all()


@pytest.mark.parametrize("make", [LMSBNClassifier, LMBMClassifier, StructuralSVMClassifier])
def test_plain_arrays_are_checked_once_and_all_others_by_scikit_learn(make, monkeypatch):
    fitted = make().fit(X, Y)
    asked = []

    def counted(*arguments, **options):
        asked.append(options)
        return validate_data(*arguments, **options)

    monkeypatch.setattr("lmbm_torch.estimators.common.base.validate_data", counted)
    expected = fitted.predict(X)
    assert not asked
    for form in (X.tolist(), np.asfortranarray(X)[:, :], X.astype(np.longdouble), sparse.csr_array(X)):
        np.testing.assert_array_equal(fitted.predict(form), expected)
    assert len(asked) == 3


def test_names_of_columns_are_still_compared():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X, columns=list("abcd"))
    fitted = LMSBNClassifier(random_state=0).fit(frame, Y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(fitted.predict(frame), fitted.compile_predictor().predict(X))
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        fitted.predict(X)
    with pytest.raises(ValueError, match="feature names"):
        fitted.predict(frame[list("dcba")])


def test_search_refuses_what_is_not_finite():
    parents, order = np.zeros((2, 2)), np.arange(2)
    search = branch_and_bound.HingeSearch.of(parents, order)
    with pytest.raises(ValueError, match="unary: expected finite"):
        search(np.array([[0.0, np.nan]]))
    with pytest.raises(ValueError, match="unary: expected shape"):
        search(np.zeros((1, 3)))
    for weight in (np.inf, 1e30):
        with pytest.raises(ValueError, match="parents: expected"):
            branch_and_bound.HingeSearch.of(np.array([[0, 0], [weight, 0]]), order)
    with pytest.raises(ValueError, match="margin"):
        branch_and_bound.HingeSearch.of(parents, order, margin=0.0)


def test_the_server_of_the_manual_answers_as_the_model_does(tmp_path, monkeypatch):
    fastapi = pytest.importorskip("fastapi", reason="the extra 'serve' is not installed: no FastAPI")
    testing = pytest.importorskip("fastapi.testclient", reason="httpx, FastAPI's test client, is missing")
    server, _, _ = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    digits = SevenSegment()
    rows = digits.features[digits.test]
    model = LMSBNClassifier(C=0.3).fit(digits.features[digits.train], digits.labels[digits.train])
    monkeypatch.chdir(tmp_path)
    model.save("tags.safetensors")
    scope = {}
    exec(compile(server, "serving.md", "exec"), scope)
    assert isinstance(scope["app"], fastapi.FastAPI)
    client = testing.TestClient(scope["app"])
    answer = client.post("/tags", json=rows[:3].tolist())
    assert answer.status_code == 200
    expected = model.decode(rows[:3])
    assert answer.json()["tags"] == [list(names) for names in model.predict_names(rows[:3])]
    assert answer.json()["exact"] == expected.status.exact.tolist()
    assert client.post("/tags", json=[[0.0] * 3]).status_code == 422
    assert client.post("/tags", json=[[0.0], []]).status_code == 422


def test_the_file_for_other_runtimes_of_the_manual_is_decoded_with_a_proof(tmp_path, monkeypatch, capsys):
    for library in ("onnxscript", "onnxruntime"):
        pytest.importorskip(library, reason="the extra 'onnx' is not installed")
    _, _, written = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    digits = SevenSegment()
    monkeypatch.chdir(tmp_path)
    LMSBNClassifier(C=0.3).fit(digits.features[:100], digits.labels[:100]).save("tags.safetensors")
    scope: dict[str, Any] = {"load": load}
    exec(compile(written, "serving.md", "exec"), scope)
    assert scope["names"] == ("unary", "parents", "ordering")
    assert "tensor([True, True])" in capsys.readouterr().out
