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
        nodes: nodes visited for each instance, at least one.

    Raises:
        ValueError: no instance, or counts below one.
    """
    counts = torch.as_tensor(nodes).cpu().double().numpy()
    check_shape("nodes", counts, None)
    if counts.min() < 1:
        raise ValueError(f"nodes: expected at least 1 for every instance, got {counts.min():g}")
    octaves = np.log2(counts.max()) + 1 / BINS_PER_OCTAVE
    edges = 2.0 ** (np.arange(np.ceil(octaves * BINS_PER_OCTAVE) + 1) / BINS_PER_OCTAVE)

    figure, axes = one_frame(6.0, 3.5)
    axes.hist(counts, bins=edges.tolist(), color=COLOURS[0], edgecolor="white")
    axes.axvline(float(np.median(counts)), color=COLOURS[1], label=f"median {np.median(counts):g}")
    axes.set_xscale("log", base=2)
    axes.set(
        xlabel="nodes visited", ylabel="instances", title=f"{len(counts)} instances, at most {counts.max():g}"
    )
    axes.legend(frameon=False)
    return figure
