"""What a trained model is worth on labelled rows, as one HTML page, or as markdown with its figures beside.

python scripts/report.py runs/…/ --output report.html             # on the test part of the run's own data
python scripts/report.py runs/…/ other.csv --output report.md     # on other labelled rows
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from console import chosen, file_parser, parse
from rich.console import Console

from lmbm_torch.data import MultilabelData
from lmbm_torch.training import pages, prediction
from lmbm_torch.training.findings import findings

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
        data = _data(options, saved)
        rows = prediction.rows_of(data, options.part)
        found = findings(saved, data, rows, decoder)
        title = f"{options.model} on {len(rows)} rows of {data.name}"
        mode = "w" if options.force else "x"
        WRITERS[options.output.suffix](pages.report(title, saved, found), options.output, mode)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    Console().print(f"wrote {options.output}")


def _data(options: argparse.Namespace, saved: prediction.Predictor) -> MultilabelData:
    """The rows of the file, or of the run's own data, which its configuration describes.

    Raises:
        ValueError: no file and no run; or the run's own training file, of which no part is asked for.
    """
    configuration = options.model / "config.yaml"
    if not configuration.is_file():
        if options.file is None:
            raise ValueError(f"file: expected one, since {options.model} is not a run directory")
        return prediction.read(options.file, saved, options.delimiter)
    # What is not about a run needs neither Hydra nor Lightning.
    from hydra.utils import instantiate
    from omegaconf import OmegaConf

    data = OmegaConf.load(configuration).data
    if options.file is None:
        return instantiate(data).data
    trained = data.get("train")
    if options.part is None and trained is not None and Path(trained).resolve() == options.file.resolve():
        raise ValueError(
            f"file: {options.file} is what the run was trained on: leave it out for the rows that training "
            "held out, or say --part all"
        )
    return prediction.read(options.file, saved, options.delimiter)


if __name__ == "__main__":
    main()
