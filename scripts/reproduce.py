"""Compute one of the tables, cell by cell, and draw its figures; what an earlier call has computed is kept.

python scripts/reproduce.py table=linear_networks
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import hydra
from omegaconf import DictConfig, OmegaConf
from reproductions.cells import compute, write_tables
from rich.console import Console
from rich.markdown import Markdown


@hydra.main(config_path="../conf", config_name="reproduce", version_base="1.3")
def main(config: DictConfig) -> None:
    table = import_module(config.table.module)
    folder, console = Path(config.output), Console()
    settings: dict[str, Any] = OmegaConf.to_container(config.table, resolve=True)  # pyright: ignore[reportAssignmentType]
    del settings["module"]
    results = compute(table.cells(folder=config.paths.data, **settings), folder, console, config.processes)
    rows = table.summary(results) if hasattr(table, "summary") else results
    console.print(Markdown(write_tables(rows, table.COLUMNS, folder)))
    if hasattr(table, "draw"):
        table.draw(results, folder)
    console.print(f"written to {folder}")


if __name__ == "__main__":
    main()
