"""Models of the UAI 2014 competition: exact log partitions and best labellings, and what messages find.

    python scripts/bench/uai2014.py

reads ``uai2014/uai.tar.xz`` and ``index.json`` in the folder that ``LMBM_DATA`` names: networks of up to 916
variables with evidence, the competition's PR and MAR files, and exact numbers by another program where its
elimination was feasible. Each row has the width of the elimination (log₂ of the largest table's entries), the
log partition with its relative error, the best labelling with its bound, and belief propagation: the first
of five schedules that converges, and the median and largest distance of its beliefs from the MAR file. Times
are CPU seconds.
"""

from __future__ import annotations

import json
import math
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measuring import described, show, told, write_csv

from lmbm_torch.data import read_uai
from lmbm_torch.data.named import data_folder
from lmbm_torch.energies import FactorEnergy
from lmbm_torch.inference import decode
from lmbm_torch.inference.graphs import belief_propagation, elimination

# Bytes of the elimination's tables.
MOST_BYTES = 12 * 2**30
TRIES: tuple[dict[str, Any], ...] = (
    {"schedule": "sequential"},
    {"schedule": "sequential", "damping": 0.5, "num_iters": 3000},
    {"schedule": "residual", "damping": 0.1, "num_iters": 3000},
    {"schedule": "parallel", "damping": 0.8, "num_iters": 5000},
    {"schedule": "double loop", "num_iters": 5000},
)


def beliefs_of(path: Path) -> list[np.ndarray]:
    """The marginals of a MAR file, for each variable."""
    numbers = path.read_text().split()[1:]
    count, at, found = int(numbers[0]), 1, []
    for _ in range(count):
        states = int(numbers[at])
        found.append(np.array(numbers[at + 1 : at + 1 + states], float))
        at += 1 + states
    return found


def sums(energy: FactorEnergy, given: dict[str, Any]) -> dict[str, Any]:
    """The log partition, against the exact one or the competition's."""
    row: dict[str, Any] = {"width": elimination.width(energy)}
    began = time.process_time()
    try:
        found = elimination.log_partition(energy, max_bytes=MOST_BYTES).item()
    except ValueError:
        found = math.nan
    row |= {"log_partition": found, "sum_seconds": time.process_time() - began}
    exact, competition = given.get("exact_lnZ", math.nan), given.get("file_log10_PR", math.nan)
    row["error"] = abs(found - exact) / abs(exact)
    row["from_competition"] = abs(found - competition * math.log(10)) / abs(competition * math.log(10))
    return row


def best(energy: FactorEnergy, given: dict[str, Any]) -> dict[str, Any]:
    """The best labelling, by the table of routes."""
    began = time.process_time()
    found = decode(energy)
    score, bound = found.objective.item(), found.bound.item()
    exact = given.get("exact_max_ln_value", math.nan)
    return {
        "best_score": score,
        "gap": (bound - score) / abs(score),
        "below_given": (exact - score) / abs(exact),
        "proven": bool(found.status.exact),
        "best_seconds": time.process_time() - began,
    }


def messages(energy: FactorEnergy, mar: Path) -> dict[str, Any]:
    """Belief propagation by the first schedule that converges."""
    began = time.process_time()
    for settings in TRIES:
        found = belief_propagation.marginals(energy, **settings)
        if found.status.converged.all():
            break
    row: dict[str, Any] = {
        "messages": f"{settings['schedule']} {settings.get('damping', 0):g}",
        "converged": bool(found.status.converged),
        "bethe": found.log_partition.item(),
        "message_seconds": time.process_time() - began,
    }
    if not mar.exists():
        return row | {"median_belief": math.nan, "worst_belief": math.nan}
    wanted = beliefs_of(mar)
    apart = [
        np.abs(found.states[0, variable, : len(each)].numpy() - each).max()
        for variable, each in enumerate(wanted)
    ]
    return row | {"median_belief": float(np.median(apart)), "worst_belief": float(max(apart))}


def main() -> None:
    arguments = described(__file__, __doc__).parse_args()
    torch.set_num_threads(1)
    folder = data_folder() / "uai2014"
    index, rows = json.loads((folder / "index.json").read_text()), []
    with tempfile.TemporaryDirectory() as place:
        with tarfile.open(folder / "uai.tar.xz") as archive:
            archive.extractall(place, filter="data")
        for name, given in index.items():
            path = Path(place, "uai", name)
            energy = read_uai(path, evidence=path.with_name(f"{name}.evid"))
            row = {"model": name.removesuffix(".uai"), "variables": given["variables"]}
            row |= {"states": given["max_states"]} | sums(energy, given) | best(energy, given)
            rows.append(told(row | messages(energy, path.with_name(f"{name}.MAR"))))
    show(rows, "UAI 2014")
    write_csv(arguments.output / "table.csv", rows)


if __name__ == "__main__":
    main()
