"""The first minute of a new user: imports, and the first fit and predict, in processes of their own.

CPU seconds, the least of several processes: to import PyTorch and scikit-learn, and the
estimators beside them; the first fit of 200 rows and the first predict where no kernel is compiled yet
(cold), and where an earlier process, or ``lmbm compile``, has done so (warm).

    python scripts/bench/first_minute.py [--repeats 3]
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from measuring import described, show, table, told, write_csv

PACKAGE = Path(__file__).parents[2] / "lmbm_torch"
WITHOUT_KERNELS = shutil.ignore_patterns("__pycache__")
IMPORTS = "import torch, sklearn.base, sklearn.svm, sklearn.linear_model"
FIRST = """
import json, time
began = time.process_time()
{imports}
theirs = time.process_time() - began
from lmbm_torch.estimators import {name}
ours = time.process_time() - began - theirs
import numpy as np
torch.set_num_threads(1)
random = np.random.default_rng(0)
X = random.standard_normal((200, 20))
Y = (X[:, :8] + random.standard_normal((200, 8)) > 0).astype(int)
began = time.process_time()
model = {call}.fit(X, Y)
fitted = time.process_time() - began
model.predict(X)
predicted = time.process_time() - began - fitted
print(json.dumps([theirs, ours, fitted, predicted]))
"""
CALLS = {
    "LMSBNClassifier": "LMSBNClassifier()",
    "LMSBNClassifier, RBF kernel": "LMSBNClassifier(kernel='rbf')",
    "LMBMClassifier": "LMBMClassifier()",
    "StructuralSVMClassifier": "StructuralSVMClassifier()",
    "ConditionalRBMClassifier": "ConditionalRBMClassifier()",
}


def first_call(call: str, folder: Path) -> list[float]:
    """Return seconds to import what is not ours and what is, of the first fit and of the first predict.

    Args:
        folder: that holds the package, and its kernels when they have been compiled.
    """
    code = FIRST.format(imports=IMPORTS, name=call.partition("(")[0], call=call)
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    environment.pop("NUMBA_CACHE_DIR", None)
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        cwd=folder,  # where `-c` imports from
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(run.stdout.splitlines()[-1])


def measured(call: str, repeats: int) -> dict[str, float]:
    """Return the columns of one estimator; a cold process is followed by warm ones over the same kernels."""
    cold, warm = [], []
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            # Kernels that are compiled already lie beside the package's own files, and would be found.
            shutil.copytree(PACKAGE, Path(folder, PACKAGE.name), ignore=WITHOUT_KERNELS)
            cold.append(first_call(call, Path(folder)))
            warm.append(first_call(call, Path(folder)))
    theirs, ours, fitted, predicted = (min(column) for column in zip(*warm, strict=True))
    return {
        "torch_and_sklearn_s": round(theirs, 2),
        "import_s": round(ours, 2),
        "cold_s": round(min(fit + predict for *_, fit, predict in cold), 2),
        "warm_s": round(fitted + predicted, 3),
    }


def main() -> None:
    parser = described(__file__, __doc__)
    parser.add_argument("--repeats", type=int, default=3, help="pairs of processes for each estimator")
    arguments = parser.parse_args()
    rows = [told({"estimator": name, **measured(call, arguments.repeats)}) for name, call in CALLS.items()]
    with table(arguments.output, arguments.name) as folder:
        write_csv(folder / "table.csv", rows)
    show(rows, "the first minute, CPU seconds")


if __name__ == "__main__":
    main()
