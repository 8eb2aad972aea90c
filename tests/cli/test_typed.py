"""Configurations are held to the types of what they call, before anything is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from lmbm_torch.cli import jobs
from lmbm_torch.cli.configuration import CONFIGURATION
from lmbm_torch.cli.typed import Comparison, Estimation, Training, check_call, check_types

OWN = {
    "conll": ["data.path=mine.conll"],
    "table": ["data.train=mine.csv", "data.labels=[a]"],
    "svmlight": ["data.train=mine.txt"],
}


def composed(name: str, *overrides: str) -> dict[str, Any]:
    with initialize_config_dir(CONFIGURATION, version_base="1.3"):
        config = compose(name, overrides=[*overrides])
    resolved = OmegaConf.to_container(config, resolve=True)
    assert isinstance(resolved, dict)
    return resolved


def choices(group: str) -> list[str]:
    return sorted(path.stem for path in Path(CONFIGURATION, group).glob("*.yaml"))


@pytest.fixture(scope="module")
def config():
    return composed("train", "experiment=seven_segment_lmsbn", "paths.run=run")


def replaced(config: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    first, _, rest = key.partition(".")
    inner = replaced(config[first], rest, value) if rest else value
    return {**config, first: inner}


WRONG = {
    "seed": ("x", "an integer"),
    "C": ([1, 2], "a number or a text"),
    "margin": (None, "a number"),
    "name": (7, "a text"),
    "ordering": (None, "a node with a _target_"),
    "callbacks.charts": ({"a": 1}, "a node with a _target_ or null"),
    "paths.run": (1.5, "a text"),
    "trainer.max_epochs": (1.5, "an integer or null"),
    "trainer.limit_train_batches": ("x", "an integer or a number or null"),
    "training.tol": ("1e-3x", "a number"),
    "training.seed": (0.5, "an integer"),
    "training.calibrate": (1, "true or false or a text"),
    "data.batch_size": (10.0, "an integer"),
    "data.on_device": ("yes", "true or false"),
    "data.splitter": ("random", "a node with a _target_"),
    "data.data": ({"a": 1}, "a node with a _target_"),
    "model.degree": (True, "an integer"),
    "inference.margin": ("x", "a number"),
    "callbacks.best.mode": (0, "a text"),
    "callbacks.early_stopping.patience": (None, "an integer"),
}


@pytest.mark.parametrize("key", WRONG)
def test_values_of_another_type_are_refused_by_their_key(config, key):
    value, expected = WRONG[key]
    check_types(config, Training)
    with pytest.raises(ValueError, match="expected") as refused:
        check_types(replaced(config, key, value), Training)
    assert str(refused.value) == f"{key}: expected {expected}, got {value!r}"


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("training.tool", 1, r"training\.tool: unknown key, expected one of .*tol"),
        ("data.splitter.part", 1, r"data\.splitter\.part: unknown key"),
        (
            "logger.tensorboard._target_",
            "nowhere.at_all",
            r"logger\.tensorboard\._target_: expected a function or class to import",
        ),
        (
            "logger.tensorboard._target_",
            "",
            r"logger\.tensorboard\._target_: expected a function or class to import",
        ),
        ("model._target_", "lmbm_torch.models", r"model\._target_: expected a function or class"),
        ("model._partial_", "x", r"model\._partial_: expected true or false"),
    ],
)
def test_targets_that_cannot_be_called_so_are_refused(config, key, value, message):
    with pytest.raises(ValueError, match=message):
        check_types(replaced(config, key, value), Training)


def test_nothing_is_made_of_what_is_refused(tmp_path, config):
    run = tmp_path / "run"
    wrong = replaced(replaced(config, "paths.run", str(run)), "callbacks.early_stopping.patience", "x")
    with pytest.raises(ValueError, match=r"callbacks\.early_stopping\.patience: expected an integer"):
        jobs.start(OmegaConf.create(wrong))
    assert not run.exists()


def takes(
    number: float,
    names: Sequence[str],
    pair: tuple[int, str],
    side: Literal["min", 3],
    made: Callable,
    **_: Any,
) -> None: ...


@pytest.mark.parametrize(
    "arguments",
    [
        {"number": 1, "names": ["a"], "pair": [1, "b"], "side": "min", "made": {"_target_": "x"}, "more": 1},
        {"number": 0.5, "names": [], "pair": "???", "side": 3},
    ],
)
def test_what_fits_passes(arguments):
    check_call("", takes, arguments)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"number": True}, "a number"),
        ({"names": "a"}, "a list, each entry a text"),
        ({"names": [1]}, "a list, each entry a text"),
        ({"pair": [1, "b", "c"]}, "a list, each entry an integer"),
        ({"side": "max"}, "one of 'min', 3"),
        ({"made": "x"}, "a node with a _target_"),
        ({"made": None}, "a node with a _target_"),
    ],
)
def test_what_does_not_fit_is_refused(arguments, expected):
    with pytest.raises(ValueError, match=f"key.{next(iter(arguments))}: expected {expected}, got "):
        check_call("key", takes, arguments)


def test_arguments_that_are_given_later_may_be_null():
    check_call("", takes, {"number": None}, is_partial=True)
    with pytest.raises(ValueError, match="number: expected a number, got None"):
        check_call("", takes, {"number": None})


GROUPS: Mapping[str, list[str]] = {
    "experiment": [],
    "data": [],
    "inference": [],
    "ordering": [],
    "trainer": [],
    "loss": ["training=gradient"],
    "model": ["training=latent"],
}


@pytest.mark.slow
@pytest.mark.parametrize("group", GROUPS)
def test_the_library_s_own_configurations_pass(group):
    for name in choices(group):
        if (group, name) != ("data", "module"):
            own = OWN.get(name, []) if group == "data" else []
            check_types(composed("train", *GROUPS[group], f"{group}={name}", *own, "paths.run=run"), Training)


@pytest.mark.parametrize("name", choices("estimator"))
def test_estimators_pass(name):
    config = composed("train", f"estimator={name}", "paths.run=run")
    check_types({key: config[key] for key in Estimation.__annotations__}, Estimation)


def test_comparisons_pass():
    check_types(composed("compare", "name=x", "output=x"), Comparison)
