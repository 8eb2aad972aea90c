"""Fuzz the readers of files, guided by coverage, for as long as you like.

python scripts/fuzz/readers.py "dense arff" -max_total_time=60

The first argument names one of the targets, or all, one after the other; the others are libFuzzer's. It ends
at the first file that fails in another way than by an error naming the file, or that takes more than
10 seconds or 4 GB, and writes that file to the current folder.
"""

from __future__ import annotations

import multiprocessing
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
    for file in (ROOT / "lmbm_torch" / "backends").rglob("*.py")
]

# An extra of its own, which type checkers need not find.
atheris: Any = import_module("atheris")

LIMITS = ("-timeout=10", "-rss_limit_mb=4096")

with atheris.instrument_imports(include=["arff", "lmbm_torch", "numpy"], exclude=KERNELS):
    from fuzz.target import Target, refused
    from fuzz.targets import TARGETS


def main(arguments: list[str]) -> None:
    names = [*TARGETS] if arguments[1:2] == ["all"] else arguments[1:2]
    if not names or names[0] not in TARGETS:
        raise SystemExit(f"expected all or one of {list(TARGETS)} first")
    # A fuzzer ends its process, and what is imported and instrumented already is forked at once.
    context = multiprocessing.get_context("fork")
    for name in names:
        process = context.Process(target=fuzz, args=(TARGETS[name], arguments[2:]))
        process.start()
        process.join()
        if process.exitcode:
            raise SystemExit(f"{name}: see above")


def fuzz(target: Target, options: list[str]) -> None:
    """Fuzz one reader until something fails or libFuzzer's ``options`` end it."""
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

        atheris.Setup([sys.argv[0], str(seeds), f"-dict={words}", *LIMITS, *options], fail)
        atheris.Fuzz()


def _escaped(word: bytes) -> str:
    """Bytes as libFuzzer's dictionaries write them."""
    return "".join(f"\\x{byte:02x}" for byte in word)


if __name__ == "__main__":
    main(sys.argv)
