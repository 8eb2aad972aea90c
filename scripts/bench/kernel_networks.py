"""Training kernel networks, beside libsvm label by label on the very same joint kernels.

Peer: scikit-learn's ``SVC(kernel="precomputed")``, one fit a label on K + 1 + S Sᵀ, S the spins of the labels
before it; its own intercept makes its problem the harder one by an equality constraint, the easier one by an
intercept without penalty. Every label's tolerance is the loosest of a list that closes the relative duality
gap, measured from its dual coefficients and its intercept, to 1e-3; ours stops where every label's gap is
below. Labels of a single class, which SVC refuses, are left out of its time alone. RBF kernel with
``gamma="scale"`` on the training part as it comes; the kernel values are given to both, and the peer's joint
kernels are made outside its time. Seconds are of the processor, ours and the peer's in turn, one thread.

Also the time of ``LMSBNClassifier`` from features, without and with its default ordering, and of ten networks
(``LMSBNEnsembleClassifier``), which compute the kernel values themselves.

    python scripts/bench/kernel_networks.py [--repeats 3] [--sets flags yeast] [--large]

``--large`` trains 20,000 instances with 20 labels instead, whose joint kernel is not held as a whole, beside
SVC from the same features on two labels alone, without parents, as its own kernel has no part of these.
"""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from measuring import described, seconds, show, table, write_csv
from scipy import sparse
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.svm import SVC
from threadpoolctl import threadpool_limits

from lmbm_torch.data import read_npz
from lmbm_torch.data.named import data_folder
from lmbm_torch.estimators import LMSBNClassifier, LMSBNEnsembleClassifier
from lmbm_torch.solvers.base import run
from lmbm_torch.solvers.gram import PrecomputedGram
from lmbm_torch.solvers.networks import kernel_dual_coordinate
from lmbm_torch.solvers.networks.kernel_problems import KernelLabelProblems

SETS = ("flags", "foodtruck", "chd_49", "genbase", "water_quality", "scene", "yeast", "tmc2007_500")
MOST = 5000
GAP = 1e-3
TOLERANCES = (1e-1, 3e-2, 1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5, 3e-6, 1e-6)
processor_seconds = partial(seconds, clock=time.process_time)


def training_part(name: str) -> tuple[Any, np.ndarray]:
    data = read_npz(data_folder() / name / f"{name}.npz")
    features, labels = data.features[data.train][:MOST], data.labels[data.train][:MOST]
    return features.astype(np.float64), labels.astype(np.float64)


def kernel_of(features: Any) -> np.ndarray:
    entries = features.toarray() if sparse.issparse(features) else features
    return rbf_kernel(entries, gamma=1 / (entries.shape[1] * entries.var()))


def joint_kernels(matrix: np.ndarray, labels: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield each label's joint kernel, to be used before the next one is asked for, and its spins."""
    joint = matrix + 1
    for spins in 2 * labels.T - 1:
        if len(np.unique(spins)) == 2:
            yield joint, spins
        joint += np.outer(spins, spins)


def fit_peer(joint: np.ndarray, spins: np.ndarray, C: float, tol: float) -> SVC:
    return SVC(C=C, kernel="precomputed", tol=tol, cache_size=512).fit(joint, spins)


def peer_gap(svm: SVC, joint: np.ndarray, spins: np.ndarray) -> float:
    coef = np.zeros(len(spins))
    coef[svm.support_] = svm.dual_coef_[0]
    fields = joint @ coef
    square = coef @ fields
    losses = np.maximum(1 - spins * (fields + svm.intercept_[0]), 0).sum()
    primal = 0.5 * square + svm.C * losses
    return float((primal - np.abs(coef).sum() + 0.5 * square) / primal)


def peer_tolerances(matrix: np.ndarray, labels: np.ndarray, C: float) -> tuple[list[float], float]:
    """Return each label's loosest tolerance that closes the gap, and the largest gap that is left."""
    found, largest = [], 0.0
    for joint, spins in joint_kernels(matrix, labels):
        for tol in TOLERANCES:
            gap = peer_gap(fit_peer(joint, spins, C, tol), joint, spins)
            if gap <= GAP:
                break
        found.append(tol)
        largest = max(largest, gap)
    return found, largest


def peer_seconds(matrix: np.ndarray, labels: np.ndarray, C: float, tolerances: list[float]) -> float:
    problems = zip(joint_kernels(matrix, labels), tolerances, strict=True)
    return sum(processor_seconds(partial(fit_peer, joint, spins, C, tol)) for (joint, spins), tol in problems)


def solve(matrix: np.ndarray, labels: np.ndarray, C: float) -> kernel_dual_coordinate.KernelState:
    gram = PrecomputedGram(torch.from_numpy(matrix))
    return run(kernel_dual_coordinate, KernelLabelProblems.from_labels(gram, labels, C=C), tol=GAP)


def compare(name: str, C: float, repeats: int) -> dict[str, Any]:
    """Return both in turn."""
    features, labels = training_part(name)
    matrix = kernel_of(features)
    tolerances, their_gap = peer_tolerances(matrix, labels, C)
    state = solve(matrix, labels, C)
    pairs = [
        (processor_seconds(partial(solve, matrix, labels, C)), peer_seconds(matrix, labels, C, tolerances))
        for _ in range(repeats)
    ]
    network = partial(LMSBNClassifier, C, kernel="rbf", random_state=0)
    ours: dict[str, Callable[[], object]] = {
        "fit": lambda: network(ordering="index").fit(features, labels),
        "ordered_fit": lambda: network().fit(features, labels),
        "ten": lambda: LMSBNEnsembleClassifier(network(), random_state=0).fit(features, labels),
    }
    # In turn, for the machine's own speed changes from one to the next.
    rounds = [{what: processor_seconds(work) for what, work in ours.items()} for _ in range(repeats)]

    def median_ratio(what: str, other: str) -> float:
        return round(statistics.median(each[what] / each[other] for each in rounds), 2)

    return {
        "set": name,
        "instances": len(labels),
        "labels": labels.shape[1],
        "C": C,
        "ours_s": round(statistics.median(mine for mine, _ in pairs), 4),
        "libsvm_s": round(statistics.median(theirs for _, theirs in pairs), 4),
        "ratio": round(statistics.median(theirs / mine for mine, theirs in pairs), 2),
        "ratio_min": round(min(theirs / mine for mine, theirs in pairs), 2),
        "our_gap": f"{state.gaps.max():.1e}",
        "libsvm_gap": f"{their_gap:.1e}",
        "rounds": state.num_iters,
        **{f"{what}_s": round(statistics.median(each[what] for each in rounds), 4) for what in ours},
        "ordering_ratio": median_ratio("ordered_fit", "fit"),
        "ten_ratio": median_ratio("ten", "ordered_fit"),
        "repeats": repeats,
    }


def large(C: float = 1.0) -> dict[str, Any]:
    """Return 20,000 instances with 20 labels from features, and SVC on the first two, rare and frequent."""
    data = read_npz(data_folder() / "tmc2007_500" / "tmc2007_500.npz")
    features, labels = data.features[:20_000].astype(np.float64), data.labels[:20_000, :20].astype(np.float64)
    entries = features.toarray()
    network = LMSBNClassifier(C, kernel="rbf", ordering="index", random_state=0)
    network.fit(entries[:50], labels[:50, :2])
    mine = processor_seconds(lambda: network.fit(entries, labels))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    peer = SVC(C=C, gamma="scale", cache_size=1024)
    # Sparse, as which libsvm reads them in less than half the time.
    theirs = [processor_seconds(partial(peer.fit, features, labels[:, k])) for k in (0, 1)]
    return {
        "set": "tmc2007_500",
        "instances": len(entries),
        "labels": labels.shape[1],
        "C": C,
        "ours_s": round(mine, 1),
        "our_gap": f"{network.duality_gap_:.1e}",
        "our_peak_mib": round(peak),
        "svc_first_label_s": round(theirs[0], 1),
        "svc_second_label_s": round(theirs[1], 1),
    }


def main() -> None:
    parser = described(__file__, __doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--sets", nargs="+", default=SETS)
    parser.add_argument("--penalties", type=float, nargs="+", default=[1.0, 10.0, 100.0])
    parser.add_argument("--large", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with threadpool_limits(1), table(arguments.output, arguments.name) as folder:
        if arguments.large:
            row = large()
            write_csv(folder / "large.csv", [row])
            show([row], "20,000 instances, CPU seconds")
            return
        rows = []
        for name in arguments.sets:
            for C in arguments.penalties:
                rows.append(compare(name, C, arguments.repeats))
                print(rows[-1], flush=True)
                write_csv(folder / "table.csv", rows)
    show(rows, "CPU seconds to a relative gap of 1e-3 of every label")


if __name__ == "__main__":
    main()
