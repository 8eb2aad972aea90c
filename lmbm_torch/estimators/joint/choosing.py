"""The choice of a joint head by cross-validation: structure, penalties and, if better, a simple rule.

All candidates learn from the same folds. For each structure the penalties are tried from the strongest to the
weakest; each fit starts from the parameters of the fit before. The penalty, and then the structure, with the
smallest log loss of whole label vectors on held-out rows is chosen, because log losses vary less over folds
than metrics. Finally the metric decides between the structure and the simple rules of :mod:`.rules`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np
import torch

from lmbm_torch.estimators.joint import rules
from lmbm_torch.estimators.joint.likelihood import Parameters, fit_counts, fit_network
from lmbm_torch.inference import decode_expected
from lmbm_torch.inference.common.results import Decoding
from lmbm_torch.inference.search import mixture
from lmbm_torch.memory import part_bytes

STRUCTURES = ("independent", "cardinality", "network")
# With more labels "auto" tries no networks: training time grows with the cube of the number of labels.
NETWORK_LABELS = 100
METRICS = ("exact_match", "f1", "jaccard", "hamming", *rules.OF_LABELS, "log_loss")
# Penalties to try for slopes and offsets, strongest first; the first penalty keeps the scores unchanged.
COUNT_PATH = (1e8, 100.0, 10.0, 1.0)
# Pairs of penalties to try for networks, strongest first: on the weights of the labels' log-odds, and on the
# weights of earlier labels.
NETWORK_PATH = ((1e3, 30.0), (1e3, 3.0), (300.0, 1.0), (100.0, 1.0), (30.0, 1.0), (10.0, 0.3), (3.0, 0.3))
# With fewer rows than HELD_OUT, cross-validation is repeated with different folds, at most DIVISIONS times.
HELD_OUT, DIVISIONS = 1000, 2
# Limits for expected metrics under networks: number of most probable labellings to enumerate, and number of
# samples that stand for all other labellings; predictions have larger limits than held-out rows of folds.
ANSWER_LIMITS = {"max_labellings": 1000, "num_samples": 1000}
FOLD_LIMITS = {"max_labellings": 100, "num_samples": 200}
# Largest number of labels for which the probabilities of all labellings are compared in place of a search,
# which takes 5 to 10 times as long for 4 to 7 labels (scripts/bench/joint_heads.py).
ENUMERATED = 8
# Memory, in bytes, for tables of conditional log-odds; rows are processed in chunks of this size.
CHUNK_BYTES = 2**27

Folds = Sequence[tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True, eq=False)
class Rows:
    """The log-odds, labels and weights of some rows.

    Args:
        log_odds: (rows, labels), log-odds of single labels.
        labels: (rows, labels) in {0, 1, NaN}, the true labels.
        weights: (rows,), sample weights.
    """

    log_odds: np.ndarray
    labels: np.ndarray
    weights: np.ndarray

    def some(self, rows: np.ndarray) -> Rows:
        """Return the rows with the given indices."""
        return Rows(self.log_odds[rows], self.labels[rows], self.weights[rows])


@dataclass(frozen=True)
class Choice:
    """The chosen structure, penalties and rule, with the scores of all candidates on held-out rows.

    Args:
        structure: the structure with the smallest log loss, such as ``"cardinality"``.
        penalties: for each structure the index of the best penalty among the tried penalties.
        rule: name of the simple rule, if better by the metric than the joint distribution; else None.
        values: the metric's value for the structure and each rule, by name; empty if the metric is log loss.
        log_losses: log loss of each structure with the best penalty.
    """

    structure: str
    penalties: dict[str, int]
    rule: str | None
    values: dict[str, float] = field(default_factory=dict)
    log_losses: dict[str, float] = field(default_factory=dict)


def path(structure: str, rows: Rows, start: Parameters, orderings: np.ndarray) -> Iterator[Parameters]:
    """Fit a structure with each penalty, strongest first, and yield the parameters for each penalty.

    Args:
        start: parameters of :func:`unfitted`; for networks the fitted parameters of ``"cardinality"``.
        orderings: orders of the labels for networks, (orders, labels).
    """
    own = COUNT_PATH[1]
    for penalty in NETWORK_PATH if structure == "network" else COUNT_PATH:
        if isinstance(penalty, tuple):
            start = fit_network(*_arrays(rows), start, orderings, (own, *penalty))
        else:
            start = fit_counts(*_arrays(rows), penalty, start)
        yield start


def unfitted(structure: str, rows: Rows) -> Parameters:
    """Return the parameters before training: scores stay unchanged and all count weights are 0."""
    num_labels = rows.labels.shape[1]
    # Add a count weight for more labels than occur in any row; it is shared by all larger numbers.
    largest = 0 if structure == "independent" else min(int(np.nansum(rows.labels, 1).max()) + 1, num_labels)
    return Parameters.unchanged(num_labels, largest)


def at_penalty(structure: str, rows: Rows, penalties: dict[str, int], orderings: np.ndarray) -> Parameters:
    """Fit a structure with the chosen penalty, the one of index ``penalties[structure]``."""
    by_number = "cardinality" if structure == "network" else structure
    start = fit_counts(*_arrays(rows), COUNT_PATH[penalties[by_number]], unfitted(by_number, rows))
    if structure != "network":
        return start
    return fit_network(*_arrays(rows), start, orderings, (COUNT_PATH[1], *NETWORK_PATH[penalties["network"]]))


def orders(rows: Rows, seed: int, num_orders: int) -> np.ndarray:
    """Return orders of the labels, (orders, labels): the first by decreasing frequency, the others random.

    Random orders permute the order by frequency, so the columns' order has no influence.
    """
    known = rows.weights @ ~np.isnan(rows.labels)
    frequency = rows.weights @ np.nan_to_num(rows.labels) / np.maximum(known, np.finfo(float).tiny)
    first = np.argsort(-frequency, kind="stable")
    random = np.random.default_rng(seed)
    return np.stack([first, *(first[random.permutation(len(first))] for _ in range(num_orders - 1))])


def choose(
    metric: str, rows: Rows, folds: Folds, structures: Sequence[str], seed: int, num_orders: int
) -> Choice:
    """Choose the structure, penalties and rule that are best on the held-out rows of the folds."""
    penalties: dict[str, int] = {}
    held = [(rows.some(train), rows.some(test)) for train, test in folds]
    total = sum(test.weights.sum() for _, test in held)
    log_losses: dict[str, float] = {}
    best: dict[str, list[Parameters]] = {}

    def starts(structure: str) -> list[Parameters]:
        if structure == "network":
            return best["cardinality"]
        return [unfitted(structure, train) for train, _ in held]

    for structure in STRUCTURES[: 1 + max(map(STRUCTURES.index, structures))]:
        # Choose the penalties for networks with only one order of the labels, to save time.
        paths = [
            path(structure, train, start, orders(train, seed, 1))
            for (train, _), start in zip(held, starts(structure), strict=True)
        ]
        for place, models in enumerate(zip(*paths, strict=True)):
            loss = float(_log_loss(models, held) / total)
            if loss >= log_losses.get(structure, np.inf):
                break
            penalties[structure], log_losses[structure], best[structure] = place, loss, [*models]
    if "network" in best and num_orders > 1:
        by_number, penalty = best["cardinality"], NETWORK_PATH[penalties["network"]]
        best["network"] = [
            fit_network(*_arrays(train), start, orders(train, seed, num_orders), (COUNT_PATH[1], *penalty))
            for (train, _), start in zip(held, by_number, strict=True)
        ]
        log_losses["network"] = float(_log_loss(best["network"], held) / total)
    log_losses = {name: log_losses[name] for name in structures}
    structure = min(structures, key=log_losses.__getitem__)
    if metric == "log_loss":
        return Choice(structure, penalties, None, {}, log_losses)
    answers: dict[str, Callable[[int], np.ndarray]] = {
        structure: lambda fold: _by_structure(best[structure][fold], metric, *held[fold], seed)
    }
    answers |= {name: lambda fold, name=name: _by_rule(name, metric, *held[fold]) for name in rules.RULES}
    truth, weights = (
        np.concatenate([getattr(test, name) for _, test in held]) for name in ("labels", "weights")
    )
    values = {
        name: rules.value(metric, np.concatenate([*map(answer, range(len(held)))]), truth, weights)
        for name, answer in answers.items()
    }
    rule = max(rules.RULES, key=values.__getitem__)
    return Choice(
        structure, penalties, rule if values[rule] > values[structure] else None, values, log_losses
    )


def predicted(
    parameters: Parameters, log_odds: np.ndarray, metric: str, seed: int, limits: dict[str, int]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the labels with the largest expected metric, (rows, labels), and whether these are proven best.

    Without networks the labels are always exact. With networks, a search finds the most probable labels for
    ``"exact_match"`` and ``"log_loss"``; see :func:`lmbm_torch.inference.decode_expected` for other metrics.
    """
    measure = "exact_match" if metric == "log_loss" else metric
    if not len(parameters.orderings):
        model = parameters.counts(log_odds)
        found = model.most_probable() if measure == "exact_match" else model.best(measure)[0]
        return found, np.ones(len(found), np.bool_)
    if measure == "exact_match" and log_odds.shape[1] <= ENUMERATED:
        return _best_of_all(parameters, log_odds), np.ones(len(log_odds), np.bool_)
    parts = []
    for some in in_parts(log_odds, parameters):
        energies = parameters.energies(some)
        if measure == "exact_match":
            parts.append(mixture.decode(energies))
        else:
            generator = torch.Generator().manual_seed(seed)
            options: Any = {**limits, "generator": generator}
            parts.append(decode_expected(energies, measure, **options))
    labels = np.concatenate([each.labels.numpy() for each in parts])
    return labels, np.concatenate([each.status.converged.numpy() for each in parts])


def _best_of_all(parameters: Parameters, log_odds: np.ndarray) -> np.ndarray:
    """Return the most probable labelling of each row, by the probabilities of all labellings."""
    every = torch.tensor([*product((0, 1), repeat=log_odds.shape[1])], dtype=torch.int64, device="cpu")
    values = (
        mixture.log_prob(parameters.energies(some), every[:, None])
        for some in in_parts(log_odds, parameters, len(every))
    )
    return np.concatenate([every[each.argmax(0)].numpy() for each in values])


def marginals(parameters: Parameters, log_odds: np.ndarray, **options: Any) -> np.ndarray:
    """Return P(label = 1), (rows, labels): exact, or for networks estimated from likely label vectors.

    Args:
        options: options of :func:`lmbm_torch.inference.search.mixture.marginals`.
    """
    if not len(parameters.orderings) and not options.get("constraints"):
        return parameters.counts(log_odds).moments()[0]
    found = [
        mixture.marginals(parameters.energies(some), **options).states[..., 1].numpy()
        for some in in_parts(log_odds, parameters)
    ]
    return np.concatenate(found)


def decoded(
    parameters: Parameters, log_odds: np.ndarray, known: np.ndarray | None, top_k: int
) -> Iterator[Decoding]:
    """Find the ``top_k`` most probable labellings of each row, and yield the results in chunks of rows."""
    first = 0
    for some in in_parts(log_odds, parameters):
        given = None if known is None else torch.from_numpy(known[first : first + len(some)])
        first += len(some)
        yield mixture.decode(parameters.energies(some), known=given, top_k=top_k)


def in_parts(log_odds: np.ndarray, parameters: Parameters, labellings: int = 1) -> Iterator[np.ndarray]:
    """Yield the log-odds in chunks of rows, so tables of conditional log-odds fit into memory.

    Args:
        labellings: the number of labellings of each row that are evaluated at the same time.
    """
    copies = labellings * max(1, len(parameters.orderings))
    size = 8 * (log_odds.shape[1] + 1) * len(parameters.count_weight) * copies
    step = max(1, part_bytes(CHUNK_BYTES) // size)
    for first in range(0, len(log_odds), step):
        yield log_odds[first : first + step]


def _arrays(rows: Rows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return rows.log_odds, rows.labels, rows.weights


def _log_loss(models: Sequence[Parameters], held: Sequence[tuple[Rows, Rows]]) -> float:
    """Return the weighted sum of log losses over all held-out rows, each by the model of its fold."""
    return -sum(
        float(test.weights @ each.log_prob(test.log_odds, test.labels))
        for each, (_, test) in zip(models, held, strict=True)
    )


def _by_structure(parameters: Parameters, metric: str, train: Rows, test: Rows, seed: int) -> np.ndarray:
    if metric not in rules.OF_LABELS:
        return predicted(parameters, test.log_odds, metric, seed, FOLD_LIMITS)[0]
    most = FOLD_LIMITS["max_labellings"]
    own, others = (marginals(parameters, rows.log_odds, max_labellings=most) for rows in (train, test))
    return (others > rules.of_marginals(metric, own, train.labels, train.weights)).astype(np.int64)


def _by_rule(rule: str, metric: str, train: Rows, test: Rows) -> np.ndarray:
    return rules.predicted(rules.learned(rule, metric, *_arrays(train)), test.log_odds)
