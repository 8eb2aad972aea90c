"""Refused input ends a command in one sentence instead of a traceback."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from hydra.core.hydra_config import HydraConfig
from hydra.errors import InstantiationException
from hydra.types import RunMode


@contextmanager
def in_a_sentence(command: str) -> Iterator[None]:
    """Say what was refused inside, and exit with status 1.

    ``HYDRA_FULL_ERROR=1`` shows the traceback. The jobs of a sweep raise their errors as they are, since
    other jobs may be running beside them.
    """
    try:
        yield
    except (ValueError, TypeError, OSError, ArithmeticError, ModuleNotFoundError) as error:
        refused = error
    except InstantiationException as error:
        refused = error.__cause__ or error
    else:
        return
    if os.environ.get("HYDRA_FULL_ERROR") == "1" or HydraConfig.get().mode == RunMode.MULTIRUN:
        raise refused
    print(f"lmbm {command}: {refused}\nHYDRA_FULL_ERROR=1 before the command shows where.", file=sys.stderr)
    sys.exit(1)
