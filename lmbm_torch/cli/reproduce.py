"""The command ``lmbm reproduce table=linear_networks``, which computes a table of a paper."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

SCRIPTS = Path(__file__).parents[2] / "scripts"


def main() -> None:
    """Run ``scripts/reproduce`` in a clone of the repository; exit with a message outside of a clone."""
    if not (SCRIPTS / "reproduce" / "__main__.py").is_file():
        sys.exit(
            "lmbm reproduce: expected a clone of the repository, whose folder scripts/reproduce computes the "
            "tables, got an installed package without it"
        )
    sys.path.insert(0, str(SCRIPTS))
    runpy.run_module("reproduce", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
