"""Kernel multinomial logistic regression by SMO, beside exact Cholesky + L-BFGS, to equal objectives.

Peer: with K = L Lᵀ the problem is plain multinomial logistic regression on the N rows of L, in N dimensions,
which scipy's L-BFGS-B solves far faster than it does the kernel expansion; the factorisation is part of its
time. Letter, 26 classes, features of unit variance, k = exp(−‖x − x'‖²/16), λ = 1; both are given the matrix
in float64, and one thread, and stop when their primal objective is within 1e-4, or 1e-8, of the best dual
value known. Times are of the processor: other work on the machine does not count.

Floor: each pass reads the kernel matrix once, 8 N² bytes, and multiplies it with C columns, 2 N² C flops;
SMO cannot certify with less than one, L-BFGS needs two for every evaluation, and N³/3 flops for the factor.

    python scripts/bench/smo.py [--repeats 3] [--sizes 1000 2000 5000 10000]
"""

from __future__ import annotations

import argparse
import csv
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from scipy.linalg import cholesky
from scipy.optimize import OptimizeResult, minimize
from threadpoolctl import threadpool_limits

from lmbm_torch.data import load_multiclass
from lmbm_torch.solvers import kernels, smo
from lmbm_torch.solvers.gram import PrecomputedGram
from lmbm_torch.solvers.logistic_problems import MulticlassProblem

RESULTS = Path(__file__).parent / "results" / "smo.csv"
SQUARE_BANDWIDTH = 16.0
CLOSE = (1e-4, 1e-8)
ENOUGH = 20.0
# Keeps the factorisation of a matrix with nearly equal instances from failing.
JITTER = 1e-10


def letter(size: int) -> tuple[np.ndarray, np.ndarray]:
    """The kernel matrix of random instances, and their classes, one-hot."""
    data = load_multiclass("letter").split_anew(size, 1, seed=0)
    features = data.features[data.train]
    rows = torch.from_numpy((features - features.mean(0)) / features.std(0))
    matrix = kernels.rbf(rows, rows, 1 / SQUARE_BANDWIDTH).numpy()
    matrix = (matrix + matrix.T) / 2
    matrix[np.diag_indices(size)] += JITTER
    return matrix, np.eye(len(data.class_names))[data.classes[data.train]]


def peer(matrix: np.ndarray, targets: np.ndarray, value: float) -> float:
    """Cholesky + L-BFGS until the objective is below ``value``; the objective reached."""
    factor = cholesky(matrix, lower=True)

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        weights = flat.reshape(targets.shape)
        scores = factor @ weights
        scores -= scores.max(1, keepdims=True)
        odds = np.exp(scores)
        totals = odds.sum(1, keepdims=True)
        loss = np.log(totals).sum() - np.vdot(targets, scores)
        gradient = weights + factor.T @ (odds / totals - targets)
        return float(0.5 * np.vdot(weights, weights) + loss), gradient.ravel()

    def watch(intermediate_result: OptimizeResult) -> None:
        if intermediate_result.fun <= value:
            raise StopIteration

    never = {"gtol": 0, "ftol": 0, "maxiter": 10**6, "maxfun": 10**7}
    start = np.zeros(targets.size)
    found = minimize(objective, start, jac=True, method="L-BFGS-B", callback=watch, options=never)
    return float(found.fun)


def ours(problem: MulticlassProblem, value: float) -> smo.LogisticState:
    """SMO until the primal objective is below ``value``."""
    state = smo.init(problem)
    while state.primal > value:
        state = smo.update(problem, state, passes=2)
    return state


def seconds(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def in_turn(
    mine: Callable[[], object], theirs: Callable[[], object], repeats: int
) -> list[tuple[float, float]]:
    """Seconds of both, ``repeats`` times or until they have taken ``ENOUGH`` seconds in all."""
    pairs: list[tuple[float, float]] = []
    while len(pairs) < repeats and sum(map(sum, pairs)) < ENOUGH:
        pairs.append((seconds(mine), seconds(theirs)))
    return pairs


def compare(size: int, repeats: int) -> list[dict[str, object]]:
    """Both in turn, to each closeness."""
    matrix, targets = letter(size)
    gram = PrecomputedGram(torch.from_numpy(matrix))
    problem = MulticlassProblem(gram, torch.from_numpy(targets), torch.ones(size, dtype=torch.float64))
    optimum = smo.run(problem, tol=1e-10).dual
    rows: list[dict[str, object]] = []
    for close in CLOSE:
        value = optimum * (1 + close)
        pairs = in_turn(partial(ours, problem, value), partial(peer, matrix, targets, value), repeats)
        sweep = seconds(lambda: matrix @ targets)
        mine = statistics.median(pair[0] for pair in pairs)
        state = ours(problem, value)
        rows.append(
            {
                "instances": size,
                "classes": targets.shape[1],
                "within": close,
                "smo_s": round(mine, 3),
                "cholesky_lbfgs_s": round(statistics.median(pair[1] for pair in pairs), 3),
                "ratio": round(statistics.median(pair[1] / pair[0] for pair in pairs), 2),
                "ratio_min": round(min(pair[1] / pair[0] for pair in pairs), 2),
                "one_product_s": round(sweep, 4),
                "smo_over_floor": round(mine / sweep, 1),
                "smo_passes": state.num_passes,
                "smo_gap": f"{state.gap:.0e}",
                "repeats": len(pairs),
            }
        )
        print(rows[-1], flush=True)
    return rows


def plot(rows: list[dict[str, object]]) -> None:
    """Seconds as the instances grow."""
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.add_subplot()
    for column, label, colour in (
        ("smo_s", "SMO", "#0072b2"),
        ("cholesky_lbfgs_s", "Cholesky + L-BFGS", "#d55e00"),
    ):
        for close, dashes in zip(CLOSE, ("-", "--"), strict=True):
            chosen = [row for row in rows if row["within"] == close]
            points = np.array([(row["instances"], row[column]) for row in chosen], np.float64)
            axes.plot(*points.T, dashes, marker="o", color=colour, label=f"{label}, within {close:g}")
    axes.set(xscale="log", yscale="log", xlabel="instances", ylabel="processor seconds")
    axes.legend(frameon=False)
    figure.savefig(RESULTS.with_suffix(".png"), dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1000, 2000, 5000, 10000])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, object]] = []
    with threadpool_limits(1):
        for size in arguments.sizes:
            rows += compare(size, arguments.repeats)
    RESULTS.parent.mkdir(exist_ok=True)
    with RESULTS.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    plot(rows)


if __name__ == "__main__":
    main()
