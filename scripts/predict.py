"""Predictions of a trained model, with their certificates, as CSV.

python scripts/predict.py runs/…/last.ckpt data.npz --output predictions.csv
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from console import file_parser, parse

from lmbm_torch.training import prediction
from lmbm_torch.training.checkpoints import load_model


def main(arguments: Sequence[str] | None = None) -> None:
    """Read, decode, write."""
    parser = file_parser(__doc__)
    parser.add_argument("--output", type=Path, required=True, help="the CSV file to write")
    options = parse(parser, arguments)
    try:
        saved = load_model(options.checkpoint)
        data = prediction.read(options.file, saved)
        features = data.features[prediction.rows_of(data, options.part)]
        mode = "w" if options.force else "x"
        decodings = prediction.decode(saved, features, options.decoder)
        prediction.write_predictions(options.output, saved, decodings, mode)
    except (ValueError, OSError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
