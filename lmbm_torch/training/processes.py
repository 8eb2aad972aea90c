"""The processes of one run, whoever starts them: Lightning, torchrun or SLURM."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from lmbm_torch.extras import naming_extras

with naming_extras():
    from lightning.pytorch import Trainer

RANKS = ("RANK", "SLURM_PROCID", "NODE_RANK", "LOCAL_RANK")
"""The variables by which starters number processes; the first one of a run has 0 in each that is set."""


def is_follower(trainer: Mapping[str, Any]) -> bool:
    """Whether this process is another than the first of its run; known before there is a trainer.

    Args:
        trainer: its arguments, by name. Numbers of processes mean nothing to a run of a single one.
    """
    is_alone = trainer.get("devices", 1) == 1 and trainer.get("num_nodes", 1) == 1
    return not is_alone and any(os.environ.get(name, "0") != "0" for name in RANKS)


def starts_others(trainer: Trainer) -> bool:
    """Whether this process will start others by its own command line."""
    environment = getattr(trainer.strategy, "cluster_environment", None)
    return trainer.world_size > 1 and environment is not None and not environment.creates_processes_externally
