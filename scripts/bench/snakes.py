"""Snakes: labels of grid cells that no cell knows alone, by a graph with directed edge features.

    python scripts/bench/snakes.py

trains :class:`lmbm_torch.estimators.GraphClassifier` on the 200 training snakes in the folder that
``LMBM_DATA`` names (Nowozin et al., Decision tree fields, 2011), and predicts the other 100: nodes alone,
pairs of cells by direction, and pairs by direction with the colours around both cells. Columns: the share of
right cells, the share of right cells among the snakes' own, the share of snakes wholly right, and the CPU and
wall seconds of the fit.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from measuring import described, show, told, write_csv

from lmbm_torch.data.named import data_folder
from lmbm_torch.estimators import GraphClassifier

COLOURS = np.array([[0, 0, 255], [0, 255, 0], [0, 255, 255], [255, 0, 0], [255, 255, 0]])


def around(image: np.ndarray) -> np.ndarray:
    """The colours of the 3 × 3 cells around each cell, one of six each (none beyond the border)."""
    height, width = image.shape[:2]
    colour = (image[:, :, None] == COLOURS).all(-1)
    padded = np.zeros((height + 2, width + 2, 6))
    padded[..., 5] = 1
    padded[1:-1, 1:-1] = np.concatenate([colour, np.zeros((height, width, 1))], -1)
    windows = [padded[r : r + height, c : c + width] for r in range(3) for c in range(3)]
    return np.concatenate(windows, -1).reshape(height * width, -1)


def graph(image: np.ndarray, of_pairs: str) -> tuple[np.ndarray, ...]:
    """Node features, edges to the right and down, and features of edges by direction."""
    features = around(image)
    cells = np.arange(image.shape[0] * image.shape[1]).reshape(image.shape[:2])
    right = np.stack([cells[:, :-1].ravel(), cells[:, 1:].ravel()], 1)
    down = np.stack([cells[:-1].ravel(), cells[1:].ravel()], 1)
    edges = np.concatenate([right, down])
    if of_pairs == "none":
        return features, edges[:0], np.zeros((0, 1))
    is_down = np.repeat([0.0, 1.0], [len(right), len(down)])[:, None]
    own = np.ones((len(edges), 1))
    if of_pairs == "colours":
        own = np.concatenate([own, features[edges[:, 0]], features[edges[:, 1]]], 1)
    return features, edges, np.concatenate([own * (1 - is_down), own * is_down], 1)


def main() -> None:
    parser = described(__file__, __doc__)
    parser.add_argument("--penalty", type=float, default=0.1, help="C, the weight of the losses")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    data = np.load(data_folder() / "snakes" / "snakes.npz")
    parts = {}
    for name in ("train", "test"):
        shapes = data[f"shape_{name}"]
        grids = zip(data[f"x_{name}"], data[f"y_{name}"], shapes, strict=True)
        parts[name] = [(x[:h, :w].astype(int), y[:h, :w].ravel()) for x, y, (h, w) in grids]
    rows = []
    for of_pairs in ("none", "directions", "colours"):
        inputs = {name: [graph(x, of_pairs) for x, _ in part] for name, part in parts.items()}
        truths = {name: [y for _, y in part] for name, part in parts.items()}
        began, cpu = time.perf_counter(), time.process_time()
        model = GraphClassifier(
            arguments.penalty, edge_features=True, directed=True, tol=0.03, max_iter=10, random_state=0
        )
        model.fit(inputs["train"], truths["train"])
        row: dict[str, Any] = {"pairs": of_pairs, "fit_wall_seconds": time.perf_counter() - began}
        row["fit_cpu_seconds"] = time.process_time() - cpu
        found = model.predict(inputs["test"])
        right = [one == other for one, other in zip(found, truths["test"], strict=True)]
        is_snake = np.concatenate(truths["test"]) > 0
        row["cells"] = float(np.concatenate(right).mean())
        row["snake_cells"] = float(np.concatenate(right)[is_snake].mean())
        row["whole_snakes"] = float(np.mean([each.all() for each in right]))
        row |= {"gap": model.duality_gap_, "passes": model.n_iter_}
        rows.append(told(row))
    show(rows, "snakes")
    write_csv(arguments.output / "table.csv", rows)


if __name__ == "__main__":
    main()
