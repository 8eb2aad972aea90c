"""Metrics of a trained model on labelled rows.

For a run, the decoder of the training is used: the test metrics are equal to the metrics in metrics.json.

lmbm evaluate runs/…/                 # on the test part of the run's own data
lmbm evaluate runs/…/ data.csv        # on other labelled rows
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lmbm_torch.cli.options import (
    check_files,
    chosen,
    file_parser,
    labelled_rows,
    opened_model,
    parse,
    test_file,
    title,
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Read a model and labelled rows, decode, and print the metrics."""
    parser = file_parser("evaluate", __doc__, nargs="?")
    parser.add_argument("--output", type=Path, help="a JSON file to which the metrics are also written")
    options = parse(parser, arguments)
    check_files(parser, options)
    from lmbm_torch.cli.showing import print_measured, print_metrics
    from lmbm_torch.files import write_metrics
    from lmbm_torch.prediction import answers, reading

    try:
        saved = opened_model(options)
        if saved.is_sequential:
            from lmbm_torch.cli import sequences

            sequences.evaluate(options, saved)
            return
        saved, decoder = chosen(options, saved)
        data = labelled_rows(options, saved)
        rows = reading.rows_of(data, options.part)
        metrics = answers.evaluate(saved, data, rows, decoder)
        if options.output is not None:
            write_metrics(options.output, metrics)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    print_measured(data, rows, test_file(options))
    print_metrics(title(options, data, len(rows)), metrics)


if __name__ == "__main__":
    main()
