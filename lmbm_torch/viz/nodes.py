"""Histograms of search nodes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from lmbm_torch.checks import check_shape
from lmbm_torch.shapes import Int
from lmbm_torch.viz.style import COLOURS, one_frame

BINS_PER_OCTAVE = 2


def node_histogram(
    nodes: Int[Tensor, " instances"] | Int[np.ndarray, " instances"] | Sequence[int],
) -> Figure:
    """A histogram of search nodes per instance, on a logarithmic axis since the work grows exponentially.

    Args:
        nodes: visited for each instance; 0, where rules decide without a search, is counted in the title.

    Raises:
        ValueError: no instance, or counts below zero.
    """
    counts = torch.as_tensor(nodes, device="cpu").double().numpy()
    check_shape("nodes", counts, None)
    if counts.min() < 0:
        raise ValueError(f"nodes: expected at least 0 for every instance, got {counts.min():g}")
    idle = int((counts == 0).sum())
    octaves = np.log2(max(counts.max(), 1)) + 1 / BINS_PER_OCTAVE
    edges = 2.0 ** (np.arange(np.ceil(octaves * BINS_PER_OCTAVE) + 1) / BINS_PER_OCTAVE)

    figure, axes = one_frame(6.0, 3.5)
    axes.hist(counts[counts > 0], bins=edges.tolist(), color=COLOURS[0], edgecolor="white")
    axes.axvline(float(np.median(counts)), color=COLOURS[1], label=f"median {np.median(counts):g}")
    axes.set_xscale("log", base=2)
    without = f", {idle} without a search" if idle else ""
    title = f"{len(counts)} instances{without}, at most {counts.max():g}"
    axes.set(xlabel="nodes visited", ylabel="instances", title=title)
    axes.legend(frameon=False)
    return figure
