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


def main(arguments: Sequence[str] | None = None) -> None:
    """Make every first call in a process that ends with it, so that the next one finds the code."""
    parser = argparse.ArgumentParser(
        prog="lmbm compile", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes (default: the cores)")
    options = parser.parse_args(arguments)
    if options.jobs < 1:
        parser.error(f"--jobs: expected a positive number, got {options.jobs}")
    # At use: whatever the command line gets wrong is answered before.
    from joblib import Parallel, delayed
    from rich.progress import track

    from lmbm_torch.cli.first_calls import FIRST_CALLS, call

    began = time.perf_counter()
    calls = Parallel(n_jobs=options.jobs, return_as="generator_unordered")(map(delayed(call), FIRST_CALLS))
    compiled = sum(track(calls, "compiling", total=len(FIRST_CALLS)))
    print(f"compiled {compiled} functions in {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
