"""Metrics of a trained model on a labelled file.

The labels compared are those of exact hinge decoding, or the most probable ones, whatever the training was
monitored by.

python scripts/evaluate.py runs/…/ data.csv
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from console import chosen, file_parser, parse, print_metrics

from lmbm_torch.training import prediction
from lmbm_torch.training.reports import write_metrics


def main(arguments: Sequence[str] | None = None) -> None:
    """Read, decode, compare."""
    parser = file_parser(__doc__)
    parser.add_argument("--output", type=Path, help="a JSON file to write the metrics to as well")
    options = parse(parser, arguments)
    try:
        saved, decoder = chosen(options)
        data = prediction.read(options.file, saved, options.delimiter)
        rows = prediction.rows_of(data, options.part)
        metrics = prediction.evaluate(saved, data, rows, decoder)
        if options.output is not None:
            write_metrics(options.output, metrics)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    print_metrics(f"{options.model} on {options.file}", metrics)


if __name__ == "__main__":
    main()
