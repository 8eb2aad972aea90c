"""Every image and every filter is shown where it belongs."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lmbm_torch.viz.images import image_grid, image_rows, weight_filters


def test_rows_hold_their_images():
    clean = torch.randint(2, (3, 4, 5), generator=torch.Generator().manual_seed(0))
    rows = {"clean": clean, "predicted": 1 - clean.double()}
    figure = image_rows(rows)
    assert len(figure.axes) == 6
    for axes, image in zip(figure.axes, [*clean, *(1 - clean)], strict=True):
        assert np.array_equal(np.asarray(axes.images[0].get_array()), image.numpy())
        assert axes.images[0].get_clim() == (0, 1)
    assert [figure.axes[0].get_ylabel(), figure.axes[3].get_ylabel()] == ["clean", "predicted"]


def test_filters_lie_side_by_side_on_one_scale():
    filters = torch.arange(5 * 6.0).reshape(5, 2, 3) - 20
    shown = weight_filters(filters).axes[0].images[0]
    assert shown.get_clim() == (-20, 20)
    red, _, blue, _ = shown.cmap(0.9)
    assert red > blue
    sheet = np.ma.filled(np.ma.asarray(shown.get_array()), np.nan)
    assert sheet.shape == (5, 11)
    assert np.array_equal(sheet[:2, 4:7], filters[1].numpy())
    assert np.array_equal(sheet[3:5, 0:3], filters[3].numpy())
    assert np.isnan(sheet[3:5, 8:]).all()


def test_a_grid_holds_its_images_line_by_line():
    images = torch.arange(5 * 6.0).reshape(5, 2, 3) / 30
    shown = image_grid(images).axes[0].images[0]
    assert shown.get_clim() == (0, 1)
    sheet = np.ma.filled(np.ma.asarray(shown.get_array()), np.nan)
    assert sheet.shape == (5, 11)
    for number, (top, left) in enumerate(((0, 0), (0, 4), (0, 8), (3, 0), (3, 4))):
        assert np.array_equal(sheet[top : top + 2, left : left + 3], images[number].numpy())
    assert np.isnan(sheet[2]).all()


def test_refusals():
    with pytest.raises(ValueError, match="images: expected shape"):
        image_grid(torch.zeros(2, 3))
    with pytest.raises(ValueError, match="rows"):
        image_rows({})
    with pytest.raises(ValueError, match="predicted: expected shape"):
        image_rows({"clean": torch.zeros(2, 3, 3), "predicted": torch.zeros(1, 3, 3)})
    with pytest.raises(ValueError, match="rows: expected shape"):
        image_rows({"clean": torch.zeros(0, 3, 3)})
    with pytest.raises(ValueError, match="filters"):
        weight_filters(torch.zeros(0, 2, 2))
