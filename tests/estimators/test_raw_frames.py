"""Every estimator takes a data frame of any columns as a pipeline does, and keeps the encoder."""

from __future__ import annotations

import inspect
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from lmbm_torch import estimators, load, save
from lmbm_torch.data import TableEncoder
from lmbm_torch.estimators import (
    AutoLabelClassifier,
    ConditionalRBMClassifier,
    ConformalClassifier,
    ConstrainedClassifier,
    HierarchicalClassifier,
    IndependentLabelsClassifier,
    JointClassifier,
    KernelLogisticRegression,
    LMBMClassifier,
    LMSBNClassifier,
    LMSBNClassifierCV,
    LMSBNEnsembleClassifier,
    MultiClassSVM,
    ProbabilisticClassifierChain,
    StructuralSVMClassifier,
    ThresholdTunedClassifier,
)
from lmbm_torch.estimators import make_pipeline as answering_pipeline
from lmbm_torch.estimators.common.calls import reads_frames
from lmbm_torch.prediction.predictor import Predictor

ROWS = 80


class Clock:
    """A clock that every look moves on, so that a search is the same whatever the machine does."""

    now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


NAMES = ("crisp", "sweet", "old")


def _frame() -> pd.DataFrame:
    random = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "year": random.integers(1990, 2020, ROWS).astype(float),
            "land": random.choice(["Spain", "Italy", "Chile"], ROWS),
            "sold": np.datetime64("2026-01-01") + random.integers(0, 300, ROWS).astype("timedelta64[D]"),
            "organic": random.random(ROWS) < 0.5,
        }
    )
    frame.loc[[3, 7], "year"], frame.loc[[4, 9], "land"] = np.nan, None
    return frame


def _labels(frame: pd.DataFrame) -> pd.DataFrame:
    noise = np.random.default_rng(1).random((ROWS, 3)) < 0.2
    columns = [frame["land"] == "Italy", frame["organic"], frame["year"] < 2005]
    return pd.DataFrame(np.column_stack(columns) ^ noise, columns=NAMES).astype(int)


FRAME = _frame()
Y = _labels(FRAME)
LOGISTIC = LogisticRegression(solver="liblinear", random_state=0)
NETWORK = LMSBNClassifier(random_state=0)
ESTIMATORS = {
    "network": NETWORK,
    "kernel": LMSBNClassifier(kernel="rbf", random_state=0),
    "machine": LMBMClassifier(random_state=0),
    "structural": StructuralSVMClassifier(random_state=0),
    "hidden units": ConditionalRBMClassifier(max_iter=3, tol=1e9, random_state=0),
    "ensemble": LMSBNEnsembleClassifier(LMSBNClassifier(), num_members=2, random_state=0),
    "penalties": LMSBNClassifierCV(Cs=2, cv=2, random_state=0),
    "thresholds": ThresholdTunedClassifier(
        LMSBNClassifier(), cv=2, num_steps=2, max_cycles=1, random_state=0
    ),
    "independent": IndependentLabelsClassifier(LOGISTIC),
    "chain": ProbabilisticClassifierChain(LOGISTIC),
    "hierarchy": HierarchicalClassifier(IndependentLabelsClassifier(LOGISTIC), {}),
    "rules": ConstrainedClassifier(NETWORK, ["crisp -> sweet"]),
    "conformal": ConformalClassifier(NETWORK, coverage=0.8, random_state=0),
    "joint": JointClassifier(LOGISTIC, cv=2, random_state=0),
    "automatic": AutoLabelClassifier(
        families=["network"], time_budget=30, cv=2, random_state=0, clock=Clock()
    ),
}
# Of the ordinary tests one for each kind of fit is enough.
SLOW = ("automatic", "joint", "thresholds")


@pytest.fixture(scope="module")
def fitted():
    kept = {}

    def fit(name):
        if name not in kept:
            kept[name] = clone(ESTIMATORS[name]).fit(FRAME, Y)
        return kept[name]

    return fit


def answers(model, X) -> dict[str, np.ndarray]:
    """Return every answer of a model for instances, as arrays."""
    found = {}
    for name in ("predict", "predict_proba", "decision_function", "decode", "predict_set"):
        if hasattr(model, name):
            came = getattr(model, name)(X)
            found[name] = np.asarray(came[0] if isinstance(came, tuple) else getattr(came, "labels", came))
    if hasattr(model, "log_prob"):
        found["log_prob"] = model.log_prob(X, Y.iloc[: len(X) if isinstance(X, pd.DataFrame) else X.shape[0]])
    return found


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in ESTIMATORS]
)
def test_a_raw_frame_gives_the_bits_of_a_pipeline_with_the_encoder(name, fitted):
    model = fitted(name)
    encoder = TableEncoder().fit(FRAME)
    features = encoder.transform(FRAME)
    expected = clone(ESTIMATORS[name]).fit(features, Y)
    found = answers(model, FRAME)
    assert {"predict"} < found.keys() or name in ("joint", "automatic")
    for method, came in answers(expected, features).items():
        np.testing.assert_array_equal(found[method], came, err_msg=method)
    pipeline = make_pipeline(TableEncoder(), clone(ESTIMATORS[name])).fit(FRAME, Y)
    np.testing.assert_array_equal(pipeline.predict(FRAME), found["predict"])
    assert tuple(model.label_names_) == NAMES
    assert model.score(FRAME, Y) == expected.score(features, Y)
    reordered = FRAME[FRAME.columns[::-1]]
    np.testing.assert_array_equal(model.predict(reordered), found["predict"])


@pytest.mark.parametrize(
    "name", [name for name in ESTIMATORS if hasattr(ESTIMATORS[name], "explain") and name not in SLOW]
)
def test_explanations_name_encoded_columns(name, fitted):
    explained = fitted(name).explain(FRAME[:1])
    features = {feature for label in explained.values() for feature in label.features} | {
        *explained.by_feature
    }
    names = {*TableEncoder().fit(FRAME).get_feature_names_out()}
    if name != "kernel":
        assert features
        assert features <= names
    assert {*explained.by_feature} <= names


@pytest.mark.parametrize(
    "name", ["network", "machine", "structural", "ensemble", "penalties", "thresholds", "rules"]
)
def test_files_hold_the_encoder_and_predict_frames(name, fitted, tmp_path):
    model = fitted(name)
    model.save(tmp_path / "model.safetensors")
    again = load(tmp_path / "model.safetensors")
    expected = answers(model, FRAME)
    for method, came in answers(again, FRAME).items():
        np.testing.assert_array_equal(came, expected[method], err_msg=method)


@pytest.mark.parametrize("name", ["network", "machine", "penalties", "chain", "rules", "joint"])
def test_known_labels_are_given_by_name(name, fitted):
    model, known = fitted(name), np.full((ROWS, 3), np.nan)
    known[:, 1] = 1
    expected = model.decode(FRAME, known=known).labels
    np.testing.assert_array_equal(model.decode(FRAME, {"sweet": 1}).labels, expected)
    np.testing.assert_array_equal(model.decode(FRAME, known={"sweet": np.ones(ROWS)}).labels, expected)
    with pytest.raises(
        ValueError, match=r"known: expected names among \['crisp', 'sweet', 'old'\], got \['dry'\]"
    ):
        model.decode(FRAME, known={"dry": 1})


@pytest.mark.parametrize("form", ["lists", "sets", "texts", "one column"])
@pytest.mark.parametrize("name", ["network", "chain", "rules", "conformal"])
def test_labels_are_sets_of_names(form, name):
    names = [[label for label in NAMES if row[label]] for _, row in Y.iterrows()]
    given = {
        "lists": pd.Series(names),
        "sets": [{*each} for each in names],
        "texts": [";".join(each) for each in names],
        "one column": pd.DataFrame({"tags": [";".join(each) for each in names]}),
    }[form]
    sorted_names = sorted(NAMES)
    expected = clone(ESTIMATORS[name]).fit(FRAME, Y[sorted_names])
    model = clone(ESTIMATORS[name]).fit(FRAME, given)
    assert tuple(model.label_names_) == tuple(sorted_names)
    np.testing.assert_array_equal(model.predict(FRAME), expected.predict(FRAME))
    if hasattr(model, "predict_names"):
        assert model.predict_names(FRAME[:5]) == expected.predict_names(FRAME[:5])
    assert model.score(FRAME, given) == expected.score(FRAME, Y[sorted_names])
    assert model.score(FRAME[:2], given[:2]) == expected.score(FRAME[:2], Y[sorted_names][:2])


def test_missing_sets_are_unknown_labels_and_other_names_are_refused():
    names = [[label for label in NAMES if row[label]] for _, row in Y.iterrows()]
    holes = Y[sorted(NAMES)].astype(float)
    holes.iloc[5] = np.nan
    expected = clone(NETWORK).fit(FRAME, holes)
    model = clone(NETWORK).fit(FRAME, [None if row == 5 else {*each} for row, each in enumerate(names)])
    np.testing.assert_array_equal(model.coef_, expected.coef_)
    with pytest.raises(
        ValueError, match=r"y: expected names among \['crisp', 'old', 'sweet'\], got \['dry'\]"
    ):
        model.score(FRAME[:1], [{"dry"}])


def test_texts_without_a_semicolon_stay_classes():
    classes = np.where(Y["old"] == 1, "old", "young")
    for model in (LMSBNClassifier(random_state=0), MultiClassSVM(), KernelLogisticRegression()):
        found = model.fit(FRAME, pd.Series(classes))
        assert found.classes_.tolist() == ["old", "young"]
        np.testing.assert_array_equal(found.predict(FRAME), found.predict(found.encoder_.transform(FRAME)))


def test_pairs_of_words_bools_and_arrow_are_labels():
    arrow = pytest.importorskip("pyarrow")
    expected = clone(NETWORK).fit(FRAME, Y)
    words = Y.astype(bool).astype(str)
    for given in (Y.astype(bool), words, arrow.Table.from_pandas(Y)):
        found = clone(NETWORK).fit(arrow.Table.from_pandas(FRAME), given)
        np.testing.assert_array_equal(found.coef_, expected.coef_)
        assert tuple(found.label_names_) == NAMES


def test_frames_of_numbers_are_not_encoded_and_a_new_fit_forgets_the_encoder():
    numbers = FRAME[["year", "organic"]].fillna(2000.0)
    model = clone(NETWORK).fit(FRAME, Y).fit(numbers, Y)
    plain = clone(NETWORK).fit(numbers.to_numpy(np.float64), Y)
    assert not hasattr(model, "encoder_")
    assert model.feature_names_in_.tolist() == ["year", "organic"]
    np.testing.assert_array_equal(model.coef_, plain.coef_)
    as_objects = clone(NETWORK).fit(numbers.astype(object), Y)
    assert not hasattr(as_objects, "encoder_")
    np.testing.assert_array_equal(as_objects.coef_, plain.coef_)
    model = model.fit(FRAME, Y)
    with pytest.raises(ValueError, match="y: expected shape"):
        model.fit(FRAME[["year"]], Y[:3])
    assert model.encoder_.feature_names_in_.tolist() == [*FRAME.columns]


def test_a_stream_encodes_by_the_columns_of_its_first_call():
    model = LMSBNClassifier(random_state=0).partial_fit(FRAME[:40], Y[:40], epoch_size=40)
    encoder = model.encoder_
    model.partial_fit(FRAME[40:], Y[40:])
    assert model.encoder_ is encoder
    features = TableEncoder().fit(FRAME[:40])
    expected = LMSBNClassifier(random_state=0)
    for part in (slice(40), slice(40, None)):
        expected.partial_fit(
            features.transform(FRAME[part]), Y[part], epoch_size=40 if part.start is None else None
        )
    np.testing.assert_array_equal(model.coef_, expected.coef_)


def test_a_pipeline_is_one_file_and_answers_as_its_last_step(tmp_path):
    pipeline = make_pipeline(TableEncoder(), StandardScaler(), clone(NETWORK)).fit(FRAME, Y)
    save(pipeline, tmp_path / "pipeline.safetensors")
    again = load(tmp_path / "pipeline.safetensors")
    features, last = pipeline[:-1].transform(FRAME), pipeline[-1]
    np.testing.assert_array_equal(again[:-1].transform(FRAME), features)
    np.testing.assert_array_equal(again.predict(FRAME), pipeline.predict(FRAME))
    answering = answering_pipeline(TableEncoder(), StandardScaler(), clone(NETWORK)).fit(FRAME, Y)
    answering.save(tmp_path / "answering.safetensors")
    for found in (again, answering, deepcopy(answering), load(tmp_path / "answering.safetensors")):
        assert found.predict_names(FRAME) == last.predict_names(features)
        assert found.label_names_ == last.label_names_
        np.testing.assert_array_equal(found.log_prob(FRAME, Y), last.log_prob(features, Y))
        found, expected = found.decode(FRAME, top_k=2), last.decode(features, top_k=2)
        np.testing.assert_array_equal(found.labels, expected.labels)
    np.testing.assert_array_equal(again.predict(FRAME, known={"old": 1})[:, 2], 1)
    contributions = answering.explain(FRAME[:1])["old"].features
    assert {*contributions} <= {*pipeline[:-1].get_feature_names_out()}
    for name in ("partial_fit", "with_rules", "nothing"):
        with pytest.raises(AttributeError):
            getattr(answering, name)
    with pytest.raises(NotFittedError):
        save(make_pipeline(TableEncoder(), NETWORK), tmp_path / "none.safetensors")
    with pytest.raises(TypeError, match="expected a value that a file can hold, got LogisticRegression"):
        save(make_pipeline(TableEncoder(), LOGISTIC).fit(FRAME, Y["old"]), tmp_path / "none.safetensors")


def test_a_predictor_of_a_file_reads_frames(tmp_path, fitted):
    model = fitted("network")
    model.save(tmp_path / "model.safetensors")
    found = Predictor.load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(found.predict(FRAME), model.predict(FRAME))
    assert found.predict_names(FRAME[:9]) == model.predict_names(FRAME[:9])
    assert found.schema.feature_names == tuple(model.encoder_.get_feature_names_out())
    # Labels beside the features are none of them.
    np.testing.assert_array_equal(found.predict(FRAME.join(Y)), model.predict(FRAME))
    with pytest.raises(ValueError, match="X: expected features without column names, as in training"):
        replace(found, schema=None).predict(FRAME)


def test_models_that_read_frames_get_them():
    of_pipeline = make_pipeline(TableEncoder(), StandardScaler(), LogisticRegression())
    boosted = HistGradientBoostingClassifier(max_iter=2)
    for base in (of_pipeline, boosted):
        assert reads_frames(JointClassifier(base))
        assert reads_frames(ProbabilisticClassifierChain(base))
    assert not reads_frames(JointClassifier(LogisticRegression()))
    assert not reads_frames(ConformalClassifier(NETWORK))
    model = JointClassifier(of_pipeline, cv=2, random_state=0).fit(FRAME, Y)
    assert not hasattr(model, "encoder_")
    typed = FRAME[["year", "land"]].astype({"land": "category"})
    boosted.set_params(categorical_features="from_dtype")
    assert not hasattr(ProbabilisticClassifierChain(boosted).fit(typed, Y), "encoder_")


def test_every_public_method_of_instances_encodes_or_asks_one_that_does():
    plain = []
    for name in estimators.__all__:
        kind = getattr(estimators, name)
        if not getattr(kind, "encodes_frames", True):
            continue
        for method, function in inspect.getmembers(kind, inspect.isfunction):
            takes_instances = [*inspect.signature(function).parameters][1:2] == ["X"]
            if takes_instances and not method.startswith("_") and not hasattr(function, "__wrapped__"):
                plain.append(method)
    # These ask methods that encode, or get instances that are encoded.
    asking = {"binding_rules", "predict_decoding", "predict_log_proba", "sample", "energies"}
    asking |= {
        "score",
        "predict_set",
        "predict_set_names",
        "recalibrate",
        "uncorrected",
        "energy",
        "predict_proba",
    }
    assert {*plain} <= asking
