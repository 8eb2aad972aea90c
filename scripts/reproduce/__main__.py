"""Compute one of the tables, cell by cell, and draw its figures; stored cells are not computed again.

lmbm reproduce table=linear_networks              # or python scripts/reproduce table=…
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any, TypedDict

import hydra
from omegaconf import DictConfig, OmegaConf

from lmbm_torch.cli.configuration import in_a_sentence

sys.path.insert(0, str(Path(__file__).parents[1]))

import reproduce


class Reproduction(TypedDict):
    """The configuration of ``lmbm reproduce``."""

    processes: int
    cluster: str | None
    time_limit: float | None
    paths: dict[str, str | None]
    name: str
    output: str


@hydra.main(version_base="1.3", config_path=reproduce.CONFIGURATION, config_name="reproduce")
def main(config: DictConfig) -> None:
    """Compute, print and write what the command line names."""
    with in_a_sentence("reproduce"):
        _run(config)


def _run(config: DictConfig) -> None:
    if config.get("table") is None:
        tables = sorted(path.stem for path in Path(reproduce.CONFIGURATION, "table").glob("*.yaml"))
        raise ValueError(f"table: expected one, such as table={' or '.join(tables)}, got none")
    # At use: whatever the command line gets wrong is answered before.
    from rich.console import Console

    from lmbm_torch.cli.compare import on_cluster
    from lmbm_torch.cli.typed import check_call, check_types
    from lmbm_torch.compare.tables import print_tables, table, write_tables
    from reproduce.cells import compute

    resolved: dict[str, Any] = OmegaConf.to_container(config, resolve=True)  # pyright: ignore[reportAssignmentType]
    check_types(resolved, Reproduction)
    settings = resolved["table"]
    module = import_module(settings.pop("module"))
    check_call("table", module.cells, settings)
    folder, console = Path(config.output), Console()
    cells = module.cells(folder=config.paths.data, **settings)
    if config.cluster is not None and config.processes != 1:
        raise ValueError(f"processes: expected 1 with a cluster, got {config.processes}")
    if config.cluster is not None:
        import cloudpickle

        # Workers have the library alone.
        cloudpickle.register_pickle_by_value(reproduce)
    with on_cluster(config.cluster):
        results = compute(cells, folder, console, config.processes, config.time_limit)
    rows = module.summary(results) if hasattr(module, "summary") else results
    with table(folder, config.name):
        note = module.note(results, **settings) if hasattr(module, "note") else ""
        write_tables(rows, module.COLUMNS, folder, note)
        print_tables(rows, module.COLUMNS, console)
        if hasattr(module, "draw"):
            module.draw(results, folder)
    console.print(f"written to {folder}", soft_wrap=True, highlight=False)


if __name__ == "__main__":
    main()
