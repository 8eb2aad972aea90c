"""Fuzz the readers of files, guided by coverage, for as long as you like.

python scripts/fuzz/readers.py "dense arff" -max_total_time=60

The first argument names one of the targets, or all, one after the other; the others are libFuzzer's. It ends
at the first file that fails in another way than by a ValueError naming the file, and writes that file to the
current folder.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

# An extra of its own, which type checkers need not find.
atheris: Any = import_module("atheris")

with atheris.instrument_imports(include=["arff", "lmbm_torch.data", "numpy.lib"]):
    from fuzz.targets import TARGETS, refused


def main(arguments: list[str]) -> None:
    if arguments[1:2] == ["all"]:
        for each in TARGETS:
            subprocess.run([sys.executable, arguments[0], each, *arguments[2:]], check=True)
        return
    if len(arguments) < 2 or arguments[1] not in TARGETS:
        raise SystemExit(f"expected all or one of {list(TARGETS)} first")
    target = TARGETS[arguments[1]]
    with tempfile.TemporaryDirectory() as name:
        folder, seeds = Path(name) / "fuzzed", Path(name) / "seeds"
        folder.mkdir()
        seeds.mkdir()
        (seeds / "valid").write_bytes(target.valid)

        def fail(content: bytes) -> None:
            refused(target, folder, content)

        atheris.Setup([arguments[0], str(seeds), *arguments[2:]], fail)
        atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv)
