"""Figure 3 of lmbm_and_lmsbn_2010: what exact decoding costs as labels are added.

A linear network is trained on some of the documents, with the labels that occur most, and decodes the test
part with the cutoff S: solved within S are the documents whose best labelling costs less than S right
branches, which is certified. Theorem 9 promises a share of 1 − E[loss] / (S γ) of them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from reproductions.cells import Cell

from lmbm_torch.data import MultilabelData
from lmbm_torch.estimators import LMSBNClassifier
from lmbm_torch.inference import branch_and_bound

NUM_LABELS = (10, 20, 40, 60, 80, 101)
NUM_INSTANCES = (10, 100, 1000, 3000)
CUTOFF = 4
"""S."""
PENALTY = 1.0
# Ends searches that would take seconds; a document that meets it counts as not solved.
NODE_LIMIT = 100_000
# Documents of the test part that are decoded, and how many of them are timed one by one.
TESTED, TIMED = 1000, 200


def decoding_cells(data: MultilabelData) -> Iterator[Cell]:
    for instances in NUM_INSTANCES:
        for labels in NUM_LABELS:
            method = f"{labels} labels, {instances} instances"
            yield Cell(data.name, method, partial(decode, data, labels, instances))


def decode(data: MultilabelData, num_labels: int, num_instances: int) -> dict[str, Any]:
    """Train on the first instances with the commonest labels, then decode the test part with a cutoff."""
    commonest = np.argsort(-data.labels[data.train].sum(0), kind="stable")[:num_labels]
    train, test = data.train[:num_instances], data.test[:TESTED]
    labels = data.labels[:, commonest]
    network = LMSBNClassifier(PENALTY, random_state=0)
    started = time.perf_counter()
    network.fit(data.features[train], labels[train])
    seconds = time.perf_counter() - started
    energy = network.energies(data.features[test])[0]
    search = partial(
        branch_and_bound.decode_hinge, margin=network.margin, cutoff=CUTOFF, node_limit=NODE_LIMIT
    )
    found, milliseconds = search(energy), []
    for row in range(TIMED):
        document = energy.select(slice(row, row + 1))
        started = time.perf_counter()
        search(document)
        milliseconds.append(1e3 * (time.perf_counter() - started))
    loss = (network.margin - energy.local_margins(torch.from_numpy(labels[test]))).clamp(min=0).sum(1)
    return {
        "labels": num_labels,
        "instances": num_instances,
        "fit_seconds": seconds,
        "median_ms": float(np.median(milliseconds)),
        "p95_ms": float(np.quantile(milliseconds, 0.95)),
        "median_nodes": float(np.median(np.asarray(found.nodes))),
        "within": float(found.status.exact.double().mean()),
        "promised": max(0.0, 1 - float(loss.mean()) / (CUTOFF * network.margin)),
    }
