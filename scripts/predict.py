"""Predictions of a trained model for new rows: names, probabilities and certificates.

python scripts/predict.py runs/…/ new.csv                              # the first rows, on the console
python scripts/predict.py runs/…/ new.csv --output predictions.csv     # all of them
python scripts/predict.py model.safetensors new.csv --top-k 3          # the three best labellings of each row
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from console import Certificates, chosen, file_parser, parse, print_rows

from lmbm_torch.checks import check_count
from lmbm_torch.data.mapped.arrays import features_at
from lmbm_torch.inference import decode, decode_hinge
from lmbm_torch.inference.results import Decoding
from lmbm_torch.prediction import answers
from lmbm_torch.prediction.saved import SavedModel

SHOWN = 20


def main(arguments: Sequence[str] | None = None) -> None:
    """Read, decode, write or show."""
    parser = file_parser(__doc__)
    parser.add_argument("--output", type=Path, help="the CSV file to write; without it, the first are shown")
    parser.add_argument("--top-k", type=int, default=1, help="labellings of each row, best first")
    options = parse(parser, arguments)
    try:
        check_count("--top-k", options.top_k)
        saved, decoder = chosen(options)
        if options.top_k > 1:
            decoder = _several(options, saved)
        data = answers.read(options.file, saved, options.delimiter)
        features = features_at(data, answers.rows_of(data, options.part))
        certificates = Certificates()
        predictions = certificates.counting(answers.predict(saved, features, decoder))
        if options.output is None:
            rows = list(answers.table_rows(saved, predictions))
            print_rows(answers.columns(saved), rows[:SHOWN], is_all=len(rows) <= SHOWN)
        else:
            mode = "w" if options.force else "x"
            answers.write_predictions(options.output, saved, predictions, mode)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    certificates.print()


def _several(options: argparse.Namespace, saved: answers.Predictor) -> Callable[[Any], Decoding]:
    if options.most_probable:
        return partial(decode, top_k=options.top_k, **options.limit)
    if isinstance(saved, SavedModel):
        return partial(decode_hinge, margin=saved.margin, top_k=options.top_k, **options.limit)
    if saved.decode_several is None:
        raise ValueError(f"--top-k: expected 1 for what this {saved.kind} optimises, or --most-probable")
    return partial(saved.decode_several, top_k=options.top_k)


if __name__ == "__main__":
    main()
