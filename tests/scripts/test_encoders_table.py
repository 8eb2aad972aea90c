"""The table of encoders trains experiments as they are; convolutions beat pixels even when cut short."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

ROOT = Path(__file__).parents[2]


@pytest.fixture
def table(monkeypatch):
    """scripts/reproductions/encoders.py, where Hydra is set up as reproduce.py does."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        yield import_module("reproductions.encoders")


def test_every_row_can_be_composed(table):
    settings = OmegaConf.to_container(compose("reproduce", ["table=encoders"]).table)
    rows = [rows for problem in settings["problems"].values() for rows in problem.values()]
    assert len(rows) == len(list(table.cells(**settings)))
    for overrides in rows:
        assert f"experiment={compose('train', overrides).name}" in overrides


def test_convolutions_read_segments_better_than_pixels(table):
    pixels = table.measure(["experiment=seven_segment_crbm", "trainer.max_epochs=3"], [0])
    shorter = ["experiment=seven_segment_conv", "trainer.max_epochs=6"]
    convolutions = table.measure(shorter, [0, 1])
    assert convolutions["exact_match"] > 0.7 > pixels["exact_match"]
    assert convolutions["weights"] == 32 * 10 + 64 * (9 * 32 + 1) + 7 * 257 + 49
    assert convolutions["seeds"] == 2
    assert convolutions["exact_match_deviation"] < 0.2
    assert "exact_match_deviation" not in pixels


def test_convolutions_in_front_of_hidden_units_are_trained(table):
    short = ["experiment=seven_segment_crbm_conv", "trainer.max_epochs=2"]
    assert table.measure(short, [0])["hamming_loss"] < 0.15
