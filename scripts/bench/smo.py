"""Kernel multinomial logistic regression by SMO, beside exact Cholesky + L-BFGS, to equal objectives.

Peer: with K = L Lᵀ the problem is plain multinomial logistic regression on the N rows of L, in N dimensions,
which scipy's L-BFGS-B solves far faster than it does the kernel expansion; the factorisation is part of its
time. Letter, 26 classes, features of unit variance, k = exp(−‖x − x'‖²/16), λ = 1; both are given the matrix
in float64, and one thread, and stop when their primal objective is within 1e-4, or 1e-8, of the best dual
value known. Times are of the processor: other work on the machine does not count.

Floor: each pass reads the kernel matrix once, 8 N² bytes, and multiplies it with C columns, 2 N² C flops;
SMO cannot certify with less than one, L-BFGS needs two for every evaluation, and N³/3 flops for the factor.

Then, kernels of low rank and large C, where passes crawl: SMO as it is, which goes over to Newton's method,
beside passes alone, to a relative gap of 1e-6 or for twenty times as long. Rows that are not measured now, of
other sizes or closenesses, are kept.

    python scripts/bench/smo.py [--repeats 3] [--sizes 1000 2000 5000 10000] [--within 1e-4 1e-8] [--low-rank]
"""

from __future__ import annotations

import csv
import statistics
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from measuring import described, seconds, table, write_csv
from scipy.linalg import cholesky
from scipy.optimize import OptimizeResult, minimize
from threadpoolctl import threadpool_limits

from lmbm_torch.files import write_figure
from lmbm_torch.solvers import gram as kernels
from lmbm_torch.solvers import smo
from lmbm_torch.solvers.base import run
from lmbm_torch.solvers.gram import PrecomputedGram
from lmbm_torch.solvers.smo import MulticlassProblem
from reproduce.multiclass_sets import load_multiclass

SQUARE_BANDWIDTH = 16.0
CLOSE = (1e-4, 1e-8)
GAP, PATIENCE = 1e-6, 20
# Data set, instances, degree of the polynomial kernel, C.
LOW_RANK_CASES = (
    ("vehicle", 800, 1, 100.0),
    ("vehicle", 800, 1, 1e4),
    ("segment", 1500, 2, 1e3),
    ("letter", 2000, 1, 100.0),
    ("letter", 2000, 2, 1e3),
)
Row = dict[str, Any]
processor_seconds = partial(seconds, clock=time.process_time)
# Keeps the factorisation of a matrix with nearly equal instances from failing.
JITTER = 1e-10


def letter(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the kernel matrix of random instances, and their classes, one-hot."""
    data = load_multiclass("letter").split_anew(size, 1, seed=0)
    features = data.features[data.train]
    rows = torch.from_numpy((features - features.mean(0)) / features.std(0))
    matrix = kernels.rbf(rows, rows, 1 / SQUARE_BANDWIDTH).numpy()
    matrix = (matrix + matrix.T) / 2
    matrix[np.diag_indices(size)] += JITTER
    return matrix, np.eye(len(data.class_names))[data.classes[data.train]]


def peer(matrix: np.ndarray, targets: np.ndarray, value: float) -> float:
    """Run Cholesky + L-BFGS until the objective is below ``value``; return the objective reached."""
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
    """Run SMO until the primal objective is below ``value``."""
    state = smo.init(problem)
    while state.primal > value:
        state = smo.update(problem, state, num_iters=2)
    return state


def compare(size: int, closeness: Sequence[float], repeats: int) -> list[Row]:
    """Return both in turn, to each closeness."""
    matrix, targets = letter(size)
    gram = PrecomputedGram(torch.from_numpy(matrix))
    problem = MulticlassProblem(gram, torch.from_numpy(targets), torch.ones(size, dtype=torch.float64))
    optimum = run(smo, problem, tol=1e-10).dual
    rows: list[Row] = []
    for close in closeness:
        value = optimum * (1 + close)
        work = partial(ours, problem, value), partial(peer, matrix, targets, value)
        pairs = [tuple(map(processor_seconds, work)) for _ in range(repeats)]
        sweep = processor_seconds(lambda: matrix @ targets)
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
                "smo_passes": state.num_iters,
                "smo_gap": f"{state.gap:.0e}",
                "repeats": len(pairs),
            }
        )
        print(rows[-1], flush=True)
    return rows


def low_rank(name: str, size: int, degree: int, C: float, repeats: int) -> Row:
    """Return a polynomial kernel of few dimensions: SMO as it is, and passes alone."""
    data = load_multiclass(name).split_anew(size, 1, seed=0)
    features = data.features[data.train]
    scale = np.where(features.std(0) > 0, features.std(0), 1)
    rows = torch.from_numpy((features - features.mean(0)) / scale)
    matrix = kernels.polynomial(rows, rows, 1 / rows.shape[1], degree, 1.0)
    targets = torch.nn.functional.one_hot(torch.from_numpy(data.classes[data.train])).double()
    upper = torch.full((size,), C, dtype=torch.float64)
    problem = MulticlassProblem(PrecomputedGram((matrix + matrix.mT) / 2), targets, upper)
    state = run(smo, problem, tol=GAP)
    mine = statistics.median(processor_seconds(partial(run, smo, problem, tol=GAP)) for _ in range(repeats))
    alone, started = smo.init(problem), time.process_time()
    while alone.gap > GAP and time.process_time() - started < PATIENCE * mine:
        alone = smo.update(problem, alone)
    row: Row = {
        "data": name,
        "instances": size,
        "classes": targets.shape[1],
        "degree": degree,
        "C": C,
        "smo_s": round(mine, 3),
        "smo_gap": f"{state.gap:.0e}",
        "passes_alone_s": round(time.process_time() - started, 3),
        "passes_alone": alone.num_iters,
        "passes_alone_gap": f"{alone.gap:.0e}",
    }
    print(row, flush=True)
    return row


def plot(rows: list[Row], path: Path) -> None:
    """Plot seconds against the number of instances."""
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.add_subplot()
    for column, label, colour in (
        ("smo_s", "SMO", "#0072b2"),
        ("cholesky_lbfgs_s", "Cholesky + L-BFGS", "#d55e00"),
    ):
        for close, dashes in zip(CLOSE, ("-", "--"), strict=True):
            chosen = [row for row in rows if float(row["within"]) == close]
            points = np.array([(row["instances"], row[column]) for row in chosen], np.float64)
            axes.plot(*points.T, dashes, marker="o", color=colour, label=f"{label}, within {close:g}")
    axes.set(xscale="log", yscale="log", xlabel="instances", ylabel="CPU seconds")
    axes.legend(frameon=False)
    write_figure(path, figure)


def with_earlier(rows: list[Row], path: Path) -> list[Row]:
    """Return these rows and earlier ones of other sizes, in order; a new folder starts from the kept ones."""
    measured = {(row["instances"], row["within"]): row for row in rows}
    earlier = path if path.exists() else Path(__file__).parents[2] / "results" / "bench" / "smo.csv"
    if earlier.exists():
        with earlier.open(newline="") as file:
            for row in csv.DictReader(file):
                measured.setdefault((int(row["instances"]), float(row["within"])), row)
    return [measured[key] for key in sorted(measured, key=lambda key: (key[0], -key[1]))]


def main() -> None:
    parser = described(__file__, __doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--sizes", type=int, nargs="*", default=[1000, 2000, 5000, 10000])
    parser.add_argument("--within", type=float, nargs="+", default=list(CLOSE))
    parser.add_argument("--low-rank", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with threadpool_limits(1), table(arguments.output, arguments.name) as folder:
        measured = folder / "table.csv"
        for size in arguments.sizes:
            rows = with_earlier(compare(size, arguments.within, arguments.repeats), measured)
            write_csv(measured, rows)
            plot(rows, measured.with_suffix(".png"))
        if arguments.low_rank:
            rows = [low_rank(*case, arguments.repeats) for case in LOW_RANK_CASES]
            write_csv(folder / "low_rank.csv", rows)


if __name__ == "__main__":
    main()
