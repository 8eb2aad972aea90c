"""Copy finished tables, with their figures, into results/: python scripts/keep.py runs/reproduce/lmbm_2009

Takes the folders that lmbm reproduce, lmbm compare and the scripts in scripts/bench/ write. A
table that is not finished, or has fewer rows than the one that it would replace, is refused.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lmbm_torch.compare.tables import FINISHED
from lmbm_torch.files import replacing, write_text

RESULTS = Path(__file__).parents[1] / "results"
RECIPES = "recipes.json"


def keep(folder: Path, results: Path = RESULTS) -> list[Path]:
    """Copy a finished table to ``<name>.*`` and ``<name>_<other file>`` in ``results``; return the copies.

    ``recipes.json`` there records the recipe by which the table was made.

    Raises:
        ValueError: the table is not finished, lacks one of its files, or has fewer rows than the kept one
            that it would replace.
    """
    if not (folder / FINISHED).is_file():
        raise ValueError(f"folder: expected that of a finished table, got {folder} without {FINISHED}")
    mark = json.loads((folder / FINISHED).read_text(encoding="utf-8"))
    contents = {}
    for file in map(Path, mark["files"]):
        if not (folder / file).is_file():
            raise ValueError(f"folder: expected all files of the table, found no {file} in {folder}")
        own = mark["name"] if file.stem == "table" else f"{mark['name']}_{file.stem}"
        contents[results / f"{own}{file.suffix}"] = (folder / file).read_bytes()
    for target, content in contents.items():
        if target.suffix == ".csv" and target.exists():
            kept, found = _num_rows(target.read_bytes()), _num_rows(content)
            if found < kept:
                raise ValueError(
                    f"folder: expected a table with at least the {kept} rows of {target}, got {found}; "
                    "delete that file first to keep fewer"
                )
    for target, content in contents.items():
        target.parent.mkdir(parents=True, exist_ok=True)
        with replacing(target) as stream:
            stream.write(content)
    recipes = recipes_of(results)
    if mark["recipe"] is None:
        recipes.pop(mark["name"], None)
    else:
        recipes[mark["name"]] = mark["recipe"]
    lines = [f" {json.dumps(name)}: {json.dumps(recipes[name])}" for name in sorted(recipes)]
    write_text(results / RECIPES, "{\n" + ",\n".join(lines) + "\n}\n")
    return [*contents, results / RECIPES]


def recipes_of(results: Path = RESULTS) -> dict[str, dict[str, Any] | None]:
    """Return the constants of the training recipe by which each kept table was made, by the table's name.

    The recipe of a table that was kept before tables recorded recipes is None. A table without large-margin
    training has no recipe.
    """
    file = results / RECIPES
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


def _num_rows(content: bytes) -> int:
    return sum(1 for _ in csv.reader(io.StringIO(content.decode(), newline=""))) - 1


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
