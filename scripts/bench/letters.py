"""Chains on letters: handwritten words (ocr_letters) and pronunciation (NETtalk's phonemes, with stresses).

Of ocr_letters one fold is trained on and the other nine are tested, as in 2003; of NETtalk the published
thousand words of either part. CPU seconds of all threads together; shares of letters and of words right.

    python scripts/bench/letters.py [--C 1.0]
"""

from __future__ import annotations

import warnings
from time import process_time
from typing import Any

import numpy as np
from measuring import described, seconds, show, table, told, write_csv

from lmbm_torch.data import load_ocr_letters
from lmbm_torch.data.named import data_folder
from lmbm_torch.estimators import ChainCRF, ChainSVM

Part = tuple[list, list]


def ocr_letters() -> tuple[Part, Part]:
    data = load_ocr_letters()
    return data.within(0), data.outside(0)


def nettalk(target: str) -> tuple[Part, Part]:
    with np.load(data_folder(None) / "nettalk" / "nettalk.npz") as archive:
        parts = []
        for part in ("train", "test"):
            ends = archive[f"word_ptr_{part}"][1:-1]
            labels = archive[f"{target}_{part}"].astype(np.int64)
            rows = archive[f"x_{part}"].astype(np.float64)
            parts.append((np.split(rows, ends), np.split(labels, ends)))
    return parts[0], parts[1]


def row(data: str, train: Part, test: Part, method: str, model: Any) -> dict[str, Any]:
    took = seconds(lambda: model.fit(*train), process_time)
    right = [p == y for p, y in zip(model.predict(test[0]), test[1], strict=True)]
    return {
        "data": data,
        "method": method,
        "cpu_seconds": round(took, 1),
        "letters_right": round(float(np.concatenate(right).mean()), 4),
        "words_right": round(float(np.mean([each.all() for each in right])), 4),
    }


def main() -> None:
    parser = described(__file__, __doc__)
    parser.add_argument("--C", type=float, default=1.0)
    warnings.simplefilter("ignore")
    options = parser.parse_args()
    methods = {"ChainCRF": ChainCRF(options.C), "ChainSVM": ChainSVM(options.C, random_state=0)}
    parts = {"ocr_letters": ocr_letters()}
    parts |= {f"nettalk, {target}": nettalk(target) for target in ("phoneme", "stress")}
    rows = [
        told(row(data, *both, method, model))
        for data, both in parts.items()
        for method, model in methods.items()
    ]
    show(rows)
    with table(options.output, options.name) as folder:
        write_csv(folder / "table.csv", rows)


if __name__ == "__main__":
    main()
