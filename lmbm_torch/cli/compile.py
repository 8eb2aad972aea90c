"""Compile the kernels beforehand, once: after an installation, or while an image is built.

lmbm compile              # as many processes as cores
lmbm compile --jobs 1

Otherwise the first call that needs a kernel compiles it, for seconds. Code is kept beside the package, where
that can be written, else in the user's cache folder, or in the folder that NUMBA_CACHE_DIR names.
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
    """Make every first call, each in a worker process, and keep the compiled code for later processes."""
    parser = argparse.ArgumentParser(
        prog="lmbm compile", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes (default: the cores)")
    options = parser.parse_args(arguments)
    if options.jobs < 1:
        parser.error(f"--jobs: expected a positive number, got {options.jobs}")
    if find_spec("numba") is None:
        parser.error('numba is not installed: pip install "lmbm-torch[fast]" installs it')
    # At use: mistakes on the command line are reported before.
    from rich.progress import track

    from lmbm_torch.cli.first_calls import FIRST_CALLS, call

    began = time.perf_counter()
    with ProcessPoolExecutor(options.jobs, get_context("spawn")) as processes:
        calls = as_completed([processes.submit(call, name) for name in FIRST_CALLS])
        compiled = sum(each.result() for each in track(calls, "compiling", total=len(FIRST_CALLS)))
    print(f"compiled {compiled} functions in {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
