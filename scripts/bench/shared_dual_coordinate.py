"""Training a large-margin Boltzmann machine, beside liblinear on the same labels without couplings.

Peer: scikit-learn's ``LinearSVC(loss="hinge", dual=True)``, one fit a label on x with a regularised
intercept: in a plain loop, and through joblib with two warm worker processes. It solves the easier problem, K
that do not depend on each other. Both stop at a relative duality gap of 1e-3 of all labels together: ours
certifies it; liblinear is given the loosest tolerance that reaches it, by the dual value that it prints and
the objective of the weights that it returns. C = 1, η0 = 10; BLAS has one thread, for ours are around it.

Seconds by the clock, ours and the peer's in turn, depend on who else wants the processor; the ``cpu``
columns, all threads together and the loop's, hardly do. Ours and the workers can use two cores. Ours include
what it makes of the features and labels beforehand, the peer's its own checks and copies.

Floor: a certificate looks at every instance once for all labels, twice (weights from duals, margins from
weights). That is 4 · nnz(X) · K multiply-adds: Scene 1211 · 294 · 6 · 4 = 8.5e6, a millisecond on one core;
what a solver needs beyond it is the number of its steps.

    python scripts/bench/shared_dual_coordinate.py [--repeats 5] [--sets scene yeast]
"""

from __future__ import annotations

import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable

import numpy as np
import torch
from dual_coordinate import PEER_TOLERANCES, fit_peer
from joblib import Parallel, delayed
from measuring import described, seconds, table, write_csv
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from threadpoolctl import threadpool_limits

from lmbm_torch.data import load
from lmbm_torch.solvers.base import run
from lmbm_torch.solvers.machines import proximal_newton
from lmbm_torch.solvers.machines.dual_coordinate import SharedState
from lmbm_torch.solvers.machines.problem import SharedProblem

GAP = 1e-3


def both_seconds(work: Callable[[], object]) -> tuple[float, float]:
    """Return the wall and CPU seconds of a call."""
    started = time.process_time()
    clock = seconds(work)
    return clock, time.process_time() - started


def peer_values(features: np.ndarray, spins: np.ndarray, tol: float) -> tuple[float, float]:
    """Return the primal and the dual value at which liblinear stops, the latter from what it prints."""
    svm = LinearSVC(loss="hinge", C=1.0, tol=tol, max_iter=1_000_000, random_state=0, verbose=1)
    sys.stdout.flush()
    terminal = os.dup(1)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 1)
        try:
            svm.fit(features, spins)
        finally:
            sys.stdout.flush()
            os.dup2(terminal, 1)
            os.close(terminal)
        file.seek(0)
        printed = re.search(rb"Objective value = (\S+)", file.read())
    if printed is None:
        raise RuntimeError("liblinear: expected its objective to be printed, got none")
    weights, bias = svm.coef_[0], np.ravel(svm.intercept_).item()
    hinge = np.maximum(1 - spins * (features @ weights + bias), 0)
    return 0.5 * (weights @ weights + bias**2) + hinge.sum(), -float(printed[1])


def peer_gap(features: np.ndarray, spins: np.ndarray, tol: float) -> float:
    """Return the relative duality gap of all labels together."""
    primal, dual = np.sum([peer_values(features, one, tol) for one in spins], axis=0)
    return (primal - dual) / primal


def compare(name: str, scaled: bool, repeats: int) -> dict[str, object]:
    """Return time all in turn on a data set's training part."""
    data = load(name)
    features, labels = data.features[data.train].astype(np.float64), data.labels[data.train].astype(float)
    if scaled:
        features = StandardScaler().fit_transform(features)
    spins = 2 * labels.T - 1
    tol = next(t for t in PEER_TOLERANCES if peer_gap(features, spins, t) <= GAP)

    def ours() -> SharedState:
        return run(
            proximal_newton, SharedProblem.from_labels(features, labels, coupling_penalty=10.0), tol=GAP
        )

    with Parallel(n_jobs=2) as workers:

        def loop() -> None:
            for one in spins:
                fit_peer(features, one, tol)

        def shared() -> None:
            workers(delayed(fit_peer)(features, one, tol) for one in spins)

        state = ours()
        shared()
        rounds = [(both_seconds(ours), both_seconds(loop), seconds(shared)) for _ in range(repeats)]
    ours_s, ours_cpu_s = zip(*[mine for mine, _, _ in rounds], strict=True)
    loop_s, loop_cpu_s = zip(*[theirs for _, theirs, _ in rounds], strict=True)
    workers_s = [theirs for _, _, theirs in rounds]
    by_loop = [theirs / mine for theirs, mine in zip(loop_s, ours_s, strict=True)]
    by_workers = [theirs / mine for theirs, mine in zip(workers_s, ours_s, strict=True)]
    return {
        "set": name,
        "features": "standardised" if scaled else "as they come",
        "instances": len(features),
        "labels": len(spins),
        "ours_s": round(statistics.median(ours_s), 4),
        "loop_s": round(statistics.median(loop_s), 4),
        "workers_s": round(statistics.median(workers_s), 4),
        "loop_ratio": round(statistics.median(by_loop), 2),
        "loop_ratio_min": round(min(by_loop), 2),
        "workers_ratio": round(statistics.median(by_workers), 2),
        "workers_ratio_min": round(min(by_workers), 2),
        "ours_cpu_s": round(statistics.median(ours_cpu_s), 4),
        "loop_cpu_s": round(statistics.median(loop_cpu_s), 4),
        "our_gap": f"{state.gap:.1e}",
        "liblinear_gap": f"{peer_gap(features, spins, tol):.1e}",
        "liblinear_tol": tol,
        "repeats": repeats,
        "threads": torch.get_num_threads(),
    }


def main() -> None:
    parser = described(__file__, __doc__)
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
    with table(arguments.output, arguments.name) as folder:
        write_csv(folder / "table.csv", rows)


if __name__ == "__main__":
    main()
