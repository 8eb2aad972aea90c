"""Predictions of a trained model for new rows: names, probabilities and certificates.

lmbm predict runs/…/ new.csv                              # the first rows, on the console
lmbm predict runs/…/ new.csv --output predictions.csv     # all of them
lmbm predict model.safetensors new.csv --top-k 3          # the three best labellings of each row
lmbm predict model.safetensors new.csv --rules rules.txt  # the best that obey rules, and which bound
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lmbm_torch.cli.options import binding, chosen, file_parser, parse

SHOWN = 20


def main(arguments: Sequence[str] | None = None) -> None:
    """Read, decode, write or show."""
    parser = file_parser("predict", __doc__)
    parser.add_argument("--output", type=Path, help="the CSV file to write; without it, the first are shown")
    parser.add_argument("--top-k", type=int, default=1, help="labellings of each row, best first")
    options = parse(parser, arguments)
    # At use: whatever the command line gets wrong is answered before.
    from lmbm_torch.checks import check_count
    from lmbm_torch.cli.showing import Certificates, print_rows
    from lmbm_torch.data.mapped.arrays import features_at
    from lmbm_torch.prediction import answers, reading, tables

    try:
        check_count("--top-k", options.top_k)
        saved, decoder = chosen(options, options.top_k)
        data = reading.read_unlabelled(options.file, saved, options.delimiter)
        rows = reading.rows_of(data, options.part)
        features = features_at(data, rows)
        written = reading.ids(options.file, saved, options.delimiter)
        ids = {name: [values[row] for row in rows] for name, values in written.items()}
        if (bound := binding(options, saved, features)) is not None:
            ids["bound_by"] = ["; ".join(texts) for texts in bound]
        certificates = Certificates()
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


if __name__ == "__main__":
    main()
