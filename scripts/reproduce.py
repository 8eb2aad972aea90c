"""Compute one of the tables, cell by cell, and draw its figures; stored cells are not computed again.

python scripts/reproduce.py table=linear_networks, then make keep RUN=runs/reproduce/linear_networks
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
from tables import table


@hydra.main(config_path="../conf", config_name="reproduce", version_base="1.3")
def main(config: DictConfig) -> None:
    module = import_module(config.table.module)
    folder, console = Path(config.output), Console()
    settings: dict[str, Any] = OmegaConf.to_container(config.table, resolve=True)  # pyright: ignore[reportAssignmentType]
    del settings["module"]
    results = compute(module.cells(folder=config.paths.data, **settings), folder, console, config.processes)
    rows = module.summary(results) if hasattr(module, "summary") else results
    with table(folder, config.name):
        console.print(Markdown(write_tables(rows, module.COLUMNS, folder)))
        if hasattr(module, "draw"):
            module.draw(results, folder)
    console.print(f"written to {folder}")


if __name__ == "__main__":
    main()
