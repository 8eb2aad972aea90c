"""Fuzz the readers of files, guided by coverage, for as long as you like.

python scripts/fuzz/readers.py "dense arff" -max_total_time=60

The first argument names one of the targets, or all, one after the other; the others are libFuzzer's. It ends
at the first file that fails in another way than by an error naming the file, or that takes more than
10 seconds or 4 GB, and writes that file to the current folder.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
ROOT = Path(__file__).parents[2]
# Numba cannot compile what is instrumented.
KERNELS = [
    ".".join(file.relative_to(ROOT).with_suffix("").parts)
    for file in (ROOT / "lmbm_torch" / "kernels").rglob("*.py")
]

# An extra of its own, which type checkers need not find.
atheris: Any = import_module("atheris")

LIMITS = ("-timeout=10", "-rss_limit_mb=4096")

with atheris.instrument_imports(include=["arff", "lmbm_torch", "numpy"], exclude=KERNELS):
    from fuzz.target import refused
    from fuzz.targets import TARGETS


def main(arguments: list[str]) -> None:
    if arguments[1:2] == ["all"]:
        for each in TARGETS:
            subprocess.run([sys.executable, arguments[0], each, *arguments[2:]], check=True)
        return
    if len(arguments) < 2 or arguments[1] not in TARGETS:
        raise SystemExit(f"expected all or one of {list(TARGETS)} first")
    target = TARGETS[arguments[1]]
    with tempfile.TemporaryDirectory() as name:
        folder, seeds, words = (Path(name) / each for each in ("fuzzed", "seeds", "words"))
        folder.mkdir()
        seeds.mkdir()
        (seeds / "valid").write_bytes(target.valid)
        # libFuzzer takes no dictionary without a word.
        known = "".join(f'"{_escaped(word)}"\n' for word in target.words or (b"\x00",))
        words.write_text(known, encoding="utf-8")

        def fail(content: bytes) -> None:
            refused(target, folder, content)

        # What readers import at their first call is not to count as the time of a file.
        fail(target.valid)
        atheris.Setup([arguments[0], str(seeds), f"-dict={words}", *LIMITS, *arguments[2:]], fail)
        atheris.Fuzz()


def _escaped(word: bytes) -> str:
    """Return bytes as libFuzzer's dictionaries write them."""
    return "".join(f"\\x{byte:02x}" for byte in word)


if __name__ == "__main__":
    main(sys.argv)
