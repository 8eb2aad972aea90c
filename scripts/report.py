"""A report on a trained model and labelled rows, as one HTML page, or as markdown with its figures beside.

python scripts/report.py runs/…/ --output report.html             # on the test part of the run's own data
python scripts/report.py runs/…/ other.csv --output report.md     # on other labelled rows
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from console import chosen, file_parser, labelled_rows, parse
from rich.console import Console

from lmbm_torch.prediction import pages, reading
from lmbm_torch.prediction.findings import findings

WRITERS = {".html": pages.write_html, ".md": pages.write_markdown}


def main(arguments: Sequence[str] | None = None) -> None:
    """Read, decode, compare, write."""
    parser = file_parser(__doc__, nargs="?")
    parser.add_argument("--output", type=Path, required=True, help="the .html or .md file to write")
    options = parse(parser, arguments)
    try:
        if options.output.suffix not in WRITERS:
            raise ValueError(
                f"--output: expected a file ending in {' or '.join(WRITERS)}, got {options.output}"
            )
        saved, decoder = chosen(options)
        data = labelled_rows(options, saved)
        rows = reading.rows_of(data, options.part)
        found = findings(saved, data, rows, decoder)
        title = f"{options.model} on {len(rows)} rows of {data.name}"
        mode = "w" if options.force else "x"
        WRITERS[options.output.suffix](pages.report(title, saved, found), options.output, mode)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    Console().print(f"wrote {options.output}")


if __name__ == "__main__":
    main()
