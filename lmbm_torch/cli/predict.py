"""Predictions of a trained model for new rows: names, probabilities and certificates.

lmbm predict runs/…/ new.csv                              # the first rows, on the console
lmbm predict runs/…/ new.csv --output predictions.csv     # all of them
lmbm predict model.safetensors new.csv --top-k 3          # the three best labellings of each row
lmbm predict runs/…/ parts/ --output answers/             # Parquet files in parts; goes on if interrupted
lmbm predict model.safetensors new.csv --rules rules.txt  # the best that obey rules, and which bound
lmbm predict runs/…/ new.conll --output tagged.conll      # sequences, of a run of data=conll; or a .csv
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from lmbm_torch.cli.options import binding, check_files, chosen, file_parser, opened_model, parse
from lmbm_torch.extras import uncollected

if TYPE_CHECKING:
    from lmbm_torch.cli.showing import Certificates
    from lmbm_torch.data import MultilabelData
    from lmbm_torch.prediction.answers import Prediction
    from lmbm_torch.prediction.predictor import Predictor
    from lmbm_torch.prediction.trained import Decoder

SHOWN = 20


def main(arguments: Sequence[str] | None = None) -> None:
    """Read a model and new rows, decode, and write or print predictions."""
    parser = file_parser("predict", __doc__)
    parser.add_argument(
        "--output",
        type=Path,
        help="the CSV file to write, or for Parquet a file or folder; by default the first rows are printed",
    )
    parser.add_argument("--top-k", type=int, default=1, help="number of best labellings for each row")
    options = parse(parser, arguments)
    check_files(parser, options)
    with uncollected():
        from lmbm_torch.checks import check_count
        from lmbm_torch.cli.showing import Certificates, print_rows
        from lmbm_torch.prediction import answers, reading, tables

    certificates = Certificates()
    try:
        check_count("--top-k", options.top_k)
        saved = opened_model(options)
        if saved.is_sequential:
            from lmbm_torch.cli import sequences

            sequences.predict(options, saved)
            return
        saved, decoder = chosen(options, saved, options.top_k)
        if reading.is_parquet(options.file):
            _write_parts(options, saved, decoder, certificates)
            certificates.print()
            return
        data = reading.read_unlabelled(options.file, saved, options.delimiter)
        rows = reading.rows_of(data, options.part)
        features = data.features_at(rows)
        written = reading.ids(options.file, saved, options.delimiter)
        ids = {name: [values[row] for row in rows] for name, values in written.items()}
        if (bound := binding(options, saved, features)) is not None:
            ids["bound_by"] = ["; ".join(texts) for texts in bound]
        predictions = certificates.counting(answers.predict(saved, features, decoder))
        if options.output is None:
            found = list(tables.table_rows(saved, predictions, ids))
            names = tables.columns(saved, options.top_k, [*ids])
            print_rows(names, found[:SHOWN], [*ids], is_all=len(found) <= SHOWN)
        else:
            mode = "w" if options.force else "x"
            tables.write_predictions(options.output, saved, predictions, mode, options.top_k, ids)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    certificates.print()


def _write_parts(
    options: Namespace, saved: Predictor, decoder: Decoder | None, certificates: Certificates
) -> None:
    """Read, decode and write Parquet files, one batch of rows after another."""
    from lmbm_torch.prediction import answers, parquet

    if options.output is None:
        raise ValueError("--output: expected a file or a folder for predictions of Parquet files, got none")
    if options.part not in (None, "all"):
        raise ValueError(
            f"--part: expected all rows of Parquet files, which have no parts, got {options.part}"
        )

    def answer(data: MultilabelData) -> tuple[Iterable[Prediction], parquet.Ids]:
        bound = binding(options, saved, data.features)
        beside = {} if bound is None else {"bound_by": ["; ".join(texts) for texts in bound]}
        return certificates.counting(answers.predict(saved, data.features, decoder)), beside

    mode, beside = "w" if options.force else "x", [] if saved.rules is None else ["bound_by"]
    try:
        parquet.write_predictions(
            options.file, options.output, saved, answer, mode, options.top_k, beside, _job(options)
        )
    except FileExistsError as error:
        raise ValueError(f"--output: {error}; --force overwrites it") from error


def _job(options: Namespace) -> str:
    """Return a hash of the model and the settings; a later call with an equal hash resumes the job."""
    from lmbm_torch.files import CONFIG, MODEL

    model = [options.model] if options.model.is_file() else [options.model / MODEL, options.model / CONFIG]
    found = sha256(repr((options.rule, options.limit, options.top_k)).encode())
    for file in [*model, *([] if options.rules is None else [options.rules])]:
        found.update(file.read_bytes() if file.is_file() else b"")
    return found.hexdigest()


if __name__ == "__main__":
    main()
