"""Figures of sequences in one table, from the kept tables of the scripts that measure.

``crfsuite.py``, ``crf_layer.py`` and ``letters.py`` measure the rows, ``lmbm reproduce table=m3n_2003`` the
ten folds of ocr_letters. ``ratio`` is ours by the peer's. Keep the table of this script anew after any
of these tables.

    python scripts/bench/sequences.py
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from measuring import described, show, table, told, write_csv

RESULTS = Path(__file__).parents[2] / "results"
PEERS = "CRFsuite", "sklearn-crfsuite"
FOLDS = {"CRF": "ChainCRF", "M3N, linear": "ChainSVM", "M3N, RBF kernel": "ChainSVM with an RBF kernel"}


def kept(name: str) -> list[dict[str, str]]:
    with (RESULTS / f"{name}.csv").open(encoding="utf-8", newline="") as stream:
        return [*csv.DictReader(stream)]


def row(data: str, figure: str, ours: str, peer: str = "", beside: str = "") -> dict[str, Any]:
    """Return a row; a ratio of numbers other than qualities, which are at most 1."""
    ratio = ""
    if beside and ours and float(beside) > 1:
        ratio = round(float(ours) / float(beside), 3)
    return {"data": data, "figure": figure, "ours": ours, "peer": peer, "beside": beside, "ratio": ratio}


def tagging() -> Iterator[dict[str, Any]]:
    """Yield the figures beside CRFsuite, of each data set and penalties."""
    rows = kept("bench/crfsuite")
    for own in (each for each in rows if each["method"] == "ChainCRF"):
        peers = [
            each
            for each in rows
            if each["method"] in PEERS and all(each[key] == own[key] for key in ("data", "c1", "c2"))
        ]
        data = f"{own['data']} (c1 {float(own['c1']):g}, c2 {float(own['c2']):g})"
        for peer in peers or [{"method": "", "f1": "", "cpu_seconds": ""}]:
            name = peer["method"]
            yield row(data, "F1 of chunks or entities", own["f1"], name, peer["f1"])
            yield row(data, "CPU s of training", own["cpu_seconds"], name, peer["cpu_seconds"])
            if not name:
                continue
            yield row(data, "objective at the end", own["objective"], name, peer["objective"])
            if own["reached"]:
                figure = "CPU s until the objective is below CRFsuite's"
                yield row(data, figure, own["reached"], name, peer["cpu_seconds"])
            rate = "short sentences a CPU s"
            yield row(data, rate, own["sentences_a_second"], name, peer["sentences_a_second"])


def layer() -> Iterator[dict[str, Any]]:
    """Yield the figures beside pytorch-crf, by batch, length and tags."""
    for each in kept("bench/crf_layer"):
        size = " × ".join(each[key] for key in ("batch", "length", "tags"))
        for what, figure in (("step", "CPU ms of a training step"), ("decode", "CPU ms of decoding")):
            ours, beside = each[f"ours_{what}_ms"], each[f"pytorch_crf_{what}_ms"]
            yield row(f"layer, {size}", figure, ours, "pytorch-crf", beside)


def letters() -> Iterator[dict[str, Any]]:
    """Yield the shares of letters right: 2003's ten folds, and NETtalk's published parts."""
    for each in kept("m3n_2003"):
        if each["data"] == "ocr_letters" and each["method"] in FOLDS:
            figure = f"letters right, mean of ten folds, {FOLDS[each['method']]}"
            yield row("ocr_letters", figure, f"{1 - float(each['error']):.4f}")
    for each in kept("bench/letters"):
        if each["data"] != "ocr_letters":
            yield row(each["data"], f"letters right, {each['method']}", each["letters_right"])


def main() -> None:
    options = described(__file__, __doc__).parse_args()
    rows = [told(row) for row in (*tagging(), *layer(), *letters())]
    show(rows)
    with table(options.output, options.name) as folder:
        write_csv(folder / "table.csv", rows)


if __name__ == "__main__":
    main()
