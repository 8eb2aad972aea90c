"""Memory of training and predicting, by the size of the data on the disk.

python scripts/bench/streaming.py

Writes data sets of growing size, dense and sparse, to a temporary folder; each is trained on for one epoch
and predicted for in a process of its own, whose peak memory in either, beyond that of the imports, is read
from the kernel. For comparison the smaller ones are held in memory, too.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch
from measuring import MIB, described, peak, reset_peak, show, table, told, write_csv
from scipy.sparse import csr_array

from lmbm_torch.data import open_mapped, write_mapped
from lmbm_torch.data.dataset import MultilabelData
from lmbm_torch.data.features import Features, numbered
from lmbm_torch.data.scaling import unscaled

NUM_LABELS, CHUNK = 10, 5_000
NUM_FEATURES = {"dense": 1_000, "sparse": 50_000}
# Of a sparse row, so that its data and indices take as much as a dense row.
NUM_ENTRIES = 500


def chunks(kind: str, count: int, seed: int) -> Iterator[tuple[Features, np.ndarray]]:
    """Yield features of ``count`` instances, and labels that a linear rule gives them."""
    generator = np.random.default_rng(seed)
    rule = np.random.default_rng(0).normal(size=(NUM_FEATURES[kind], NUM_LABELS)).astype(np.float32)
    for first in range(0, count, CHUNK):
        size = min(CHUNK, count - first)
        if kind == "dense":
            features: Features = generator.normal(size=(size, NUM_FEATURES[kind])).astype(np.float32)
        else:
            step = NUM_FEATURES[kind] // NUM_ENTRIES
            places = np.arange(NUM_ENTRIES) * step + generator.integers(step, size=(size, NUM_ENTRIES))
            values = generator.normal(size=places.size).astype(np.float32)
            starts = np.arange(0, places.size + 1, NUM_ENTRIES)
            features = csr_array((values, places.ravel(), starts), shape=(size, NUM_FEATURES[kind]))
        yield features, (features @ rule > 0).astype(np.float32)


def measure(folder: Path, storage: str) -> dict[str, float]:
    """Train for an epoch and predict for all rows, here; the peak of memory is this whole process's."""
    from lightning.pytorch import Trainer

    from lmbm_torch.data.datamodule import MappedDataModule, MultilabelDataModule
    from lmbm_torch.losses import local_hinge
    from lmbm_torch.models import SigmoidBeliefNetwork
    from lmbm_torch.prediction import answers
    from lmbm_torch.prediction.predictor import Predictor
    from lmbm_torch.training.gradient import GradientModule

    reset_peak()
    before = peak()
    data = open_mapped(folder)
    mapped = storage == "mapped"
    serve = MappedDataModule if mapped else MultilabelDataModule
    held = data if mapped else in_memory(data)
    module = GradientModule(
        SigmoidBeliefNetwork(data.num_features, NUM_LABELS, range(NUM_LABELS)),
        local_hinge,
        C=1.0,
        optimizer=partial(torch.optim.SGD, lr=0.01),
    )
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    started = time.process_time()
    trainer.fit(module, datamodule=serve(held, scaling=unscaled, batch_size=256))  # pyright: ignore[reportArgumentType]
    trained, peak_trained = time.process_time() - started, peak()
    reset_peak()
    saved = Predictor.of_model(module.model.eval(), data.label_names, 1.0, None)
    started = time.process_time()
    features = held.features_at(np.arange(data.num_instances))
    right = 0
    for number, found in enumerate(answers.decode(saved, features)):
        rows = slice(number * answers.BATCH_SIZE, (number + 1) * answers.BATCH_SIZE)
        right += int((found.labels.numpy() == data.labels[rows]).sum())
    decoded = time.process_time() - started
    return {
        "hamming_accuracy": right / (data.num_instances * NUM_LABELS),
        "train_cpu_seconds": trained,
        "predict_cpu_seconds": decoded,
        "train_memory_mib": (peak_trained - before) / MIB,
        "predict_memory_mib": (peak() - before) / MIB,
    }


def in_memory(data: MultilabelData) -> MultilabelData:
    """Return the same data, read at once."""
    return MultilabelData(
        data.name,
        data.features[:],
        data.labels[:],
        data.label_names,
        data.feature_names,
        data.train,
        data.test,
    )


def main() -> None:
    parser = described(__file__, __doc__)
    parser.add_argument("--instances", type=int, nargs="+", default=[25_000, 100_000, 400_000])
    parser.add_argument("--most-in-memory", type=int, default=100_000, help="instances")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(Path(options.one[0]), options.one[1])))
        return
    rows = []
    for kind in NUM_FEATURES:
        for count in options.instances:
            with tempfile.TemporaryDirectory() as place:
                folder = Path(place) / "data"
                write_mapped(folder, chunks(kind, count, 1), label_names=numbered("label", NUM_LABELS))
                size = sum(file.stat().st_size for file in folder.iterdir()) / MIB
                for storage in ("mapped", "in memory") if count <= options.most_in_memory else ("mapped",):
                    call = [sys.executable, __file__, "--one", str(folder), storage]
                    run = subprocess.run(call, check=True, capture_output=True, text=True)
                    found = json.loads(run.stdout.splitlines()[-1])
                    row = {"features": kind, "instances": count, "disk_mib": size, "storage": storage}
                    rows.append(told({**row, **found}))
    show(rows, "peak memory beyond that of the imports")
    with table(options.output, options.name) as folder:
        write_csv(folder / "table.csv", rows)


if __name__ == "__main__":
    main()
