"""Compile all kernels in advance: after an installation, or in the build of a container image.

lmbm compile              # as many processes as cores
lmbm compile --jobs 1

Without the command, the first call of each kernel takes some seconds for the compilation. Code is kept in the
folder that NUMBA_CACHE_DIR names; else in the package's folder if writable, or in the user's cache.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from importlib.util import find_spec
from multiprocessing import get_context


def main(arguments: Sequence[str] | None = None) -> None:
    """Run all calls of ``first_calls`` in worker processes, and keep the compiled code for later use."""
    parser = argparse.ArgumentParser(
        prog="lmbm compile", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes (default: all cores)")
    options = parser.parse_args(arguments)
    if options.jobs < 1:
        parser.error(f"--jobs: expected a number of at least 1, got {options.jobs}")
    if find_spec("numba") is None:
        parser.error('expected numba, which is not installed: run pip install "lmbm-torch[fast]"')
    from rich.progress import track

    from lmbm_torch.cli.first_calls import FIRST_CALLS, call

    began = time.perf_counter()
    with ProcessPoolExecutor(options.jobs, get_context("spawn")) as processes:
        calls = as_completed([processes.submit(call, name) for name in FIRST_CALLS])
        compiled = sum(each.result() for each in track(calls, "compiling", total=len(FIRST_CALLS)))
    print(f"compiled {compiled} functions in {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
