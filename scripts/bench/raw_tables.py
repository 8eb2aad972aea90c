"""Raw tables: a fit to a data frame of numbers, words, holes and texts, beside a chain of scikit-learn's.

``flags`` (129 training rows) with its nominal columns as words and every 20th cell missing, and the texts of
``goemotions`` (first rows of the published training part, all of the test part) beside their length in
characters. Ours is ``LMSBNClassifier().fit(frame, Y)``; scikit-learn's is a ``ColumnTransformer`` of
imputers, a scaler, a one-hot encoder and tf-idf, written by hand for each table, with
``MultiOutputClassifier`` of logistic regressions. CPU seconds of the encoding alone (fit and transform of the
training part), of the whole fit and of the predictions for the test part; exact match and sample F1 of the
test part.

    LMBM_DATA=… OMP_NUM_THREADS=1 python scripts/bench/raw_tables.py [--texts 5000]
"""

from __future__ import annotations

import gzip
import time
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
from measuring import described, seconds, show, table, told, write_csv
from sklearn.compose import make_column_transformer
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.multioutput import MultiOutputClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from lmbm_torch.data import TableEncoder
from lmbm_torch.data.named import data_folder
from lmbm_torch.estimators import LMSBNClassifier

WORDS = ("landmass", "zone", "language", "religion")
HOLES = 0.05
Split = tuple[Any, ...]


def main() -> None:
    parser = described(__file__, __doc__)
    parser.add_argument("--texts", type=int, default=5000)
    arguments = parser.parse_args()
    rows = []
    for name, split in (("flags", flags()), ("goemotions", goemotions(arguments.texts))):
        # Compiles, and warms up.
        LMSBNClassifier(random_state=0).fit(split[0][:100], split[2][:100])
        rows += [told({"table": name, **row}) for row in compared(*split)]
    with table(arguments.output, arguments.name):
        write_csv(arguments.output / "table.csv", rows)
    show(rows, "Raw tables")


def flags() -> Split:
    """The published split, nominal columns as words, and holes."""
    with np.load(data_folder() / "flags" / "flags.npz", allow_pickle=False) as archive:
        names, labels = archive["feature_names"].tolist(), archive["label_names"].tolist()
        parts = [archive[f"{kind}_{part}"] for kind in "xy" for part in ("train", "test")]
    random = np.random.default_rng(0)
    frames = []
    for values in parts[:2]:
        frame = pd.DataFrame(values.astype(np.float64), columns=names)
        for column in WORDS:
            frame[column] = [f"{column} {value:.0f}" for value in frame[column]]
        frames.append(frame.mask(random.random(frame.shape) < HOLES))
    return *frames, *(pd.DataFrame(each.astype(int), columns=labels) for each in parts[2:])


def goemotions(count: int) -> Split:
    """The first training rows, and the test part."""
    folder = data_folder() / "goemotions"
    names = (folder / "labels.txt").read_text().split()
    parts = [_comments(folder / f"{part}.tsv.gz", names) for part in ("train", "test")]
    return parts[0][0][:count], parts[1][0], parts[0][1][:count], parts[1][1]


def _comments(file: Path, names: list[str]) -> tuple[pd.DataFrame, pd.DataFrame]:
    with gzip.open(file, "rt", encoding="utf-8", newline="\n") as stream:
        lines = [line.rstrip("\n").split("\t") for line in stream]
    labels = np.zeros((len(lines), len(names)), np.int64)
    for row, (_, emotions, *_) in enumerate(lines):
        labels[row, [int(number) for number in emotions.split(",")]] = 1
    texts = [text for text, *_ in lines]
    frame = pd.DataFrame({"comment": texts, "characters": [*map(len, texts)]})
    return frame, pd.DataFrame(labels, columns=names)


def peer(frame: pd.DataFrame) -> Any:
    """The transformer of a frame's columns, as one writes it by hand."""
    numbers = [name for name in frame if frame[name].dtype.kind in "if"]
    words = [name for name in frame if name in WORDS]
    return make_column_transformer(
        (make_pipeline(SimpleImputer(strategy="median"), StandardScaler()), numbers),
        (
            make_pipeline(SimpleImputer(strategy="most_frequent"), OneHotEncoder(handle_unknown="ignore")),
            words,
        ),
        *((TfidfVectorizer(min_df=2), name) for name in frame if name == "comment"),
    )


def compared(
    train: pd.DataFrame, test: pd.DataFrame, Y: pd.DataFrame, truth: pd.DataFrame
) -> list[dict[str, Any]]:
    """A row for each of the two."""
    logistic = MultiOutputClassifier(LogisticRegression(max_iter=1000))
    ways: dict[str, tuple[Any, Any]] = {
        "LMSBNClassifier": (TableEncoder(), LMSBNClassifier(random_state=0)),
        "scikit-learn": (peer(train), make_pipeline(peer(train), logistic)),
    }
    found = []
    for name, (encoder, model) in ways.items():
        row: dict[str, Any] = {
            "method": name,
            "rows": len(train),
            "features": encoder.fit_transform(train).shape[1],
        }
        row["encoding_s"] = seconds(lambda encoder=encoder: encoder.fit_transform(train), time.process_time)
        row["fit_s"] = seconds(lambda model=model: model.fit(train, Y), time.process_time)
        row["predict_s"] = seconds(lambda model=model: model.predict(test), time.process_time)
        answer = np.asarray(model.predict(test))
        row["exact_match"] = (answer == truth.to_numpy()).all(1).mean()
        row["sample_f1"] = f1_score(truth, answer, average="samples", zero_division=cast(Any, 1.0))
        found.append(row)
    return found


if __name__ == "__main__":
    main()
