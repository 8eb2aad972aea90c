"""Labels by hand: a page on this machine that shows rows, a model's answers, and what each label changes.

python examples/annotate runs/…/ new.csv --output labelled.csv     # then open the address that is printed
python examples/annotate model.safetensors new.csv --output labelled.csv --port 8001

The output has the table's columns and those of the labels, with empty cells where labels are not known:
`lmbm train data=table` reads it. It is written after each row; started again, the command goes on with it.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lmbm_torch.cli.options import chosen, file_parser, opened_model, with_rules_of_run

# Python runs the folder, whose modules are this package's.
sys.path.insert(0, str(Path(__file__).parents[1]))

if TYPE_CHECKING:
    from annotate.session import Session

PORT = 8000


def main(arguments: Sequence[str] | None = None) -> None:
    """Read, warm up, serve."""
    parser = file_parser("annotate", __doc__)
    parser.prog = "python examples/annotate"
    parser.add_argument("--output", type=Path, required=True, help="the .csv or .tsv file to write")
    parser.add_argument("--port", type=int, default=PORT, help=f"of the page (default: {PORT})")
    options = with_rules_of_run(parser.parse_args(arguments))
    if not 1 <= options.port <= 65535:
        parser.error(f"--port: expected one of 1 to 65535, got {options.port}")
    # At use: whatever the command line gets wrong is answered before.
    import torch

    from annotate import app
    from lmbm_torch.kernels.threads import single_threaded

    try:
        session = opened(options)
        session.warm_up()
    except (ValueError, OSError) as error:
        parser.error(str(error))
    print(f"http://{app.HOST}:{options.port} writes {options.output}; Ctrl-C ends it", flush=True)
    # A row is soon answered by one thread; several wait for each other where others have the cores.
    torch.set_num_threads(1)
    with single_threaded():
        app.serve(session, options.port)


def opened(options: Namespace) -> Session:
    """The table and the model, and what an earlier session has written of it.

    Raises:
        FileNotFoundError: no model or no table.
        ValueError: either cannot be read; an output of another table, or of another ending.
    """
    from annotate.completions import Completer
    from annotate.session import ENDINGS, Rows, Session, continued

    if options.part not in (None, "all"):
        raise ValueError(f"--part: expected all rows of a table, which has no parts, got {options.part}")
    if options.output.suffix not in ENDINGS:
        raise ValueError(f"--output: expected a file ending in {' or '.join(ENDINGS)}, got {options.output}")
    if options.output.resolve() == options.file.resolve():
        raise ValueError(f"--output: expected another file than the table itself, got {options.output}")
    saved, decoder = chosen(options, opened_model(options))
    rows = Rows.read(options.file, saved, options.delimiter)
    completer = Completer(saved, decoder)
    if not options.output.exists():
        return Session(completer, saved.label_names, rows, options.output, rows.labels)
    if options.force:
        return Session(completer, saved.label_names, rows, options.output, rows.labels, "w")
    try:
        labels = continued(options.output, rows, saved.label_names)
    except ValueError as error:
        raise ValueError(f"--output: {error}; --force starts it anew") from error
    return Session(completer, saved.label_names, rows, options.output, labels, "w")


if __name__ == "__main__":
    main()
