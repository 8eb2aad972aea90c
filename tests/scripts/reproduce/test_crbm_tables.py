"""The tables of conditional RBMs, on tiny images in the place of the real ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from rich.console import Console

from lmbm_torch.data.dataset import MultilabelData
from lmbm_torch.data.features import numbered
from reproduce import CONFIGURATION, cells, crbm_2017_ablations, crbm_classifier, crbm_training

QUIET = Console(quiet=True)
TINY = {
    "train": 30,
    "validation": 10,
    "test": 10,
    "hidden": 2,
    "epochs": 2,
    "contrastive_epochs": 1,
    "accelerator": "cpu",
}


def bars(count: int, seed: int) -> np.ndarray:
    """Images of 28 × 28, each with one bar somewhere."""
    generator = np.random.default_rng(seed)
    pixels = np.zeros((count, 28, 28), np.uint8)
    for image, place in zip(pixels, generator.integers(0, 20, count), strict=True):
        image[4:24, place : place + 8] = 1
    return pixels


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Both image sets under their real names; MNIST keeps 10,000 images to validate."""
    place = tmp_path_factory.mktemp("data")
    (place / "mnist").mkdir()
    grey = 255 * bars(10_030, 0)
    np.savez(place / "mnist" / "mnist.npz", x_train=grey, x_test=grey[:10])
    (place / "caltech101_silhouettes").mkdir()
    few, many = bars(10, 1).reshape(10, -1), bars(30, 1).reshape(30, -1)
    archive = place / "caltech101_silhouettes" / "caltech101_silhouettes_28_split1.npz"
    np.savez(archive, x_train=many, x_val=few, x_test=few)
    crbm_training.problem.cache_clear()
    yield str(place)
    crbm_training.problem.cache_clear()


def protocol(table: str, *overrides: str, **own: Any) -> dict[str, Any]:
    """A table's committed configuration, made tiny."""
    with initialize_config_dir(CONFIGURATION, version_base="1.3"):
        config = compose("reproduce", overrides=[f"table={table}", *overrides])
    return {**OmegaConf.to_container(config.table.protocol, resolve=True), **TINY, **own}  # pyright: ignore[reportGeneralTypeIssues, reportCallIssue]


@pytest.mark.parametrize("method", crbm_training.METHODS)
def test_a_training_repeats_itself_and_ends_at_its_best_epoch(folder, method):
    settings = crbm_2017_ablations.Ablations(**protocol("crbm_2017_ablations"))
    task = (settings, folder, "occluded MNIST 8x8", method, 0.05, 10, 3, 1e-4)
    (first, *trained), (again, *trained_again) = (crbm_training.train(*task) for _ in range(2))
    assert crbm_training.errors(settings, *trained) == crbm_training.errors(settings, *trained_again)
    for name in ("validation", "epoch"):
        assert first[name] == again[name]
    errors = [100 * epoch["val/hamming_loss"] for epoch in first["epochs"]]
    assert first["validation"] == pytest.approx(min(errors))
    assert first["epoch"] == 1 + int(np.argmin(errors))
    assert len(errors) == (1 if "CD" in method else 2)


@pytest.fixture
def poisoned(monkeypatch):
    """Call it, and from then on the pixels of test parts are inverted."""
    clean = crbm_training.problem

    def problem(*arguments):
        data = clean(*arguments)
        labels = data.labels.copy()
        labels[data.test] = 1 - labels[data.test]
        return replace(data, labels=labels)

    return lambda: monkeypatch.setattr(crbm_training, "problem", problem)


def test_ablations_choose_without_the_test_part(folder, poisoned):
    own = {"unconditional": ["CD-1"], "unconditional_rates": [0.1, 0.001], "tasks": []}
    settings = protocol("crbm_2017_ablations", penalties=[], chains=5, temperatures=3, **own)
    (cell,) = crbm_2017_ablations.cells(folder=folder, protocol=settings)
    clean = cell.run()
    poisoned()
    dirty = cell.run()
    assert dirty["lower"] < clean["lower"]
    kept = {name for name in clean if name.startswith("validation")} | {"learning_rate"}
    assert {name: dirty[name] for name in kept} == {name: clean[name] for name in kept}


@pytest.mark.slow
def test_ablations_test_one_training_by_several_inferences(folder, tmp_path):
    own = {"unconditional": ["CD-1", "MLE-BP"], "unconditional_rates": [0.1, 0.01]}
    settings = protocol("crbm_2017_ablations", penalties=[1.0], chains=5, temperatures=3, **own)
    results = cells.compute(crbm_2017_ablations.cells(folder=folder, protocol=settings), tmp_path, QUIET)
    rows = crbm_2017_ablations.summary(results)
    tests = [row["tested_by"] for row in rows if row["method"] == "MLE-BP" and row["tested_by"]]
    assert tests == [
        crbm_2017_ablations.MATCHED,
        "mean field",
        "belief propagation, 1 iterations",
        "belief propagation, 50 iterations",
    ]
    assert {row["method"] for row in rows} >= {"MLE-BP, damping 0.5", "MLE-BP, Frobenius 1", "MLE-MF"}
    unconditional = [row for row in rows if row["data"] == crbm_2017_ablations.UNCONDITIONAL]
    assert [row["method"] for row in unconditional] == ["CD-1", "MLE-BP"]
    # Of 784 pixels at half each, or better.
    for row in unconditional:
        assert -784 * np.log(2) - 1 < row["lower"] < 0
        # So few units are enumerated.
        assert row["lower"] == row["upper"]
        assert row["lower_error"] == row["upper_error"] == 0


@pytest.mark.slow
def test_classifiers_choose_on_the_training_part_alone(monkeypatch):
    generator = np.random.default_rng(0)
    features = generator.standard_normal((60, 2)).astype(np.float32)
    labels = (features > 0).astype(np.float32)
    labels[40:] = 1 - labels[40:]
    data = MultilabelData(
        name="signs",
        features=features,
        labels=labels,
        label_names=numbered("label", 2),
        feature_names=numbered("feature", 2),
        train=np.arange(40),
        test=np.arange(40, 60),
    )
    monkeypatch.setattr(crbm_classifier, "load", lambda name, folder: data)
    settings = {"penalties": [1e-9, 10.0], "num_hidden": [2], "seeds": [0, 1]}
    found = list(crbm_classifier.cells(sets=["signs"], folder="", **settings))
    names = [crbm_classifier.NETWORK, *crbm_classifier.MACHINES, crbm_classifier.MODES]
    assert [cell.method for cell in found] == names
    result = found[1].run()
    # The test part has the opposite labels, and had no say.
    assert result["C"] == 10.0
    assert result["cross_validated"] > 0.7
    mean, deviation = map(float, result["exact_match"].split(" ± "))
    assert mean < 0.3
    assert deviation < 0.3
    modes = found[-1].run(result)
    assert all(modes[name] == result[name] for name in ("C", "num_hidden", "scaling"))
