"""The command ``lmbm``; the first argument is the name of the command to run."""

from __future__ import annotations

import gc
import os
import runpy
import sys

from lmbm_torch import __version__
from lmbm_torch.extras import naming_extras

COMMANDS = {
    "train": "train a model: lmbm train experiment=seven_segment_lmsbn",
    "predict": "predict new rows: lmbm predict runs/… new.csv --output tags.csv",
    "evaluate": "measure a model on labelled rows: lmbm evaluate runs/… labelled.csv",
    "report": "write a page about a model: lmbm report runs/… --output report.html",
    "compare": "compare all families and the usual peers: lmbm compare data=scene",
    "reproduce": "compute a table of a paper, in a clone: lmbm reproduce table=lmbm_2009",
    "compile": "compile the kernels beforehand, as while an image is built: lmbm compile",
}
HELP = "\n".join(
    [
        "usage: lmbm COMMAND …",
        "",
        *(f"  {name:<10} {words}" for name, words in COMMANDS.items()),
        "",
        "lmbm COMMAND --help lists what a command takes. --config-dir FOLDER adds configuration files of",
        "your own to those of train, compare and reproduce: FOLDER/experiment/mine.yaml is experiment=mine.",
    ]
)


def main() -> None:
    """Run the command in the arguments of the process, as ``python -m`` would run the module.

    If the output is closed early, for instance by ``| head``, the command ends with status 1.
    """
    try:
        try:
            _run()
        finally:
            sys.stdout.flush()
            # The process ends now: without freeze, a last garbage collection would take half a second.
            gc.freeze()
    except BrokenPipeError:
        # Redirect the output; otherwise Python would write the rest at the exit, and report an error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def _run() -> None:
    command = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if command in ("-h", "--help"):
        print(HELP)
    elif command == "--version":
        print(f"lmbm_torch {__version__}")
    elif command not in COMMANDS:
        sys.exit(f"lmbm: expected one of {', '.join(COMMANDS)}, got {command!r}")
    else:
        del sys.argv[1]
        try:
            # The command runs as the main module, so that Lightning can start further processes.
            with naming_extras():
                runpy.run_module(f"{__package__}.{command}", run_name="__main__", alter_sys=True)
        except ModuleNotFoundError as error:
            if "lmbm-torch[" not in str(error):
                raise
            sys.exit(f"lmbm {command}: {error}")
