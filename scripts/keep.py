"""Copy finished tables, with their figures, into results/: python scripts/keep.py runs/reproduce/lmbm_2009

Takes the folders that scripts/reproduce.py, scripts/compare.py and the scripts in scripts/bench/ write. A
table that is not finished, or has fewer rows than the one that it would replace, is refused.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from tables import RESULTS, keep


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where tables are kept")
    options = parser.parse_args(arguments)
    for folder in options.folders:
        try:
            kept = keep(folder, options.results)
        except ValueError as error:
            parser.error(str(error))
        for file in kept:
            print(f"kept {file}")


if __name__ == "__main__":
    main()
