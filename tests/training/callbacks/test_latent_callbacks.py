"""What training restricted Boltzmann machines leaves in TensorBoard, and the schedule of iterations."""

from __future__ import annotations

import numpy as np
import pytest
from lightning.pytorch.loggers import TensorBoardLogger
from problems.latent import latent_module
from problems.small import quiet_trainer, served
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.nn import Identity

from lmbm_torch.data.corruptions import Flip
from lmbm_torch.data.images import BinaryImages, restoration
from lmbm_torch.metrics.classes import changed_pixel_error
from lmbm_torch.models import ConditionalRBM
from lmbm_torch.training.callbacks.latent import (
    ChangedPixels,
    IterationSchedule,
    MessageConvergence,
    RestoredImages,
    WeightFilters,
)


def tiny_images():
    """Bars of two columns in images of 4 × 4."""
    generator = np.random.default_rng(0)
    pixels = np.zeros((60, 4, 4), np.uint8)
    for image, place in zip(pixels, generator.integers(0, 3, 60), strict=True):
        image[:, place : place + 2] = 1
    parts = np.split(np.arange(60), [30, 45])
    return restoration(BinaryImages("bars", pixels, *parts), Flip(0.1))


@pytest.fixture
def logged(tmp_path):
    """A module fitted and tested on bars, its trainer, and what was logged."""
    module = latent_module(model=ConditionalRBM(16, 16, 6, encoder=Identity(), init_std=0.1).double())
    trainer = quiet_trainer(
        tmp_path,
        4,
        IterationSchedule(3),
        MessageConvergence(),
        ChangedPixels(),
        RestoredImages(4, 4, count=3),
        WeightFilters(4, 4, count=5),
        logger=TensorBoardLogger(tmp_path, name="", version="log", default_hp_metric=False),
    )
    data = served(tiny_images(), 10)
    trainer.fit(module, datamodule=data)
    scores = trainer.test(module, datamodule=data, verbose=False)[0]
    events = EventAccumulator(str(tmp_path / "log"), size_guidance={"scalars": 0, "histograms": 0})
    events.Reload()
    return module, scores, events


def test_images_filters_and_convergence_are_logged(logged):
    module, _, events = logged
    assert set(events.Tags()["images"]) == {"val/images", "fit/filters"}
    histograms = events.Histograms("train/iterations")
    assert [histogram.histogram_value.num for histogram in histograms] == [30] * 4
    # One more iteration is allowed in every epoch, whether or not it is needed.
    most = [histogram.histogram_value.max for histogram in histograms]
    assert most[0] == 3
    assert all(count <= 3 + epoch for epoch, count in enumerate(most))
    shares = [event.value for event in events.Scalars("train/converged")]
    assert len(shares) == 4
    assert all(0 <= share <= 1 for share in shares)
    assert len(events.Scalars("val/changed_pixel_error")) == 4
    assert module.inference.num_iters == 6


def test_changed_pixels_are_counted_as_the_metric_does(logged):
    module, scores, _ = logged
    data = served(tiny_images())
    features = data.test_set[0].features.new_tensor(data.test_set.features)
    labels = data.test_set.labels
    decoding = module.inference.decode(module.model(features))
    expected = changed_pixel_error(decoding.labels, labels.long(), features.long())
    assert scores["test/changed_pixel_error"] == pytest.approx(expected.item())


@pytest.mark.parametrize("make", [IterationSchedule, RestoredImages, WeightFilters])
def test_counts_below_one_are_refused(make):
    with pytest.raises(ValueError, match=r"first|height"):
        make(0)
