"""Any table, one default: the automatic choice beside the peers that win elsewhere, four metrics asked for.

Ten sets, each in resampled splits, a third of the instances to test; of tmc2007_500 2,000 and 1,000, of
mediamill_subset the first ten labels. AutoLabelClassifier is fitted once for each metric. Each peer has one
search for all metrics, over its settings, the scaling of features and, where it has probabilities, one
threshold for all labels, as a practitioner would choose it for F1. The log loss is of single labels, negative
so that more is better; a peer without probabilities has none. Seconds are of the processor. Paired tests
(:mod:`lmbm_torch.compare.trials`) are against the peer that is best on the set's test parts: a
choice that nobody could have made beforehand.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from scipy import stats

from lmbm_torch.checks import check_shape
from lmbm_torch.compare.methods import METHODS, Ensemble, is_installed, takes
from lmbm_torch.compare.tables import Result
from lmbm_torch.compare.trials import corrected_t_test, holm, part
from lmbm_torch.data import MultilabelData, SevenSegment, read_npz
from lmbm_torch.data.splits import stratified_split
from lmbm_torch.estimators import AutoLabelClassifier
from reproduce.budgets import LOSS, measured, try_within
from reproduce.cells import Cell
from reproduce.peers import PEERS

METRICS = {
    "exact_match": "exact match",
    "sample_f1": "sample F1",
    "macro_f1": "macro F1",
    LOSS: "−log loss",
}
COLUMNS = {
    **{f"{key}_rank": f"{title}: average rank" for key, title in METRICS.items()},
    **METRICS,
    "seconds": "CPU s",
    "splits": "splits",
}
# The name of a metric for the automatic choice, where it is another one.
ASKED = {LOSS: "log_loss"}
AUTO = "AutoLabelClassifier"
ALL = "all sets"
TEST_FRACTION = 1 / 3
MOST = {"tmc2007_500": (2000, 1000), "ng20": (2000, 1000)}
"""Instances to train and to test, where a set has more than it may."""
FIRST_LABELS = {"mediamill_subset": 10}
SIGNIFICANT = 0.05
METHODS.update(PEERS)


def cells(
    sets: Sequence[str],
    methods: Sequence[str],
    splits: int,
    seconds: float,
    peer_seconds: float,
    folder: str,
    left_out: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> Iterator[Cell]:
    """Yield one cell for each split, set and method: all sets of a split before the next one.

    Args:
        methods: :data:`AUTO`, and names in ``METHODS``, an ensemble's base before it; those whose library is
            missing have no cells.
        seconds: of the processor, for a fit of the automatic choice.
        peer_seconds: for a peer's search.
        folder: of the data sets.
        left_out: set → methods without cells there.

    Raises:
        ValueError: a method that there is none of.
    """
    for name in methods:
        if name != AUTO and name not in METHODS:
            raise ValueError(f"methods: expected some of {[AUTO, *METHODS]}, got {name!r}")
    loaded = [load(name, folder) for name in sets]
    for split in range(splits):
        for data in loaded:
            parts = with_split(data, split)
            for name in methods:
                if name in left_out.get(data.name, ()):
                    continue
                if name == AUTO:
                    yield Cell(data.name, _trial(name, split), partial(try_automatic, parts, seconds, split))
                elif is_installed(name) and takes(name, data.features):
                    method, run = METHODS[name], partial(try_peer, parts, name, peer_seconds, split)
                    after = _trial(method.base, split) if isinstance(method, Ensemble) else None
                    yield Cell(data.name, _trial(name, split), run, after)


def load(name: str, folder: str) -> MultilabelData:
    """Return a set with all its labels or the first of them."""
    data = SevenSegment() if name == "seven_segment" else read_npz(Path(folder) / name / f"{name}.npz")
    if name not in FIRST_LABELS:
        return data
    first = FIRST_LABELS[name]
    return replace(data, labels=data.labels[:, :first], label_names=data.label_names[:first])


def with_split(data: MultilabelData, split: int) -> MultilabelData:
    """Return the set with the parts of a split, which the set's own are not."""
    random = np.random.default_rng(split)
    parts = stratified_split(data.labels, TEST_FRACTION, split)
    most = MOST.get(data.name, (None, None))
    return data.with_split(
        *(np.sort(random.permutation(rows)[:count]) for rows, count in zip(parts, most, strict=True))
    )


def try_automatic(data: MultilabelData, seconds: float, split: int) -> Result:
    """Return each metric on the test part, of a fit that was asked for it."""
    X, Y = part(data, data.train)
    tests, truth = part(data, data.test)
    result: Result = {"name": AUTO, "_fit_seconds": {}, "_chosen": {}, "_test_per_train": len(truth) / len(Y)}
    started = time.process_time()
    for metric in METRICS:
        began = time.process_time()
        # Other work on the machine is not to decide how much is tried.
        model = AutoLabelClassifier(
            ASKED.get(metric, metric), time_budget=seconds, clock=time.process_time, random_state=split
        ).fit(X, Y)
        result["_fit_seconds"][metric] = time.process_time() - began
        result |= measured(LOSS if metric == LOSS else None, answer_of(model, tests, metric), truth, [metric])
        members = [row for row in model.table_ if row["weight"] > 0]
        result["_chosen"][metric] = {
            "value": model.best_score_,
            "tried": len(model.table_),
            "members": members,
        }
    return {**result, "seconds": time.process_time() - started}


def answer_of(model: Any, X: Any, metric: str) -> np.ndarray:
    """Return what a metric is of: labels (instances, labels), or probabilities."""
    return model.predict_proba(X) if metric == LOSS else model.predict(X)


def try_peer(
    data: MultilabelData, name: str, seconds: float, split: int, base: Result | None = None
) -> Result:
    """Return each metric on the test part, of the settings that were chosen for it."""
    return {"name": name, **try_within(data, name, list(METRICS), seconds, split, base)}


def summary(results: Sequence[Result]) -> list[Result]:
    """Return a row for each method over all sets, and one for each set and method: means over its splits.

    Of each set those splits count on which every method that takes it is done. In the rows of the automatic
    choice ``p_<metric>`` is that of the corrected t-test against the peer that is best on the set, adjusted
    by Holm's method for all sets. In the rows of peers over all sets ``ranks_p_<metric>`` is that of
    Wilcoxon's signed ranks of the automatic choice and the peer over sets, adjusted by Holm's method for all
    peers.
    """
    by_set = {name: _complete(results, name) for name in dict.fromkeys(each["data"] for each in results)}
    rows = [row for name, trials in by_set.items() for row in _rows_of(name, trials)]
    methods = list(dict.fromkeys(row["method"] for row in rows))
    for metric in METRICS:
        own = [row for row in rows if row["method"] == AUTO and f"p_{metric}" in row]
        adjusted = holm(np.array([row[f"p_{metric}"] for row in own]))
        for row, p_value in zip(own, adjusted.tolist(), strict=True):
            row[f"p_{metric}"] = p_value
    whole = [_over_sets(method, rows) for method in methods]
    for metric in METRICS:
        peers = [row for row in whole if row["method"] != AUTO and metric in row]
        found = [_signed_ranks(row["method"], rows, metric) for row in peers]
        for row, p_value in zip(peers, holm(np.array(found)).tolist(), strict=True):
            row[f"ranks_p_{metric}"] = p_value
    return whole + rows


def note(
    results: Sequence[Result],
    methods: Sequence[str],
    seconds: float,
    peer_seconds: float,
    left_out: Mapping[str, Sequence[str]] = MappingProxyType({}),
    **_: Any,
) -> str:
    """Return the protocol, and the automatic choice beside the best peers."""
    rows = summary(results)
    missing = [name for name in methods if name != AUTO and not is_installed(name)]
    sentences = [
        "Means over splits, a third of the instances in the test part. Seconds of the processor: "
        f"{seconds:g} for each fit of {AUTO}, one for each metric; {peer_seconds:g} for each peer's search, "
        "one for all metrics, its first setting and its training not counted."
        + f" Not installed: {', '.join(missing)}." * bool(missing)
        + "".join(f" Left out of {name}: {', '.join(each)}." for name, each in left_out.items())
    ]
    sentences += [_verdict(rows, metric, title) for metric, title in METRICS.items()]
    return "\n\n".join(filter(None, sentences))


Trials = Mapping[str, Sequence[Result]]
"""Method → its results on the splits of one set, in the same order."""


def _complete(results: Sequence[Result], name: str) -> Trials:
    """Return the results on a set, of the splits on which every method is done."""
    found: dict[str, dict[str, Result]] = {}
    for each in results:
        if each["data"] == name:
            found.setdefault(each["name"], {})[each["method"].rsplit(" ", 1)[1]] = each
    splits = sorted(set.intersection(*(set(each) for each in found.values())))
    return {method: [each[split] for split in splits] for method, each in found.items()}


def _rows_of(name: str, trials: Trials) -> list[Result]:
    rows = {method: {"data": name, "method": method, "splits": len(each)} for method, each in trials.items()}
    if not all(trials.values()):
        return []
    for metric in METRICS:
        values = {
            method: np.array([each[metric] for each in own])
            for method, own in trials.items()
            if all(metric in each for each in own)
        }
        ranks = stats.rankdata([-each.mean() for each in values.values()]).tolist()
        for (method, each), rank in zip(values.items(), ranks, strict=True):
            rows[method] |= {metric: float(each.mean()), f"_{metric}_rank": rank}
            if len(each) > 1:
                rows[method][f"{metric}_deviation"] = float(each.std(ddof=1))
        peers = [method for method in values if method != AUTO]
        if AUTO in values and peers and len(values[AUTO]) > 1:
            best = max(peers, key=lambda method: values[method].mean())
            ratio = trials[AUTO][0]["_test_per_train"]
            rows[AUTO] |= {
                f"best_peer_{metric}": best,
                f"p_{metric}": corrected_t_test(values[AUTO], values[best], ratio),
                f"margin_{metric}": float(values[AUTO].mean() - values[best].mean()),
            }
    for method, own in trials.items():
        rows[method]["seconds"] = float(np.mean([each["seconds"] for each in own]))
    return list(rows.values())


def _over_sets(method: str, rows: Sequence[Result]) -> Result:
    """Return means over the sets that the method takes; of ranks and of metrics."""
    own = [row for row in rows if row["method"] == method]
    means: Result = {
        "data": ALL,
        "method": method,
        "sets": len(own),
        "splits": min(row["splits"] for row in own),
    }
    for key in (*METRICS, *(f"_{metric}_rank" for metric in METRICS), "seconds"):
        if all(key in row for row in own):
            means[key.removeprefix("_")] = float(np.mean([row[key] for row in own]))
    return means


def signed_ranks(first: np.ndarray, second: np.ndarray) -> float:
    """Return the two-sided p-value for equal medians over data sets, by Wilcoxon's signed-rank test.

    Demšar (2006), section 3.1.3, recommends this test for two methods on several data sets.

    Args:
        first, second: ``(sets,)``, values of two methods on the same data sets; if all are equal, p is 1.
    """
    check_shape("second", second, len(first))
    differences = np.subtract(first, second)
    if not differences.any():
        return 1.0
    found: Any = stats.wilcoxon(differences)
    return float(found.pvalue)


def critical_difference(num_methods: int, num_sets: int, level: float = 0.05) -> float:
    """Return the smallest significant difference of average ranks, by Nemenyi's test.

    The value is q √(k (k + 1) / (6 N)) for k methods and N data sets; q is the quantile of the studentized
    range divided by √2 (Demšar 2006, section 3.2.2).
    """
    quantile = stats.studentized_range.ppf(1 - level, num_methods, np.inf) / np.sqrt(2)
    return float(quantile * np.sqrt(num_methods * (num_methods + 1) / (6 * num_sets)))


def _signed_ranks(peer: str, rows: Sequence[Result], metric: str) -> float:
    """Return the p-value of equal medians of the automatic choice and a peer, over the peer's sets."""
    own, others = (
        {row["data"]: row[metric] for row in rows if row["method"] == method and metric in row}
        for method in (AUTO, peer)
    )
    shared = [name for name in others if name in own]
    return signed_ranks(np.array([own[name] for name in shared]), np.array([others[name] for name in shared]))


def _verdict(rows: Sequence[Result], metric: str, title: str) -> str:
    """Return a sentence on the automatic choice in one metric; empty before there are two splits."""
    whole = {row["method"]: row for row in rows if row["data"] == ALL}
    tested = [row for row in rows if f"p_{metric}" in row]
    peers = (
        [
            row
            for name, row in whole.items()
            if name != AUTO and row["sets"] == whole[AUTO]["sets"] and metric in row
        ]
        if tested
        else []
    )
    if not peers:
        return ""
    best = max(peers, key=lambda row: row[metric])
    significant = [row for row in tested if row[f"p_{metric}"] < SIGNIFICANT]
    better = [row["data"] for row in significant if row[f"margin_{metric}"] > 0]
    worse = [row["data"] for row in significant if row[f"margin_{metric}"] < 0]
    rank = f"{metric}_rank"
    next_best = min(peers, key=lambda row: row[rank])
    not_told_apart = [row["method"] for row in peers if row[f"ranks_p_{metric}"] >= SIGNIFICANT]
    lost = [row["data"] for row in tested if row[f"margin_{metric}"] < 0]
    apart = critical_difference(sum(rank in row for row in whole.values()), whole[AUTO]["sets"])
    return (
        f"{title}: average rank {whole[AUTO][rank]:.2f}, the best peer's {next_best[rank]:.2f} "
        f"({next_best['method']}); mean {whole[AUTO][metric] - best[metric]:+.3f} beside the best single "
        f"peer ({best['method']}). Beside each set's best peer significantly better on {len(better)} "
        f"({', '.join(better) or 'none'}) and worse on {len(worse)} ({', '.join(worse) or 'none'}) "
        f"of {len(tested)} sets; behind that peer on {len(lost)} ({', '.join(lost) or 'none'}). Average "
        f"ranks differ significantly by {apart:.2f} or more (Nemenyi); signed ranks over sets do not tell it "
        f"from {', '.join(not_told_apart) or 'no peer'} (Wilcoxon, Holm, p ≥ {SIGNIFICANT:g})."
    )


def _trial(name: str, split: int) -> str:
    return f"{name}, split {split}"
