"""Metrics of a trained model on labelled rows.

A run decodes as it did in its training, so that its test metrics are those of its metrics.json.

python scripts/evaluate.py runs/…/                 # on the test part of the run's own data
python scripts/evaluate.py runs/…/ data.csv        # on other labelled rows
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from console import chosen, file_parser, labelled_rows, parse, print_metrics

from lmbm_torch.prediction import answers, reading
from lmbm_torch.prediction.reports import write_metrics


def main(arguments: Sequence[str] | None = None) -> None:
    """Read, decode, compare."""
    parser = file_parser(__doc__, nargs="?")
    parser.add_argument("--output", type=Path, help="a JSON file to write the metrics to as well")
    options = parse(parser, arguments)
    try:
        saved, decoder = chosen(options)
        data = labelled_rows(options, saved)
        rows = reading.rows_of(data, options.part)
        metrics = answers.evaluate(saved, data, rows, decoder)
        if options.output is not None:
            write_metrics(options.output, metrics)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    print_metrics(f"{options.model} on {len(rows)} rows of {data.name}", metrics)


if __name__ == "__main__":
    main()
