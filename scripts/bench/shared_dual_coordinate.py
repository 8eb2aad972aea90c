"""Training a large-margin Boltzmann machine, beside liblinear on the same labels without couplings.

Peer: scikit-learn's ``LinearSVC(loss="hinge", dual=True)``, one fit a label on x with a regularised
intercept, through joblib with two warm worker processes. It solves the easier problem, K that do not depend
on each other. Ours stops at a certified relative duality gap of 1e-3; liblinear, which states no gap, at the
loosest tolerance that brings its objective within 1e-3 of the optimum, which asks less than that gap does.
C = 1, η0 = 10; BLAS has one thread, for ours are around it.

Seconds by the clock, ours and the peer's in turn, depend on who else wants the processor; the ``cpu``
columns, all threads or workers together and without the peer's dispatch, hardly do. Both can use two cores.

Floor: a certificate looks at every instance once for all labels, twice (weights from duals, margins from
weights). That is 4 · nnz(X) · K multiply-adds: Scene 1211 · 294 · 6 · 4 = 8.5e6, a millisecond on one core;
what a solver needs beyond it is the number of its steps.

    python scripts/bench/shared_dual_coordinate.py [--repeats 5] [--sets scene yeast]
"""

from __future__ import annotations

import argparse
import csv
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from dual_coordinate import PEER_TOLERANCES, fit_peer, peer_objective, seconds
from joblib import Parallel, delayed
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from lmbm_torch.data import load
from lmbm_torch.solvers import dual_coordinate, proximal_newton
from lmbm_torch.solvers.label_problems import LabelProblems
from lmbm_torch.solvers.shared_problem import SharedProblem

RESULTS = Path(__file__).parent / "results" / "shared_dual_coordinate.csv"
GAP = 1e-3


def timed_fit(features: np.ndarray, spins: np.ndarray, tol: float) -> tuple[tuple[np.ndarray, float], float]:
    """A label's fit, and the processor's seconds for it."""
    started = time.process_time()
    fit = fit_peer(features, spins, tol)
    return fit, time.process_time() - started


def both_seconds(work: Callable[[], object]) -> tuple[float, float]:
    """By the clock and by the processor."""
    started = time.process_time()
    clock = seconds(work)
    return clock, time.process_time() - started


def compare(name: str, scaled: bool, repeats: int) -> dict[str, object]:
    """Time both in turn on a data set's training part."""
    data = load(name)
    features, labels = data.features[data.train].astype(np.float64), data.labels[data.train].astype(float)
    if scaled:
        features = StandardScaler().fit_transform(features)
    problem = SharedProblem.from_labels(features, labels, coupling_penalty=10.0)
    independent = LabelProblems.from_labels(features, labels, parents=False)
    optimum = dual_coordinate.run(independent, tol=1e-6, max_rounds=10_000).primal.sum()
    inputs = [features] * len(independent.spins)
    with Parallel(n_jobs=2) as workers:

        def peer(tol: float) -> list:
            return list(
                workers(delayed(timed_fit)(features, spins, tol) for spins in independent.spins) or []
            )

        def is_close(tol: float) -> bool:
            return peer_objective(independent, inputs, [fit for fit, _ in peer(tol)]) <= optimum * (1 + GAP)

        tol = next(t for t in PEER_TOLERANCES if is_close(t))
        state = proximal_newton.run(problem, tol=GAP)
        pairs = [
            (both_seconds(lambda: proximal_newton.run(problem, tol=GAP)), seconds(lambda: peer(tol)))
            for _ in range(repeats)
        ]
        peer_cpu = [sum(spent for _, spent in peer(tol)) for _ in range(repeats)]
    ours_s, liblinear_s = [clock for (clock, _), _ in pairs], [clock for _, clock in pairs]
    ours_cpu_s = [cpu for (_, cpu), _ in pairs]
    ratios = [theirs / mine for mine, theirs in zip(ours_s, liblinear_s, strict=True)]
    return {
        "set": name,
        "features": "standardised" if scaled else "as they come",
        "instances": problem.num_instances,
        "labels": problem.num_labels,
        "ours_s": round(statistics.median(ours_s), 4),
        "liblinear_s": round(statistics.median(liblinear_s), 4),
        "ratio": round(statistics.median(ratios), 2),
        "ratio_min": round(min(ratios), 2),
        "ours_cpu_s": round(statistics.median(ours_cpu_s), 4),
        "liblinear_cpu_s": round(statistics.median(peer_cpu), 4),
        "our_gap": f"{state.gap:.1e}",
        "liblinear_tol": tol,
        "repeats": repeats,
        "threads": torch.get_num_threads(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--sets", nargs="+", default=["scene", "yeast"])
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    rows = []
    for name in arguments.sets:
        for scaled in (True, False):
            with threadpool_limits(1, "blas"):
                rows.append(compare(name, scaled, arguments.repeats))
            print(rows[-1], flush=True)
    RESULTS.parent.mkdir(exist_ok=True)
    with RESULTS.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
