"""Run notebooks from top to bottom and write their outputs: python scripts/notebooks.py notebooks/*.ipynb"""

from __future__ import annotations

import argparse
from pathlib import Path

import nbformat
from nbclient import NotebookClient

from lmbm_torch.files import write_text


def execute(path: Path) -> None:
    """Run one in a kernel of its own; a cell that fails raises, and the file stays as it was."""
    notebook = nbformat.read(path, as_version=4)
    # Without the times of the run, which would change with every one.
    NotebookClient(
        notebook, record_timing=False, resources={"metadata": {"path": str(path.parent)}}
    ).execute()
    write_text(path, nbformat.writes(notebook) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("notebooks", nargs="+", type=Path)
    for path in parser.parse_args().notebooks:
        execute(path)
        print(f"written to {path}")


if __name__ == "__main__":
    main()
