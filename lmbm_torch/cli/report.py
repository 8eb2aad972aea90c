"""A report on a trained model and labelled rows, as an HTML page, or as markdown with separate figures.

lmbm report runs/…/ --output report.html             # on the test part of the run's own data
lmbm report runs/…/ other.csv --output report.md     # on other labelled rows
lmbm report runs/…/ --output README.md --card        # as a model card, with metadata for model hubs
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lmbm_torch.cli.options import (
    binding,
    check_files,
    chosen,
    file_parser,
    labelled_rows,
    opened_model,
    parse,
    test_file,
    title,
)

ENDINGS = (".html", ".md")


def main(arguments: Sequence[str] | None = None) -> None:
    """Read a model and labelled rows, decode, compare, and write a page."""
    parser = file_parser("report", __doc__, nargs="?")
    parser.add_argument("--output", type=Path, required=True, help="the .html or .md file to write")
    parser.add_argument("--card", action="store_true", help="write a model card (a .md file)")
    options = parse(parser, arguments)
    if options.output.suffix not in ENDINGS:
        parser.error(f"--output: expected a file ending in {' or '.join(ENDINGS)}, got {options.output}")
    if options.card and options.output.suffix != ".md":
        parser.error(f"--card: expected --output to end in .md, got {options.output}")
    check_files(parser, options)
    from rich.console import Console

    from lmbm_torch.cli.showing import print_measured
    from lmbm_torch.prediction import reading
    from lmbm_torch.prediction.findings import findings
    from lmbm_torch.reports import pages

    write = {".html": pages.write_html, ".md": pages.write_markdown}[options.output.suffix]
    try:
        saved = opened_model(options)
        if saved.is_sequential:
            from lmbm_torch.cli import sequences

            sequences.report(options, saved, write)
            return
        saved, decoder = chosen(options, saved)
        data = labelled_rows(options, saved)
        rows = reading.rows_of(data, options.part)
        # Training labels are known only if the data of the run are read, not a file.
        trained_on = data.labels[data.train] if options.file is None and len(data.train) else None
        found = findings(saved, data, rows, decoder, trained_on)
        bound = binding(options, saved, data.features_at(rows))
        page = pages.report(title(options, data, len(rows)), saved, found, bound or ())
        page = pages.card(page, data.name) if options.card else page
        write(page, options.output, "w" if options.force else "x")
    except (ValueError, OSError) as error:
        parser.error(str(error))
    print_measured(data, rows, test_file(options))
    Console().print(f"wrote {options.output}", soft_wrap=True, highlight=False)


if __name__ == "__main__":
    main()
