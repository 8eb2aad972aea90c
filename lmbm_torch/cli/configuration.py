"""The configuration of Hydra, and errors as one sentence instead of a traceback."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from hydra.errors import InstantiationException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from lmbm_torch.persistence.trusted import worded

_PACKAGE = Path(__file__).parents[1]
_FOLDER = _PACKAGE / "conf"
CONFIGURATION = str(_FOLDER if _FOLDER.is_dir() else _PACKAGE.parent / "conf")

REFUSED = ValueError, TypeError, OSError, ArithmeticError, ModuleNotFoundError
# Configurations of callbacks that are complete, each with all configurations that it includes.
WHOLE = {"default": ("default",), "images": ("default", "images"), "samples": ("default", "samples")}


@contextmanager
def in_a_sentence(command: str) -> Iterator[None]:
    """Print an error of the body as one sentence, and exit with status 1.

    ``HYDRA_FULL_ERROR=1`` shows the traceback. If a job of a sweep with a
    :class:`~lmbm_torch.cli.sweeps.Summary` fails, the exception is not raised, and the next jobs run; jobs of
    further sweeps raise errors unchanged.
    """
    try:
        yield
    except REFUSED as error:
        raised, is_refused = error, True
    except InstantiationException as error:
        raised, is_refused = error.__cause__ or ValueError(worded(error)), True
    except Exception as error:
        raised, is_refused = error, False
    else:
        return
    hydra = HydraConfig.get()
    is_job = hydra.mode == RunMode.MULTIRUN
    is_whole = not is_refused or os.environ.get("HYDRA_FULL_ERROR") == "1"
    if not (is_job and "summary" in hydra.callbacks):
        if is_whole or is_job:
            raise raised
        print(f"lmbm {command}: {raised}\nSet HYDRA_FULL_ERROR=1 to see the traceback.", file=sys.stderr)
        sys.exit(1)
    if is_whole:
        traceback.print_exception(raised)
    print(f"lmbm {command}, job {hydra.job.num}: {raised}", file=sys.stderr)
    # Remove the job's folder, which Hydra makes before the job begins, if it is empty.
    with suppress(OSError):
        Path(hydra.runtime.output_dir).rmdir()


def check_callbacks(config: DictConfig) -> None:
    """Raise ValueError for settings of callbacks that the chosen configurations do not include."""
    hydra = HydraConfig.get()
    asked = [each.partition("=")[2] for each in hydra.overrides.task if each.startswith("callbacks=")]
    # A choice of several configurations is only in the overrides, because Hydra does not record it.
    chosen = asked[-1] if asked else hydra.runtime.choices.get("callbacks")
    nodes = dict(config.get("callbacks") or {})
    absent = [name for name, node in nodes.items() if isinstance(node, DictConfig) and "_target_" not in node]
    added = [name for name in str(chosen).strip("[]").replace(" ", "").split(",") if name]
    if not absent or not WHOLE.keys().isdisjoint(added):
        return
    folder = Path(CONFIGURATION, "callbacks")
    for name, parts in WHOLE.items():
        held = {key for part in parts for key in OmegaConf.load(folder / f"{part}.yaml")}
        if held.issuperset(absent):
            raise ValueError(
                f"callbacks: expected all callbacks with settings ({', '.join(absent)}), got only {chosen}; "
                f"write 'callbacks=[{','.join([name, *added])}]'"
            )
