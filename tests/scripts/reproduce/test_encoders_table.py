"""The table of encoders trains experiments as they are; convolutions beat pixels even when cut short."""

from __future__ import annotations

from functools import partial
from importlib import import_module

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

import reproduce
from lmbm_torch.cli.configuration import CONFIGURATION


@pytest.fixture
def table():
    """The table's module."""
    return import_module("reproduce.encoders")


def test_every_row_can_be_composed(table):
    with initialize_config_dir(reproduce.CONFIGURATION, version_base="1.3"):
        settings = OmegaConf.to_container(compose("reproduce", ["table=encoders"]).table)
    cells = list(table.cells(**settings))
    assert {cell.data for cell in cells} == {*settings["problems"]} >= {*settings["budgets"]}
    for cell in cells:
        overrides = cell.run.args[0]
        with initialize_config_dir(CONFIGURATION, version_base="1.3"):
            assert f"experiment={compose('train', overrides).name}" in overrides
        assert {*settings["budgets"].get(cell.data, ())} <= {*overrides}


def test_readers_see_percentages_with_their_deviations(table):
    found = {"exact_match": 0.9, "exact_match_deviation": 0.0123, "weights": 7}
    found |= {"hamming_loss": 0.0178, "hamming_loss_deviation": 0.0}
    assert table.summary([found]) == [{**found, "right": "90.00 ± 1.23", "wrong": "1.78 ± 0.00"}]


def test_only_scores_see_the_labels_of_the_test_part(table, monkeypatch):
    build, learned, found = table.build, [], []

    def built(config, poisoned):
        trainer, module, served = build(config)
        learned.append(module.model)
        if poisoned:
            served.test_set.labels.neg_().add_(1)
        return trainer, module, served

    short = ["experiment=seven_segment_mlp", "trainer.max_epochs=2"]
    for poisoned in (False, True):
        monkeypatch.setattr(table, "build", partial(built, poisoned=poisoned))
        found.append(table.measure(short, [0]))
    clean, dirty = found
    assert dirty["hamming_loss"] == pytest.approx(1 - clean["hamming_loss"])
    for weight, other in zip(*(model.parameters() for model in learned), strict=True):
        assert weight.equal(other)


@pytest.mark.slow
def test_convolutions_read_segments_better_than_pixels(table):
    pixels = table.measure(["experiment=seven_segment_crbm", "trainer.max_epochs=3"], [0])
    shorter = ["experiment=seven_segment_conv", "trainer.max_epochs=6"]
    convolutions = table.measure(shorter, [0, 1])
    assert convolutions["exact_match"] > 0.7 > pixels["exact_match"]
    assert convolutions["weights"] == 32 * 10 + 64 * (9 * 32 + 1) + 7 * 257 + 49
    assert convolutions["seeds"] == 2
    assert convolutions["exact_match_deviation"] < 0.2
    assert "exact_match_deviation" not in pixels


@pytest.mark.slow
def test_convolutions_in_front_of_hidden_units_are_trained(table):
    short = ["experiment=seven_segment_crbm_conv", "trainer.max_epochs=2"]
    assert table.measure(short, [0])["hamming_loss"] < 0.15


@pytest.mark.slow
@pytest.mark.data
def test_convolutions_read_and_restore_mnist_better_than_pixels(table, data_folder):
    """Trained for a few batches each."""
    place = f"paths.data={data_folder}"
    parts = [f"data.data.images.{part}={count}" for part, count in (("validation", 20), ("test", 500))]
    few = [place, *parts, "data.data.images.train=1000", "trainer.max_epochs=2", "data.batch_size=20"]
    pixels = table.measure([*few, "experiment=mnist_lmsbn", "training.tol=0.1"], [0])
    convolutions = table.measure([*few, "experiment=mnist_conv_lmsbn"], [0])
    assert convolutions["exact_match"] > pixels["exact_match"]
    few.append("model.num_hidden=8")
    pixels = table.measure([*few, "experiment=noisy_mnist_mle_bp"], [0])
    convolutions = table.measure([*few, "experiment=noisy_mnist_conv_mle_bp"], [0])
    assert convolutions["hamming_loss"] < 0.05 < pixels["hamming_loss"]
    assert convolutions["weights"] == 160 + 16 * 145 + 145 + 784 * (1 + 2 * 8) + 8
