"""Figure 3 of belief_propagation_in_crbms_2017: errors by the size of the occlusion, up to the whole image.

The cells are those of ``crbm_2017_paper`` with plain steps, at the rate and the batch size of the settings,
from fewer images and for fewer epochs. An occlusion of 28 × 28 leaves nothing to condition on: the models are
machines of labels alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from lmbm_torch.compare.tables import Result
from lmbm_torch.files import write_figure
from reproduce import crbm_2017_paper
from reproduce.cells import Cell

COLUMNS = {
    "all": "all pixels, %",
    "changed": "changed pixels, %",
    "best": "best epoch",
    "ran": "epochs",
    "minutes": "minutes of the clock",
}


def cells(
    folder: str, sizes: Sequence[int], methods: Sequence[str], protocol: Mapping[str, Any]
) -> Iterator[Cell]:
    """Yield a cell for each size and method."""
    settings = crbm_2017_paper.Protocol(groups=(), **protocol)
    for size in sizes:
        task = f"occluded MNIST {size}x{size}"
        for method in methods:
            train = partial(crbm_2017_paper.cell, settings, folder, task, method)
            yield Cell(task, method, train, resumable=True)


summary = crbm_2017_paper.summary


def draw(results: Sequence[Result], folder: Path) -> None:
    """Plot the errors of each method by the side of the occlusion."""
    from reproduce.figures import error_curves

    lines: dict[str, dict[float, float]] = {}
    for result in results:
        if "all" in result:
            size = float(result["data"].rpartition("x")[2])
            lines.setdefault(result["method"], {})[size] = result["all"]
    if lines:
        figure = error_curves(lines, x_label="side of the occlusion", y_label="wrong pixels (%)")
        write_figure(folder / "figure_3.png", figure, dpi=150)
