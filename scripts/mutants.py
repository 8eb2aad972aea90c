"""Break the library one line at a time: the test that a mutant of tests/mutants.toml names must catch it.

A mutant is a file below lmbm_torch, in examples or in scripts, a text that stands there once, another one in
its place, and a test. It is written into a copy of the package, in which the test must fail; beforehand every
test must pass there without a mutant. The copy has the package's compiled kernels; a mutant in ``kernels``
makes all of them stale, so that its test had better call few.

    python scripts/mutants.py                 # all; slow
    python scripts/mutants.py losses/ energies/
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.progress import track

from lmbm_torch.files import write_text

REPOSITORY = Path(__file__).parents[1]
LIST = REPOSITORY / "tests" / "mutants.toml"
# A wrong line may let a test run for ever; those of right ones take half a minute at most.
MOST_SECONDS = 300


@dataclass(frozen=True)
class Mutant:
    """A line that is wrong.

    Args:
        file: below lmbm_torch, ``examples/…`` or ``scripts/…``.
        old: stands there once.
        new: takes its place.
        test: that must fail then.
    """

    file: str
    old: str
    new: str
    test: str

    def path(self, repository: Path) -> Path:
        """Return the file in the repository or in a copy."""
        return (
            repository / ("" if self.file.startswith(("examples/", "scripts/")) else "lmbm_torch") / self.file
        )


def listed(path: Path = LIST) -> list[Mutant]:
    """Return the mutants of a file."""
    return [Mutant(**each) for each in tomllib.loads(path.read_text(encoding="utf-8"))["mutant"]]


def copied(folder: Path) -> None:
    """Copy the package, its tests and its compiled kernels."""
    for name in ("lmbm_torch", "conf", "examples", "scripts", "tests"):
        shutil.copytree(REPOSITORY / name, folder / name, ignore=shutil.ignore_patterns("*.pyc"))
    shutil.copy(REPOSITORY / "pyproject.toml", folder)


def passes(folder: Path, tests: Sequence[str], seconds: float | None = None) -> bool:
    """Return whether tests pass in a copy, within so many seconds."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-m", "", "-p", "no:cacheprovider", *tests]
    environment = os.environ | {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        run = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=seconds
        )
    except subprocess.TimeoutExpired:
        return False
    if run.returncode not in (0, 1):
        raise RuntimeError(f"{tests}: expected tests that run, got {run.stdout}{run.stderr}")
    return run.returncode == 0


def survives(folder: Path, mutant: Mutant) -> bool:
    """Return whether the test of a mutant passes all the same."""
    file = mutant.path(folder)
    text = file.read_text(encoding="utf-8")
    if text.count(mutant.old) != 1:
        raise ValueError(
            f"{mutant.file}: expected {mutant.old!r} once, got it {text.count(mutant.old)} times"
        )
    try:
        write_text(file, text.replace(mutant.old, mutant.new))
        return passes(folder, [mutant.test], MOST_SECONDS)
    finally:
        write_text(file, text)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="*", help="beginnings of files; all by default")
    begins = tuple(parser.parse_args(arguments).files)
    mutants = [each for each in listed() if not begins or each.file.startswith(begins)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        copied(folder)
        if not passes(folder, sorted({mutant.test for mutant in mutants})):
            sys.exit("the tests fail without a mutant")
        survivors = [mutant for mutant in track(mutants, "mutants") if survives(folder, mutant)]
    for mutant in survivors:
        print(f"survived {mutant.test}:\n  {mutant.file}: {mutant.old!r} -> {mutant.new!r}")
    print(f"{len(mutants) - len(survivors)} of {len(mutants)} caught")
    sys.exit(bool(survivors))


if __name__ == "__main__":
    main()
