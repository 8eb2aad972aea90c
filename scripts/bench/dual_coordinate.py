"""Training all labels of a sigmoid belief network, beside liblinear on the very same problems.

Peer: scikit-learn's ``LinearSVC(loss="hinge", dual=True)``, one fit a label on [x, spins of the labels
before it] with a regularised intercept, through joblib with two warm worker processes. Both stop at an
objective within 1e-4 of the optimum: liblinear at the loosest tolerance that reaches it, found beforehand
and not timed; ours at the loosest relative duality gap. C = 1. Dense sets come standardised, as they are
stored, and with rows of unit norm: how long liblinear takes depends on it. RCV1 is stored with unit rows.

Floor: every instance must be looked at once for all labels, to certify the optimum. That is 2 · nnz(X) · K
multiply-adds (fields, and one update): Scene 1211 · 294 · 6 · 2 = 4.3e6, rcv1 230,000 · 101 · 2 = 46e6, a few
milliseconds on one core; what a solver needs beyond it is the number of its passes.

    python scripts/bench/dual_coordinate.py [--repeats 5] [--sets scene yeast rcv1_subset1]
"""

from __future__ import annotations

import statistics
import warnings

import numpy as np
import torch
from joblib import Parallel, delayed
from measuring import described, seconds, show, table, write_csv
from scipy import sparse
from sklearn.preprocessing import StandardScaler, normalize
from sklearn.svm import LinearSVC

from lmbm_torch.data import load
from lmbm_torch.solvers.base import run
from lmbm_torch.solvers.networks import dual_coordinate
from lmbm_torch.solvers.networks.problems import LabelProblems

CLOSE = 1e-4
PEER_TOLERANCES = (1e-1, 3e-2, 1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5)
GAPS = (3e-3, 1e-3, 3e-4, 1e-4)
STANDARDISED, AS_STORED, UNIT_ROWS = "standardised", "as stored", "unit rows"
SCALINGS = {
    STANDARDISED: StandardScaler().fit_transform,
    AS_STORED: lambda features: features,
    UNIT_ROWS: normalize,
}


def problems_of(
    name: str, scaling: str, instances: int | None = None, labels: int | None = None
) -> LabelProblems:
    """Return the label problems of a data set's training part, float32 as it comes."""
    data = load(name)
    features, targets = SCALINGS[scaling](data.features[data.train]), data.labels[data.train]
    rows = np.random.default_rng(0).permutation(len(targets))[:instances]
    return LabelProblems.from_labels(features[rows], targets[rows, :labels].astype(np.float64))


def peer_inputs(problems: LabelProblems) -> list:
    """Return the inputs of liblinear for each label: the features and the spins before it, in float64."""
    spins = problems.context[:, 1 : 1 + problems.num_labels].astype(np.float64)
    widths = range(problems.num_labels)
    if isinstance(problems.features, sparse.csr_array):
        features = problems.features.astype(np.float64)
        return [sparse.csr_matrix(sparse.hstack([features, spins[:, :k]])) for k in widths]
    return [np.hstack([problems.features, spins[:, :k]]) for k in widths]


def fit_peer(inputs, spins: np.ndarray, tol: float) -> tuple[np.ndarray, float]:
    svm = LinearSVC(loss="hinge", C=1.0, tol=tol, max_iter=1_000_000, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        svm.fit(inputs, spins)
    return np.ravel(svm.coef_), np.ravel(svm.intercept_).item()


def peer_objective(problems: LabelProblems, inputs: list, fits: list) -> float:
    total = 0.0
    for each, spins, (coef, intercept) in zip(inputs, problems.spins, fits, strict=True):
        hinge = np.maximum(1 - spins * (each @ coef + intercept), 0)
        total += 0.5 * (coef @ coef + intercept**2) + hinge.sum()
    return total


def compare(name: str, scaling: str, problems: LabelProblems, repeats: int) -> dict[str, object]:
    """Return time both in turn at their loosest tolerance that is close to the optimum."""
    optimum = run(dual_coordinate, problems, tol=1e-6, max_iter=10_000).primal.sum()
    inputs = peer_inputs(problems)
    with Parallel(n_jobs=2) as workers:

        def peer(tol: float) -> list:
            pairs = zip(inputs, problems.spins, strict=True)
            return list(workers(delayed(fit_peer)(each, spins, tol) for each, spins in pairs) or [])

        def ours(gap: float):
            return run(dual_coordinate, problems, tol=gap, max_iter=10_000)

        def is_close(objective: float) -> bool:
            return objective <= optimum * (1 + CLOSE)

        tol = next(t for t in PEER_TOLERANCES if is_close(peer_objective(problems, inputs, peer(t))))
        gap = next(g for g in GAPS if is_close(ours(g).primal.sum()))
        pairs = [(seconds(lambda: ours(gap)), seconds(lambda: peer(tol))) for _ in range(repeats)]
    return {
        "set": name,
        "scaling": scaling,
        "instances": problems.num_instances,
        "features": problems.num_features,
        "labels": problems.num_labels,
        "ours_s": round(statistics.median(mine for mine, _ in pairs), 4),
        "liblinear_s": round(statistics.median(theirs for _, theirs in pairs), 4),
        "ratio": round(statistics.median(theirs / mine for mine, theirs in pairs), 2),
        "ratio_min": round(min(theirs / mine for mine, theirs in pairs), 2),
        "our_gap": f"{ours(gap).gap:.1e}",
        "liblinear_tol": tol,
        "repeats": repeats,
        "threads": torch.get_num_threads(),
    }


def main() -> None:
    parser = described(__file__, __doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--sets", nargs="+", default=["scene", "yeast", "rcv1_subset1"])
    arguments = parser.parse_args()
    torch.set_num_threads(2)

    cases: list[tuple[str, str, int | None, int | None]] = []
    for name in arguments.sets:
        is_sparse = sparse.issparse(load(name).features)
        cases += [(name, scaling, None, None) for scaling in ((AS_STORED,) if is_sparse else SCALINGS)]
    # The cost as the problem grows: with the instances, and with the labels.
    if "scene" in arguments.sets:
        cases += [("scene", STANDARDISED, instances, None) for instances in (150, 300, 600)]
    if "rcv1_subset1" in arguments.sets:
        cases += [("rcv1_subset1", AS_STORED, None, labels) for labels in (10, 30)]
    rows = []
    for name, scaling, instances, labels in cases:
        problems = problems_of(name, scaling, instances, labels)
        run(dual_coordinate, problems, tol=0.5)
        rows.append(compare(name, scaling, problems, arguments.repeats))
        print(rows[-1], flush=True)

    with table(arguments.output, arguments.name) as folder:
        write_csv(folder / "table.csv", rows)
    show(rows, "seconds to an objective within 1e-4 of the optimum, medians")


if __name__ == "__main__":
    main()
