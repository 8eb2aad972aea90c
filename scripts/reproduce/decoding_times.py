"""Figure 3 of lmbm_and_lmsbn_2010: what exact decoding costs as labels are added.

A linear network is trained on some of the documents, with the labels that occur most, and decodes the test
part with the cutoff S: solved within S are the documents whose best labelling costs less than S right
branches, which is certified. Theorem 9 promises a share of 1 − E[loss] / (S γ) of them. Time is told for one
S and more and more labels, of the processor, so that other work on the machine does not count; the share for
all labels and more and more S.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from lmbm_torch.compare.tables import write_csv
from lmbm_torch.data import MultilabelData
from lmbm_torch.energies import DirectedEnergy
from lmbm_torch.estimators import LMSBNClassifier
from lmbm_torch.files import write_figure
from lmbm_torch.inference.search import branch_and_bound
from lmbm_torch.viz.style import COLOURS, open_frame
from reproduce.cells import Cell

NUM_LABELS = (10, 20, 40, 60, 80, 101)
NUM_INSTANCES = (10, 100, 1000, 3000)
CUTOFF = 4
"""S of the times."""
CUTOFFS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""S of the shares."""
PENALTY = 1.0
# Ends searches that would take seconds; a document that meets it counts as not solved.
NODE_LIMIT = 100_000
# Documents of the test part that are decoded, and how many of them are timed one by one.
TESTED, TIMED = 1000, 200


def decoding_cells(data: MultilabelData) -> Iterator[Cell]:
    """Yield a cell for each number of labels and of training instances."""
    for instances in NUM_INSTANCES:
        for labels in NUM_LABELS:
            method = f"{labels} labels, {instances} instances"
            yield Cell(data.name, method, partial(timed, data, labels, instances))
    for instances in NUM_INSTANCES:
        method = f"{data.num_labels} labels, {instances} instances, any S"
        yield Cell(data.name, method, partial(shares, data, instances))


def timed(data: MultilabelData, num_labels: int, num_instances: int) -> dict[str, Any]:
    """Decode the test part with one cutoff, and some of its documents one by one."""
    network, energy, mean_loss, seconds = trained(data, num_labels, num_instances)
    search = partial(
        branch_and_bound.decode_hinge, margin=network.margin, cutoff=float(CUTOFF), node_limit=NODE_LIMIT
    )
    found, milliseconds = search(energy), []
    for row in range(TIMED):
        document = energy.select(slice(row, row + 1))
        started = time.process_time()
        search(document)
        milliseconds.append(1e3 * (time.process_time() - started))
    return {
        "labels": num_labels,
        "instances": num_instances,
        "fit_seconds": seconds,
        "median_ms": float(np.median(milliseconds)),
        "p95_ms": float(np.quantile(milliseconds, 0.95)),
        "median_nodes": float(np.median(np.asarray(found.nodes))),
        "within": float(found.status.exact.double().mean()),
        "promised": promised(mean_loss, CUTOFF, network.margin),
    }


def shares(data: MultilabelData, num_instances: int) -> dict[str, Any]:
    """Decode the test part with all labels, with every cutoff and with none."""
    network, energy, mean_loss, _ = trained(data, data.num_labels, num_instances)

    def solved(cutoff: float | None) -> float:
        found = branch_and_bound.decode_hinge(energy, network.margin, cutoff=cutoff, node_limit=NODE_LIMIT)
        return float(found.status.exact.double().mean())

    return {
        "labels": data.num_labels,
        "instances": num_instances,
        "mean_loss": mean_loss,
        "proven": solved(None),
        "_curve": [(S, solved(float(S)), promised(mean_loss, S, network.margin)) for S in CUTOFFS],
    }


def trained(
    data: MultilabelData, num_labels: int, num_instances: int
) -> tuple[LMSBNClassifier, DirectedEnergy, float, float]:
    """Return a network of the commonest labels, its energy and mean test loss, and its training time."""
    commonest = np.argsort(-data.labels[data.train].sum(0), kind="stable")[:num_labels]
    train, test = data.train[:num_instances], data.test[:TESTED]
    labels = data.labels[:, commonest]
    truth = torch.from_numpy(labels[test])
    network = LMSBNClassifier(PENALTY, random_state=0)
    started = time.perf_counter()
    network.fit(data.features[train], labels[train])
    seconds = time.perf_counter() - started
    energy = network.energy(data.features[test])
    losses = (network.margin - energy.local_margins(truth)).clamp(min=0).sum(1)
    return network, energy, float(losses.mean()), seconds


def promised(mean_loss: float, cutoff: float, margin: float) -> float:
    """Return the share of Theorem 9."""
    return max(0.0, 1 - mean_loss / (cutoff * margin))


def draw_decoding(results: list[dict[str, Any]], folder: Path) -> None:
    """Plot Figure 3, time over labels and solved shares over S, and write its points as a table."""
    if not any("_curve" in result for result in results):
        return
    figure = Figure(figsize=(6.0, 7.0), layout="constrained")
    above, below = figure.subplots(2)
    rows = []
    for instances, colour in zip(NUM_INSTANCES, COLOURS, strict=False):
        own = [result for result in results if result.get("instances") == instances]
        times = [(result["labels"], result["median_ms"]) for result in own if "median_ms" in result]
        above.plot(*np.array(times).T, marker="o", color=colour, label=f"trained on {instances}")
        curve = np.array([point for result in own for point in result.get("_curve", ())])
        below.plot(*curve[:, :2].T, marker="o", color=colour, label=f"trained on {instances}")
        below.plot(*curve[:, ::2].T, "--", color=colour)
        rows += [(instances, int(S), *values) for S, *values in curve.tolist()]
    below.plot([], [], "k--", label="bounds (Theorem 9)")
    above.set(xlabel="labels", ylabel=f"milliseconds a document, S = {CUTOFF}", ylim=(0, None))
    ticks = [S for S in CUTOFFS if S.bit_count() == 1]
    below.set(xscale="log", xlabel="S", ylabel="share solved within S")
    below.set_xticks(ticks, map(str, ticks))
    below.minorticks_off()
    for axes in (above, below):
        open_frame(axes)
        axes.legend(frameon=False, fontsize=8)
    write_figure(folder / "decoding.png", figure)
    columns = ("instances", "S", "solved_within", "promised")
    write_csv(folder / "decoding.csv", [dict(zip(columns, row, strict=True)) for row in rows])
