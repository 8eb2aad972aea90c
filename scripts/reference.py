"""Write the API reference from the docstrings: python scripts/reference.py [MODULE …] [--output FOLDER]"""

from __future__ import annotations

import argparse
import pkgutil
import warnings
from importlib import import_module
from pathlib import Path

import pdoc.render

import lmbm_torch


def publish_modules() -> None:
    """Let every package list its modules too, since algorithms are imported by their module.

    pdoc shows what ``__all__`` names, where packages list their classes and functions alone.
    """
    for _, name, _ in pkgutil.walk_packages(lmbm_torch.__path__, "lmbm_torch."):
        parent, _, module = name.rpartition(".")
        package = import_module(parent)
        if hasattr(package, "__all__"):
            package.__all__ = [*dict.fromkeys([*package.__all__, module])]  # pyright: ignore[reportAttributeAccessIssue]


def write(output: Path, *modules: str) -> None:
    """One page for each of ``modules`` and all below them."""
    publish_modules()
    pdoc.render.configure(docformat="google", math=True, footer_text=f"lmbm_torch {lmbm_torch.__version__}")
    with warnings.catch_warnings():
        # Constructors of named tuples know nothing of their module's imports; the source is shown instead.
        warnings.filterwarnings("ignore", message="Error parsing type annotation", category=UserWarning)
        pdoc.pdoc(*modules, output_directory=output)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("docs/reference"))
    parser.add_argument("modules", nargs="*", default=["lmbm_torch"], metavar="MODULE")
    asked = parser.parse_args()
    write(asked.output, *asked.modules)
    print(f"written to {asked.output / 'index.html'}")


if __name__ == "__main__":
    main()
