"""Try a wheel or source archive in an empty environment: install, train, save, load and decode.

python scripts/try_archive.py dist/lmbm_torch-0.1.0-py3-none-any.whl [--constraints constraints.txt]

The script prints the seconds of the installation beyond torch and the CPU time of a cold and a warm fit.
An error of any step ends the script with a status other than 0.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

EXTRAS = "fast,sklearn,io"
FIRST_USE = """
import resource, sys, time
import numpy as np
from sklearn.datasets import make_multilabel_classification
import lmbm_torch
from lmbm_torch import LMSBNClassifier

def cpu():
    # Of this process and of the compilers that it has waited for.
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))

X, Y = make_multilabel_classification(300, 12, n_classes=6, random_state=0)
for words in ("first fit", "second fit"):
    began = cpu()
    model = LMSBNClassifier(random_state=0).fit(X, Y)
    answer = model.decode(X, top_k=2)
    print(f"{words} and decoding: {cpu() - began:.1f} s of CPU time", flush=True)
lmbm_torch.save(model, sys.argv[1])
assert (lmbm_torch.load(sys.argv[1]).predict(X) == model.predict(X)).all()
print("version", lmbm_torch.__version__)
"""


def main(archive: Path, constraints: Path | None) -> None:
    """Install an archive into a new environment, and run the first steps there."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        python = Path(folder, "bin", "python")
        limits = ["--constraint", str(constraints.resolve())] if constraints else []
        pip = [str(python), "-m", "pip", "install", "--quiet", *limits]
        subprocess.run([*pip, "torch"], check=True)
        began = time.monotonic()
        subprocess.run([*pip, f"{archive.resolve()}[{EXTRAS}]"], check=True)
        print(f"installed beyond torch in {time.monotonic() - began:.0f} s", flush=True)
        program = [str(python), "-c", FIRST_USE, str(Path(folder, "model.safetensors"))]
        subprocess.run(program, check=True, cwd=folder)
        subprocess.run([str(Path(folder, "bin", "lmbm")), "--help"], check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("archive", type=Path)
    parser.add_argument("--constraints", type=Path)
    arguments = parser.parse_args()
    main(arguments.archive, arguments.constraints)
