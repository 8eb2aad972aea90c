"""What a run shows in TensorBoard, and nothing twice."""

from __future__ import annotations

import pytest
import torch
from lightning.pytorch.loggers import TensorBoardLogger
from problems.small import dual_module, network, quiet_trainer, served, small_data, stop_at
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lmbm_torch.inference.enumeration import exact
from lmbm_torch.inference.search import beam_search
from lmbm_torch.training.callbacks.display import DependencyHeatmap, ProgressBar, VisitedNodes


@pytest.fixture
def logged(tmp_path):
    """Fit and test, then read what was logged."""

    def run(module):
        logger = TensorBoardLogger(tmp_path, name="", version="log", default_hp_metric=False)
        callbacks = (stop_at(1e-3), DependencyHeatmap(), VisitedNodes())
        trainer = quiet_trainer(tmp_path, 500, *callbacks, logger=logger)
        data = served(small_data(), batch_size=7, validation_fraction=0.25)
        trainer.fit(module, datamodule=data)
        trainer.test(module, datamodule=data, verbose=False)
        events = EventAccumulator(str(tmp_path / "log"), size_guidance={"scalars": 0, "histograms": 0})
        events.Reload()
        return trainer, events

    return run


def test_figures_histograms_and_grouped_scalars_are_logged(logged):
    trainer, events = logged(dual_module())
    tags = events.Tags()
    assert set(tags["images"]) == {"fit/dependencies", "test/nodes_per_instance"}
    assert set(tags["histograms"]) == {"val/nodes", "test/nodes"}
    assert {tag.split("/")[0] for tag in tags["scalars"] if tag != "epoch"} == {"train", "fit", "val", "test"}
    assert len(events.Scalars("train/gap")) == trainer.current_epoch
    # One histogram an epoch; the batches before the first epoch, run as a check, leave none.
    assert len(events.Histograms("val/nodes")) == trainer.current_epoch
    assert all(event.histogram_value.num == 15 for event in events.Histograms("val/nodes"))
    (test,) = events.Histograms("test/nodes")
    assert test.histogram_value.num == 20
    mean = test.histogram_value.sum / 20
    assert events.Scalars("test/mean_nodes")[0].value == pytest.approx(mean)
    assert events.Images("fit/dependencies")[0].encoded_image_string.startswith(b"\x89PNG")


def test_independent_labels_and_decoders_without_search_are_logged_too(logged):
    _, events = logged(dual_module(network(degree=1), decoder=exact.decode_hinge))
    tags = events.Tags()
    assert (tags["images"], tags["histograms"]) == (["fit/dependencies"], [])
    assert "test/mean_nodes" not in tags["scalars"]
    assert "test/proven_optimal" in tags["scalars"]


def test_another_decoder_is_used(logged):
    calls = []

    def greedy(energy):
        calls.append(energy.batch_size)
        return beam_search.decode_hinge(energy)

    trainer, _ = logged(dual_module(decoder=greedy))
    assert calls[-3:] == [7, 7, 6]
    assert torch.isfinite(trainer.callback_metrics["test/exact_match"])


def test_the_progress_bar_shows_no_version(tmp_path):
    logger = TensorBoardLogger(tmp_path, name="", version="log", default_hp_metric=False)
    trainer = quiet_trainer(tmp_path, 1, logger=logger)
    module = dual_module()
    trainer.fit(module, datamodule=served(small_data()))
    assert set(ProgressBar().get_metrics(trainer, module)) == {"train/objective", "train/dual", "train/gap"}
