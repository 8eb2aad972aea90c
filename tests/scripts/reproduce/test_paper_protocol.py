"""The 2017 tables at the paper's protocol, on tiny images: order, choice, budgets, stops."""

from __future__ import annotations

import math
import time
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from rich.console import Console

from lmbm_torch.compare.tables import Result
from lmbm_torch.data.dataset import MultilabelData
from lmbm_torch.data.features import numbered
from lmbm_torch.energies import BipartiteEnergy
from reproduce import CONFIGURATION, cells, crbm_2017_paper, crbm_epochs, crbm_problems
from reproduce.crbm_epochs import Images, Steps
from reproduce.gradients import gradient

QUIET = Console(quiet=True)
NOISY, OCCLUDED = "noisy MNIST 10 %", "occluded MNIST 8x8"
TINY = {
    "hidden": 3,
    "epochs": 3,
    "contrastive_epochs": 4,
    "short_epochs": 1,
    "learning_rates": [0.05, 0.01],
    "batch_sizes": [6, 12],
    "device": "cpu",
}
TIME = {"seconds", "cpu_seconds", "budget"}


@pytest.fixture(scope="module")
def data():
    """Images of 4 × 4 with a dark half, of which every tenth pixel or so is flipped."""
    generator = np.random.default_rng(0)
    labels = np.kron(generator.integers(0, 2, (50, 4)), np.ones(4)).astype(np.float32)
    features = np.abs(labels - (generator.random(labels.shape) < 0.1)).astype(np.float32)
    names, rows = numbered("pixel", 16), np.split(np.arange(50), [30, 40])
    return MultilabelData("halves", features, labels, names, names, rows[0], rows[2], rows[1])


@pytest.fixture
def tiny(data, monkeypatch):
    monkeypatch.setattr(crbm_problems, "problem", lambda *_: data)


def protocol(**own: Any) -> dict[str, Any]:
    """The committed configuration, made tiny."""
    with initialize_config_dir(CONFIGURATION, version_base="1.3"):
        config = compose("reproduce", overrides=["table=crbm_2017_paper"])
    return {**OmegaConf.to_container(config.table.protocol, resolve=True), **TINY, **own}  # pyright: ignore[reportGeneralTypeIssues, reportCallIssue]


def group(*methods: str) -> list[dict[str, list[str]]]:
    return [{"tasks": [NOISY], "methods": [*methods]}]


def computed(settings: dict[str, Any], folder: Path, **options: Any) -> list[Result]:
    return cells.compute(crbm_2017_paper.cells("", settings), folder, QUIET, **options)


def untimed(value: Any) -> Any:
    """The same without times."""
    if isinstance(value, dict):
        return {key: untimed(each) for key, each in value.items() if key not in TIME}
    return [untimed(each) for each in value] if isinstance(value, list) else value


def test_the_order_of_the_cells_is_fixed_and_names_each_once():
    found = [cell.key for cell in crbm_2017_paper.cells("", protocol())]
    first = [(task, method) for method in ("MLE-BP", "LR", "CD-10", "MSSVM") for task in (NOISY, OCCLUDED)]
    assert found[:8] == first
    assert found[8:16] == [(task, f"{method}, centred") for task, method in first]
    assert len(found) == len({*found}) == 6 * 9 * 2
    after = {cell.key: cell.after for cell in crbm_2017_paper.cells("", protocol())}
    assert after[NOISY, "CD-1, centred"] == "MLE-BP, centred"
    assert after[NOISY, "MSSVM"] is None


@pytest.mark.slow
def test_a_run_stopped_after_each_epoch_ends_as_an_undisturbed_one(tiny, tmp_path, monkeypatch):
    # Each epoch takes a second of the processor.
    monkeypatch.setattr(time, "process_time", count().__next__)
    settings = protocol(groups=group("MLE-BP", "PCD-10"), warm_tol=1e-2)
    whole = computed(settings, tmp_path / "whole")
    stops = []

    def stop_every_second_time(_needed: float = 0.0) -> None:
        stops.append(len(stops))
        if len(stops) % 2 == 0:
            raise cells.OutOfTime

    monkeypatch.setattr(crbm_2017_paper, "check_time", stop_every_second_time)
    unfinished = []
    for _ in range(40):
        found = computed(settings, tmp_path / "stopped")
        unfinished += [result for result in found if result.get("unfinished")]
        if len(found) == 4 and not found[-1].get("unfinished"):
            break
    assert untimed(found) == untimed(whole)
    # PCD has the time of MLE-BP alone, in one sitting or several.
    assert [len(result["epochs"]) for result in found] == [3, 3, 3, 3]
    # A stopped cell shows the best epoch so far.
    assert {len(result["epochs"]) for result in unfinished} >= {1, 2}
    assert all(0 <= result["all"] <= 100 for result in unfinished)
    assert not [*(tmp_path / "stopped" / "states").iterdir()]


def test_a_penalty_shrinks_the_couplings_alone(data):
    images = Images.part(data, data.train, torch.device("cpu"))
    common = {"hidden": 3, "method": "cd", "num_steps": 1, "learning_rate": 0.1, "batch_size": 30}
    common |= {"is_centred": False, "seed": 0, "init_std": 0.5}
    plain, shrunk = Steps(images, **common), Steps(images, **common, penalty=2.0)
    first = plain.weights()["coupling"]
    for steps in (plain, shrunk):
        steps.epoch(0, 5)
    found, expected = shrunk.weights(), plain.weights()
    torch.testing.assert_close(found["coupling"], expected["coupling"] - 0.1 * 2.0 * first)
    assert all(torch.equal(found[name], expected[name]) for name in found if name != "coupling")


def test_short_runs_choose_the_rate_and_then_the_size(tiny, tmp_path):
    (found,) = computed(protocol(groups=group("LR")), tmp_path)[:1]
    tried = [(run["learning_rate"], run["batch_size"]) for run in found["runs"]]
    errors = {setting: run["validation"] for setting, run in zip(tried, found["runs"], strict=True)}
    better = min((0.05, 0.01), key=lambda rate: errors[rate, 6])
    assert tried == [(0.05, 6), (0.01, 6), (better, 12)]
    assert (found["learning_rate"], found["batch_size"]) == min(errors, key=errors.__getitem__)
    assert all(len(run["epochs"]) == 1 for run in found["runs"])
    assert len(found["epochs"]) == 3


def test_contrastive_methods_get_the_time_of_belief_propagation(tiny, data):
    settings = crbm_2017_paper.Protocol(**protocol(groups=group("MLE-BP", "CD-1")))
    learner = crbm_2017_paper._Learner(settings, "", NOISY, "CD-1")
    lengths = []
    for budget in (0.0, math.inf):
        run = crbm_2017_paper._Run(learner.steps(0.05, 6), settings, None)
        run.go_on(settings.contrastive_epochs, budget, lambda _: None)
        lengths.append(len(run.history))
    assert lengths == [1, 4]


def test_training_ends_without_a_better_validation_error_and_keeps_the_best(tiny):
    settings = crbm_2017_paper.Protocol(**protocol(groups=group("LR"), epochs=20, patience=2))
    learner = crbm_2017_paper._Learner(settings, "", NOISY, "LR")
    run = crbm_2017_paper._Run(learner.steps(0.05, 6), settings, None)
    run.go_on(20, math.inf, lambda _: None)
    errors = [epoch["validation"] for epoch in run.history]
    assert run.best["epoch"] == 1 + int(np.argmin(errors))
    assert len(errors) == run.best["epoch"] + 2 < 20
    last = run.steps.weights()
    # By many images, so that both models' errors differ.
    found = run.result(learner.train)["all"]
    by_weights = []
    for weights in (run.best["weights"], last):
        run.steps.load(weights, run.steps.hidden_mean, None)
        restored = run.steps.restored(learner.train, 7)
        by_weights.append(100 * crbm_epochs.error(restored, learner.train))
    assert found == by_weights[0] != by_weights[1]


@pytest.mark.parametrize("is_centred", [False, True])
def test_a_step_is_that_of_the_module(data, is_centred):
    """Of autograd's gradients, and those that the callback centres."""
    images = Images.part(data, data.train, torch.device("cpu"))
    options = {"hidden": 3, "method": "mle_bp", "num_steps": 1, "learning_rate": 0.5, "batch_size": 15}
    steps = Steps(images, **options, is_centred=is_centred, seed=1, init_std=0.5)
    before = {name: value.clone() for name, value in steps.weights().items()}
    steps.hidden_mean.fill_(0.3)
    rows = torch.arange(15)
    steps._step(rows, 7)
    features, labels = images.batch(rows)
    energy = BipartiteEnergy(
        features @ before["visible_weight"].mT + before["visible_bias"],
        features @ before["hidden_weight"].mT + before["hidden_bias"],
        before["coupling"],
    )
    found = gradient("mle_bp", energy, labels, num_iters=7)
    means = (steps.feature_mean, steps.hidden_mean.new_full((3,), 0.3), steps.label_mean)
    pixel, hidden, label = means if is_centred else [torch.zeros_like(mean) for mean in means]
    # The same steps in the centred parameters, whose biases hold the other units' means.
    coupling = (
        found.coupling - torch.outer(found.visible.sum(0), hidden) - torch.outer(label, found.hidden.sum(0))
    )
    visible_weight, hidden_weight = (by.mT @ (features - pixel) for by in (found.visible, found.hidden))
    expected = {
        "visible_weight": visible_weight,
        "hidden_weight": hidden_weight,
        "coupling": coupling,
        "visible_bias": found.visible.sum(0) - visible_weight @ pixel - coupling @ hidden,
        "hidden_bias": found.hidden.sum(0) - hidden_weight @ pixel - coupling.mT @ label,
    }
    for name, by in expected.items():
        moved = steps.model.get_parameter(name).detach()
        torch.testing.assert_close(moved, before[name] - 0.5 / 15 * by, rtol=1e-4, atol=1e-5)


def test_missing_cells_are_named(tiny, tmp_path):
    settings = protocol(groups=group("LR", "MSSVM"))
    results = computed(settings, tmp_path, time_limit=0.0)
    assert results == []
    said = crbm_2017_paper.note(results, settings)
    assert "0 of 4 cells are finished" in said
    assert f"Not begun, {NOISY}: LR, MSSVM, LR (centred), MSSVM (centred)." in said


@pytest.mark.parametrize("method", ["mle_bp", "mle_mf", "mssvm", "lssvm", "cd", "pcd"])
def test_the_steps_of_a_graph_are_the_same(data, method, monkeypatch):
    """One by one here: those that a device repeats, which may ask nothing."""
    images = Images.part(data, data.train, torch.device("cpu"))
    options = {"hidden": 3, "method": method, "num_steps": 2, "learning_rate": 0.5, "batch_size": 15}
    steps, graphed = (Steps(images, **options, is_centred=True, seed=1, init_std=0.5) for _ in range(2))
    order = torch.randperm(30, generator=torch.Generator().manual_seed(4)).view(2, 15)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(crbm_epochs, "_captured", lambda step, dry_run: dry_run() and None)
    with torch.no_grad():
        graphed._replay(order, 6, seed=8)
        torch.manual_seed(8)
        for rows in order:
            steps._step(rows, 6)
    for name, value in steps.weights().items():
        torch.testing.assert_close(graphed.weights()[name], value)
    assert graphed.converged == steps.converged


WARM = {"hidden": 3, "num_steps": 1, "learning_rate": 0.5, "batch_size": 14, "is_centred": True, "seed": 1}


@pytest.mark.parametrize("method", ["mle_bp", "mle_mf", "mssvm", "lssvm"])
def test_warm_epochs_go_on_from_a_state(data, method):
    images = Images.part(data, data.train, torch.device("cpu"))
    whole, first, second = (
        Steps(images, method=method, **WARM, init_std=0.5, warm_tol=1e-2) for _ in range(3)
    )
    for number in range(3):
        whole.epoch(number, 7)
    first.epoch(0, 7)
    state = first.state()
    # Two of thirty images are in no whole batch.
    assert state["beliefs"].isnan().any(1).sum() == 2
    first.epoch(1, 7)
    second.load(**state)
    for number in (1, 2):
        second.epoch(number, 7)
    for name, value in whole.weights().items():
        assert torch.equal(second.weights()[name], value)
    assert not torch.equal(first.weights()["coupling"], second.weights()["coupling"])


def test_warm_epochs_learn_from_the_same_fixed_points(data):
    images = Images.part(data, data.train, torch.device("cpu"))
    options = {"method": "mle_bp", **WARM, "init_std": 0.5, "tol": 1e-5}
    cold, warm, hurried = (Steps(images, **options, warm_tol=tol) for tol in (None, 1e-5, 1e9))
    assert cold.beliefs is None
    for number in range(3):
        for steps in (cold, warm, hurried):
            assert steps.epoch(number, 300) == 1
    torch.testing.assert_close(warm.weights()["coupling"], cold.weights()["coupling"], rtol=0, atol=1e-4)
    # One iteration from the beliefs before is nearer than nothing, and no fixed point.
    off = (hurried.weights()["coupling"] - cold.weights()["coupling"]).abs().amax()
    assert 2e-4 < off < 0.05


def test_warm_epochs_start_from_the_beliefs_before(data, monkeypatch):
    images = Images.part(data, data.train, torch.device("cpu"))
    given = []

    def recorded(*arguments, **options):
        given.append((options["tol"], options.get("init")))
        return gradient(*arguments, **options)

    monkeypatch.setattr(crbm_epochs, "gradient", recorded)
    steps = Steps(images, method="mle_bp", **WARM, init_std=0.5, warm_tol=0.1)
    steps.epoch(0, 7)
    assert given == [(1e-3, None)] * 2
    before = steps.state()["beliefs"].float()
    steps.epoch(1, 7)
    assert [tol for tol, _ in given[2:]] == [0.1, 0.1]
    starts = torch.cat([init for _, init in given[2:]])
    assert sum((row == before).all(1).any() for row in starts) >= len(starts) - 2


def test_warm_epochs_are_for_the_cpu(data):
    images = Images.part(data, data.train, torch.device("meta"))
    with pytest.raises(ValueError, match="warm_tol"):
        Steps(images, method="mle_bp", **WARM, init_std=0.5, warm_tol=1e-2)


def test_chains_take_an_eighth_of_their_bytes():
    chains = torch.bernoulli(torch.full((5, 19), 0.5)).byte()
    packed = crbm_epochs._packed(chains)
    assert packed.shape == (5, 3)
    assert torch.equal(crbm_epochs._unpacked(packed, 19), chains)
