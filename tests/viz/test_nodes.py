"""The histogram counts every instance once."""

from __future__ import annotations

import io

import pytest
import torch

from lmbm_torch.viz.quality import node_histogram


@pytest.mark.parametrize("nodes", [[1], [1, 1, 1], [7, 8, 16, 4096], [3, 5, 1, 2**40]])
def test_every_instance_is_in_one_bar(nodes):
    figure = node_histogram(torch.tensor(nodes))
    assert sum(bar.get_height() for bar in figure.axes[0].patches) == len(nodes)
    figure.savefig(io.BytesIO(), format="png")


def test_bars_are_where_the_counts_are():
    bars = [bar for bar in node_histogram([9, 9, 100]).axes[0].patches if bar.get_height() > 0]
    places = [(bar.get_x(), bar.get_x() + bar.get_width(), bar.get_height()) for bar in bars]
    (low, high, twice), (left, right, once) = places
    assert low <= 9 < high
    assert left <= 100 < right
    assert (twice, once) == (2, 1)


def test_what_took_no_search_is_counted_in_the_title():
    axes = node_histogram([0, 9, 0]).axes[0]
    assert sum(bar.get_height() for bar in axes.patches) == 1
    assert axes.get_title() == "3 instances, 2 without a search, at most 9"
    assert "3 instances" in node_histogram([0, 0, 0]).axes[0].get_title()


@pytest.mark.parametrize("nodes", [[], [-1, 3]])
def test_refusals(nodes):
    with pytest.raises(ValueError, match="nodes"):
        node_histogram(torch.tensor(nodes, dtype=torch.int64))
