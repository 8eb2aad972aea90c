"""Tagging by a conditional random field, beside CRFsuite on the very same features and penalties.

CoNLL-2000 with windows of words and tags (338,547 indicators, 23 labels), and WNUT-17 with words, affixes,
shapes and neighbours as dictionaries, as sklearn-crfsuite's users write them. All minimise
c1 ‖w‖₁ + c2 ‖w‖² − Σ log p with every feature for every label; ours has intercepts too. ``objective`` is
that sum. CRFsuite ends by itself or after ``--iterations``; ours at its default ``tol``. Where c1 is 0,
``reached`` tells the CPU time until our objective is below CRFsuite's last one. Training is timed from
tokens or matrices to weights. ``sentences_a_second``: 50,000 sentences of at most eight tokens tagged, from
the tokens' names on, per second of CPU time. Rows ``characters`` have the n-grams of characters of each
word besides, 2 to 4 characters with the ends of the word marked. Rows ``sentence model`` have ten times the
embedding of each word by all-MiniLM-L6-v2 besides (a factor chosen on WNUT-17's development part; the time
of the embeddings is not counted), from the extra ``minilm``: matrices, which CRFsuite does not take.

CRFsuite is measured where ``pycrfsuite`` is installed (the extra ``bench``), and sklearn-crfsuite, the same
code behind scikit-learn's interface, where ``sklearn_crfsuite`` is.

    python scripts/bench/crfsuite.py [--iterations 60] [--data conll2000 wnut17]
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from time import process_time
from typing import Any, NamedTuple

import numpy as np
import torch
from measuring import described, seconds, show, table, told, write_csv
from scipy import sparse

from lmbm_torch.data import TextEncoder, load_conll2000
from lmbm_torch.data.named import data_folder
from lmbm_torch.estimators import ChainCRF
from lmbm_torch.estimators.chains.token_features import TokenFeatures
from lmbm_torch.fitting.recipe import merged
from lmbm_torch.metrics import chunk_f1
from lmbm_torch.solvers.chains.linear import LikelihoodProblem
from lmbm_torch.solvers.structural import lbfgs

SHORT, MANY = 8, 50_000
# Factor of embeddings of length 1, beside indicators: .2008 without, .4302 by 3, .4337 by 10 of the
# development part's F1.
EMBEDDED = 10.0
# c1 and c2 by data set.
PENALTIES = {
    "wnut17": ((0.0, 0.5), (0.1, 0.1)),
    "wnut17, characters": ((0.0, 0.5),),
    "wnut17, sentence model": ((0.0, 0.5),),
    "conll2000": ((0.0, 0.5),),
}
TASKS = {
    "conll2000": lambda: conll2000(),
    "wnut17": lambda: wnut17(),
    "wnut17, characters": lambda: with_characters(wnut17()),
    "wnut17, sentence model": lambda: with_embeddings(wnut17()),
}


class Task(NamedTuple):
    """Tokens of two parts, as dictionaries or matrices, the names of all features if any, and the tags."""

    X: tuple[Any, Any]
    names: Any
    y: tuple[list, list]


def conll2000() -> Task:
    data = load_conll2000()
    columns, tags = np.array(data.feature_names), np.array(data.label_names)
    parts = data.within(0), data.within(1)

    def named(rows: Any) -> list[list[str]]:
        return [columns[each].tolist() for each in np.split(rows.indices, rows.indptr[1:-1])]

    names = [[named(rows) for rows in part.features] for part in parts]
    y = [[tags[each].tolist() for each in part.labels] for part in parts]
    return Task((parts[0].features, parts[1].features), (names[0], names[1]), (y[0], y[1]))


def shape(word: str) -> str:
    return "".join("X" if c.isupper() else "x" if c.islower() else "0" if c.isdigit() else c for c in word)


def grams(word: str) -> list[str]:
    marked = f"<{word.lower()}>"
    return [marked[first : first + n] for n in (2, 3, 4) for first in range(len(marked) - n + 1)]


def described_token(words: list[str], t: int) -> dict[str, Any]:
    word = words[t]
    found: dict[str, Any] = {
        "word": word,
        "lower": word.lower(),
        "shape": shape(word)[:8],
        "start": [word[:n] for n in (1, 2, 3)],
        "end": [word[-n:] for n in (1, 2, 3)],
        "title": word.istitle(),
        "digit": any(map(str.isdigit, word)),
        "first": t == 0,
        "last": t == len(words) - 1,
    }
    for step in (-2, -1, 1, 2):
        if 0 <= t + step < len(words):
            other = words[t + step]
            found[str(step)] = {"lower": other.lower(), "shape": shape(other)[:8]}
    return found


def wnut17() -> Task:
    parts = []
    for part in ("train", "test"):
        text = (data_folder(None) / "wnut17" / f"{part}.conll").read_text(encoding="utf8")
        blocks = [
            [line.split("\t") for line in each.split("\n") if line.strip()] for each in _sentences(text)
        ]
        words = [[token[0] for token in each] for each in blocks]
        X = [[described_token(each, t) for t in range(len(each))] for each in words]
        parts.append((X, [[token[1] for token in each] for each in blocks]))
    (train, y_train), (test, y_test) = parts
    return Task((train, test), (train, test), (y_train, y_test))


def with_characters(task: Task) -> Task:
    """Return the tokens with the n-grams of their words."""
    X, X_test = (
        [[token | {"grams": grams(token["word"])} for token in sentence] for sentence in part]
        for part in task.X
    )
    return Task((X, X_test), (X, X_test), task.y)


def with_embeddings(task: Task) -> Task:
    """Return matrices of the tokens' features and the embeddings of the words."""
    words = sorted({token["word"] for part in task.X for sentence in part for token in sentence})
    vectors = EMBEDDED * np.asarray(TextEncoder("sentence").fit(words).transform(words))
    place = {word: row for row, word in enumerate(words)}
    features = TokenFeatures.of(task.X[0], 1)

    def matrices(part: list) -> list:
        rows, start, _ = features.rows(part)
        own = vectors[[place[token["word"]] for sentence in part for token in sentence]]
        whole: Any = sparse.hstack([rows, sparse.csr_array(own)], format="csr")
        return [whole[first:end] for first, end in pairwise(start)]

    return Task((matrices(task.X[0]), matrices(task.X[1])), None, task.y)


def _sentences(text: str) -> Iterator[str]:
    kept: list[str] = []
    for line in [*text.split("\n"), ""]:
        if line.strip():
            kept.append(line)
        elif kept:
            yield "\n".join(kept)
            kept = []


def f1(found: list, truth: list) -> float:
    tags = sorted({tag for each in (*found, *truth) for tag in each})
    place = {tag: index for index, tag in enumerate(tags)}

    def padded(rows: list) -> torch.Tensor:
        codes = [torch.tensor([place[tag] for tag in row]) for row in rows]
        return torch.nn.utils.rnn.pad_sequence(codes, batch_first=True, padding_value=-1)

    return round(float(chunk_f1(padded(found), padded(truth), tags)), 4)


def short(X: Any) -> list:
    """The first tokens of sentences, again and again."""
    return [X[number % len(X)][:SHORT] for number in range(MANY)]


def rate(tag: Callable[[list], object], X: Any) -> int:
    rows = short(X)
    return round(MANY / seconds(lambda: tag(rows), process_time))


def crfsuite(task: Task, c1: float, c2: float, iterations: int) -> tuple[dict[str, Any], float]:
    library = import_module("pycrfsuite")
    trainer = library.Trainer(algorithm="lbfgs", verbose=False)
    settings = {"c1": c1, "c2": c2, "max_iterations": iterations}
    trainer.set_params(settings | {"feature.possible_states": True, "feature.possible_transitions": True})
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "model")

        def train() -> None:
            for names, tags in zip(task.names[0], task.y[0], strict=True):
                trainer.append(library.ItemSequence(names), tags)
            trainer.train(file)

        took = seconds(train, process_time)
        tagger = library.Tagger()
        tagger.open(file)

        def tag(X: list) -> list:
            return [tagger.tag(library.ItemSequence(each)) for each in X]

        last = trainer.logparser.last_iteration
        found = {
            "iterations": last["num"],
            "objective": round(last["loss"], 1),
            "cpu_seconds": round(took, 1),
            "f1": f1(tag(task.names[1]), task.y[1]),
            "sentences_a_second": rate(tag, task.names[1]),
        }
    return found, last["loss"]


def sklearn_crfsuite(task: Task, c1: float, c2: float, iterations: int) -> dict[str, Any]:
    model = import_module("sklearn_crfsuite").CRF(
        c1=c1, c2=c2, max_iterations=iterations, all_possible_states=True, all_possible_transitions=True
    )
    took = seconds(lambda: model.fit(task.names[0], task.y[0]), process_time)
    return {
        "iterations": model.training_log_.last_iteration["num"],
        "objective": round(model.training_log_.last_iteration["loss"], 1),
        "cpu_seconds": round(took, 1),
        "f1": f1([*model.predict(task.names[1])], task.y[1]),
        "sentences_a_second": rate(model.predict, task.names[1]),
    }


def ours(task: Task, c1: float, c2: float, below: float | None) -> dict[str, Any]:
    model = ChainCRF(c1=c1, c2=c2)
    took = seconds(lambda: model.fit(task.X[0], task.y[0]), process_time)
    objective = model.objective_ * 2 * c2
    found = {
        "iterations": model.n_iter_,
        "objective": round(objective, 1),
        "cpu_seconds": round(took, 1),
        "f1": f1([[*each] for each in model.predict(task.X[1])], task.y[1]),
    }
    if task.names is None:
        return found | {"sentences_a_second": ""}
    by_names = (
        model if isinstance(task.X[0][0], list) else ChainCRF(c2=c2, tol=0.5).fit(task.names[0], task.y[0])
    )
    found["sentences_a_second"] = rate(by_names.predict, task.names[1])
    if below is not None:
        found["reached"] = reached(task, c2, below)
    return found


def reached(task: Task, c2: float, objective: float) -> float | None:
    """The CPU time of the training, without c1, until its objective is below another one."""
    model = ChainCRF(c2=c2, tol=0.9).fit(task.X[0], task.y[0])
    rows, codes = model._validate_fit(task.X[0], task.y[0])
    inputs, _ = merged(rows.features)
    problem = LikelihoodProblem(inputs, codes, rows.start, len(model.classes_), C=1 / (2 * c2))
    started, state = process_time(), lbfgs.init(problem)
    while state.objective * 2 * c2 > objective and state.num_iters < 200:
        state = lbfgs.update(problem, state)
    return round(process_time() - started, 1) if state.num_iters < 200 else None


def main() -> None:
    parser = described(__file__, __doc__)
    parser.add_argument("--iterations", type=int, default=60)
    parser.add_argument("--data", nargs="+", default=[*TASKS])
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    rows = []
    for name in options.data:
        task = TASKS[name]()
        for c1, c2 in PENALTIES[name]:
            head, below = {"data": name, "c1": c1, "c2": c2}, None
            if task.names and find_spec("pycrfsuite"):
                found, below = crfsuite(task, c1, c2, options.iterations)
                rows.append(told(head | {"method": "CRFsuite", **found, "reached": ""}))
            if task.names and find_spec("sklearn_crfsuite"):
                found = sklearn_crfsuite(task, c1, c2, options.iterations)
                rows.append(told(head | {"method": "sklearn-crfsuite", **found, "reached": ""}))
            rows.append(
                told(
                    head
                    | {"method": "ChainCRF", "reached": "", **ours(task, c1, c2, below if c1 == 0 else None)}
                )
            )
    show(rows)
    with table(options.output, options.name) as folder:
        write_csv(folder / "table.csv", rows)


if __name__ == "__main__":
    main()
