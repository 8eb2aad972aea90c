"""What `lmbm train` learns from a table is what the class learns from its rows, to the last bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate

from lmbm_torch.cli import estimated
from lmbm_torch.cli.configuration import CONFIGURATION
from lmbm_torch.data.sequences.conll import TRAIN
from lmbm_torch.estimators import (
    ChainCRF,
    ChainSVM,
    ConditionalRBMClassifier,
    LMBMClassifier,
    LMBMClassifierCV,
    LMSBNClassifier,
    MaximumEntropyMarkovClassifier,
    StructuralSVMClassifier,
)
from lmbm_torch.prediction.predictor import Predictor

LABELS = ("sun", "sea", "snow", "sand")
SEED = 3
# Of the shell alone: the files that it writes say probabilities.
CALIBRATED = {"calibrate": True}
FAMILIES: dict[str, tuple[type, dict[str, Any]]] = {
    "network": (LMSBNClassifier, CALIBRATED),
    "kernel_network": (LMSBNClassifier, {"kernel": "rbf", **CALIBRATED}),
    "machine": (LMBMClassifier, CALIBRATED),
    "structural_svm": (StructuralSVMClassifier, CALIBRATED),
    "conditional_rbm": (ConditionalRBMClassifier, {}),
}
SEQUENCES: dict[str, tuple[type, dict[str, Any]]] = {
    "crf": (ChainCRF, {}),
    "m3n": (ChainSVM, {"random_state": SEED}),
    "memm": (MaximumEntropyMarkovClassifier, {}),
}


def composed(*overrides: str) -> Any:
    with initialize_config_dir(CONFIGURATION, version_base="1.3"):
        return compose("train", overrides=[*overrides, f"seed={SEED}"])


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """Overrides for a table whose columns are in unlike units, with all labels and with some missing."""
    random = np.random.default_rng(0)
    plain = random.normal(size=(60, 3))
    Y = plain @ random.normal(size=(3, len(LABELS))) + random.normal(size=(60, len(LABELS))) > 0
    X = plain * [1e-2, 1.0, 1e3] + [0, 0, 2000]
    found = {}
    for name, is_missing in (
        ("complete", np.zeros(Y.shape, bool)),
        ("missing", random.random(Y.shape) < 0.15),
    ):
        texts = np.where(is_missing, "", Y.astype(int).astype(str))
        rows = [",".join([*map(repr, x.tolist()), *y]) for x, y in zip(X, texts.tolist(), strict=True)]
        file = tmp_path_factory.mktemp("table") / f"{name}.csv"
        file.write_text("\n".join([",".join(["a", "b", "year", *LABELS]), *rows]) + "\n")
        held_out = ["data.test_fraction=0"]
        found[name] = ["data=table", f"data.train={file}", f"data.labels=[{','.join(LABELS)}]", *held_out]
    return found


def assert_same(first: Any, second: Any, X: Any) -> None:
    """Every number that was learned, and what is predicted."""
    for name, value in vars(first).items():
        if name.endswith("_") and isinstance(value, np.ndarray | float | int):
            np.testing.assert_array_equal(value, getattr(second, name), err_msg=name)
    np.testing.assert_array_equal(first.predict(X), second.predict(X))
    np.testing.assert_array_equal(first.predict_proba(X), second.predict_proba(X))


@pytest.mark.parametrize("labels", ["complete", "missing"])
@pytest.mark.parametrize("name", FAMILIES)
def test_the_shell_learns_what_the_class_does(tables, tmp_path, name, labels):
    config = composed(*tables[labels], f"estimator={name}", f"paths.run={tmp_path / 'run'}")
    estimated.start(config)
    found = Predictor.load(tmp_path / "run").estimator
    data = instantiate(config.data).data
    kind, settings = FAMILIES[name]
    expected = kind(random_state=SEED, **settings).fit(data.features, data.labels)
    assert np.isnan(data.labels).any() == (labels == "missing")
    assert_same(expected, found, data.features)


def test_a_network_is_learned_where_nothing_is_said(tables, tmp_path):
    estimated.start(composed(*tables["complete"], f"paths.run={tmp_path / 'run'}"))
    assert type(Predictor.load(tmp_path / "run").estimator) is LMSBNClassifier


@pytest.mark.parametrize("C", ["0.3", "0.3*scale"])
def test_C_means_the_same_in_both(tables, tmp_path, C):
    config = composed(
        *tables["complete"], f"C={C}", f"paths.run={tmp_path / 'run'}", "estimator.calibrate=false"
    )
    estimated.start(config, [f"C={C}"])
    data = instantiate(config.data).data
    given = float(C) if "*" not in C else C
    expected = LMSBNClassifier(given, random_state=SEED, max_iter=1000).fit(data.features, data.labels)
    np.testing.assert_array_equal(Predictor.load(tmp_path / "run").estimator.coef_, expected.coef_)


@pytest.mark.parametrize("name", SEQUENCES)
def test_chains_are_learned_as_the_class_does(tmp_path, name):
    random = np.random.default_rng(0)
    words = random.choice(["the", "sea", "runs", "fast"], size=(12, 5))
    lines = ["\n".join(f"{word} {'N' if word == 'sea' else 'O'}" for word in each) for each in words.tolist()]
    file = tmp_path / "mine.conll"
    file.write_text("\n\n".join(lines) + "\n")
    settings = [f"data.path={file}", "data.test_fraction=0"]
    config = composed("data=conll", *settings, f"estimator={name}", f"paths.run={tmp_path / 'run'}")
    estimated.start(config)
    found = Predictor.load(tmp_path / "run" / "model.safetensors").estimator
    data = instantiate(config.data, _convert_="all")
    sequences, tags = data.within(TRAIN)
    kind, settings = SEQUENCES[name]
    expected = kind(**settings).fit(sequences, tags)
    for attribute in ("coef_", "intercept_", "transition_", "objective_"):
        np.testing.assert_array_equal(getattr(found, attribute), getattr(expected, attribute))


def test_couplings_of_a_machine_chosen_by_cross_validation_have_the_penalty_of_the_class():
    made = instantiate(composed("estimator=machine_cv").estimator, _convert_="all")
    assert isinstance(made, LMBMClassifierCV)
    assert made.base.coupling_penalty == LMBMClassifier().coupling_penalty == "scale"


@pytest.mark.parametrize(
    ("name", "setting"), [("crf", "C=2"), ("machine", "coupling_penalty=2"), ("kernel_logistic", "margin=2")]
)
def test_what_an_estimator_would_not_hear_of_is_refused(tables, name, setting):
    config = composed(*tables["complete"], f"estimator={name}", setting)
    with pytest.raises(ValueError, match=rf"{setting.split('=')[0]}: expected no value for this estimator"):
        estimated.start(config, [setting])
