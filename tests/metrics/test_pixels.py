from __future__ import annotations

import pytest
import torch

from lmbm_torch.metrics.classes import ChangedPixelError, changed_pixel_error


def test_only_changed_pixels_count():
    target = torch.tensor([[0, 1, 1, 0], [1, 1, 0, 0]])
    corrupted = torch.tensor([[1, 1, 0, 0], [1, 0, 0, 0]])
    preds = torch.tensor([[1, 0, 1, 0], [1, 1, 1, 0]])
    assert changed_pixel_error(preds, target, corrupted) == pytest.approx(1 / 3)


def test_batches_add_up():
    generator = torch.Generator().manual_seed(0)
    preds, target, corrupted = torch.randint(2, (3, 60, 9), generator=generator)
    metric = ChangedPixelError()
    for rows in torch.arange(60).split(25):
        metric.update(preds[rows], target[rows].float(), corrupted[rows])
    assert metric.compute() == changed_pixel_error(preds, target, corrupted)


def test_nothing_changed_is_no_number_and_strange_input_refused():
    labels = torch.ones(2, 3)
    assert changed_pixel_error(labels, labels, labels).isnan()
    with pytest.raises(ValueError, match="corrupted"):
        changed_pixel_error(labels, labels, labels[:1])
    with pytest.raises(ValueError, match="expected 0 or 1"):
        changed_pixel_error(labels, labels, labels / 2)
