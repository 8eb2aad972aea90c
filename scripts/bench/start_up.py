"""Start-up times of commands on a table, beside ``python -c 'import torch'`` in the same run.

* ``wrong path``, ``wrong label``: ``lmbm train data=table`` with a file that does not exist, or a label that
  no column has; both are told before torch is imported.
* ``predict``: ``lmbm predict`` of 100 rows by a belief network of 2 labels, from a table of 3 columns.

Seconds of CPU time and of wall clock, the medians of repeats in turn; the ratios are to the import of torch.
Byte code is kept, as in an installation.

    OMP_NUM_THREADS=1 python scripts/bench/start_up.py [--repeats 5]
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from measuring import described, show, table, told, write_csv

COMMAND = "from lmbm_torch.cli.entry import main; main()"


def written(folder: Path) -> None:
    """Write a table to train on and 100 rows to predict."""
    generator = np.random.default_rng(0)
    for name, rows in (("mine", 300), ("new", 100)):
        towns = generator.choice(["Oslo", "Rome", "Bern"], rows).tolist()
        sizes, ages = generator.normal(size=rows).tolist(), generator.integers(10, 90, rows).tolist()
        found = [
            {"size": size, "town": town, "age": age, "sun": int(size > 0), "sea": int(size > 0.5)}
            for size, town, age in zip(sizes, towns, ages, strict=True)
        ]
        write_csv(folder / f"{name}.csv", found)


def measured(arguments: list[str], folder: Path) -> tuple[float, float]:
    """Return the CPU seconds and the wall seconds of a process."""
    variables = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    variables["PYTHONPYCACHEPREFIX"] = str(folder / "byte_code")
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(
        [sys.executable, "-c", *arguments], cwd=folder, env=variables, capture_output=True, check=False
    )
    wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall


def main() -> None:
    parser = described(__file__, __doc__)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        written(folder)
        train = [COMMAND, "train", "data=table", "data.labels=[sun,sea]"]
        measured([*train, "data.train=mine.csv", "paths.run=run"], folder)
        processes = {
            "import torch": ["import torch"],
            "wrong path": [*train, "data.train=nowhere.csv"],
            "wrong label": [*train, "data.train=mine.csv", "data.labels=[snow]"],
            "predict": [COMMAND, "predict", "run", "new.csv", "--output", "out.csv", "--force"],
        }
        found: dict[str, list[tuple[float, float]]] = {process: [] for process in processes}
        for repeat in range(arguments.repeats + 1):
            for process, line in processes.items():
                times = measured(line, folder)
                # The first writes the byte code.
                if repeat:
                    found[process].append(times)
        if not (folder / "out.csv").is_file():
            sys.exit("predict: expected a file of predictions, found none")
    medians = {
        name: [statistics.median(each) for each in zip(*times, strict=True)] for name, times in found.items()
    }
    cpu, wall = medians["import torch"]
    rows = [
        told(
            {
                "process": process,
                "cpu_seconds": own[0],
                "wall_seconds": own[1],
                "cpu_ratio": own[0] / cpu,
                "wall_ratio": own[1] / wall,
                "machine_load": os.getloadavg()[0],
            }
        )
        for process, own in medians.items()
    ]
    with table(arguments.output, arguments.name):
        write_csv(arguments.output / "table.csv", rows)
    show(rows, "start of commands")


if __name__ == "__main__":
    main()
