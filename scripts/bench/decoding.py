"""Exact hinge decoding by branch and bound, beside batched enumeration and a MILP solver.

Peers: ``inference.enumeration.exact`` on the whole batch, on the same cores; HiGHS on the same problem with
    the products
of labels linearised, one example after the other for a sample of them, and credited with perfect use of the
cores and with models built beforehand. All three must find the same least losses. The models are linear SVMs,
one a label on [x, spins of the labels before it], C = 0.1, standardised features.

Floor: every example needs one descent, K(K − 1)/2 multiply-adds that settle the fields and as many losses
that bound them, some 8 operations each, and N K fields in and N K labels out. Scene (1196 · 6): 0.14e6
operations and 0.1 MB, 0.05 ms on one core; Yeast (917 · 14): 0.7e6, 0.2 ms. Beyond it are nodes that are no
part of a first descent (``nodes_per_label`` − 1) and, on batches so small, the checks and renamings around
the search.

The second table has the cost as labels are added: of a model trained on RCV1 (its first labels are a model of
their own), and of random ones.

    python scripts/bench/decoding.py [--repeats 50] [--sample 20]
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import numpy as np
import torch
from measuring import described, median_seconds, show, table, told, write_csv
from scipy import sparse
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

from lmbm_torch.data import load
from lmbm_torch.energies import DirectedEnergy
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.inference.search import branch_and_bound
from reproduce.decoding_times import network_program, solve

THREADS = 2
NODE_LIMIT = 1_000_000
CLOSE = 1e-4


def label_svms(
    name: str, num_labels: int | None, context: Callable[[int, int], Sequence[int]]
) -> tuple[np.ndarray, np.ndarray]:
    """Return unary weights of test examples, and weights of the spins of ``context(label, labels)``."""
    data = load(name)
    train, test = data.features[data.train], data.features[data.test]
    if not sparse.issparse(train):
        scaler = StandardScaler().fit(train)
        train, test = scaler.transform(train), scaler.transform(test)
    spins = 2 * data.labels[data.train][:, :num_labels] - 1
    count = spins.shape[1]
    unary, weights = np.zeros((len(data.test), count)), np.zeros((count, count))
    for label in range(count):
        others = list(context(label, count))
        given = [train, spins[:, others]]
        inputs = sparse.csr_matrix(sparse.hstack(given)) if sparse.issparse(train) else np.hstack(given)
        svm = LinearSVC(loss="hinge", C=0.1, tol=1e-3, max_iter=100_000, random_state=0)
        coef = svm.fit(inputs, spins[:, label]).coef_[0]
        unary[:, label] = test @ coef[: data.num_features] + svm.intercept_
        weights[label, others] = coef[data.num_features :]
    return unary, weights


def trained_energy(name: str, num_labels: int | None = None) -> DirectedEnergy:
    """Return the float32 energy of the test examples, labels in their own order."""
    unary, parents = label_svms(name, num_labels, lambda label, count: range(label))
    weights = torch.tensor(parents, dtype=torch.float32)
    return DirectedEnergy(torch.tensor(unary, dtype=torch.float32), weights, torch.arange(len(weights)))


def random_energy(num_labels: int, num_examples: int) -> DirectedEnergy:
    """Return standard normal evidence, and parents that together weigh as much."""
    generator = torch.Generator().manual_seed(num_labels)
    unary = torch.randn(num_examples, num_labels, generator=generator)
    parents = torch.randn(num_labels, num_labels, generator=generator) / num_labels**0.5
    return DirectedEnergy(unary, parents.tril(-1), torch.arange(num_labels))


def first_labels(energy: DirectedEnergy, count: int) -> DirectedEnergy:
    """Return the labels that come first: those after them are nobody's parents."""
    return DirectedEnergy(energy.unary[:, :count], energy.parents[:count, :count], torch.arange(count))


def compare(name: str, energy: DirectedEnergy, repeats: int, sample: int) -> dict[str, object]:
    """Return milliseconds for all examples, and whether the three agree."""
    found, enumerated = branch_and_bound.decode_hinge(energy), exact.decode_hinge(energy)
    if not found.status.exact.all() or (found.objective - enumerated.objective).abs().max() > CLOSE:
        raise RuntimeError(f"{name}: branch and bound and enumeration disagree")
    rows = torch.linspace(0, energy.batch_size - 1, sample).long()
    parents = energy.parents.double().numpy()
    solved = [solve(network_program(unary, parents)) for unary in energy.unary[rows].double().numpy()]
    if (found.objective[rows] - torch.tensor([loss for loss, _ in solved])).abs().max() > CLOSE:
        raise RuntimeError(f"{name}: branch and bound and HiGHS disagree")

    ours = 1e3 * median_seconds(lambda: branch_and_bound.decode_hinge(energy), repeats)
    enumeration = 1e3 * median_seconds(lambda: exact.decode_hinge(energy), max(3, repeats // 10))
    highs = statistics.mean(spent for _, spent in solved) * energy.batch_size / THREADS
    return {
        "set": name,
        "examples": energy.batch_size,
        "labels": energy.num_labels,
        "branch_and_bound_ms": round(ours, 3),
        "enumeration_ms": round(enumeration, 3),
        "highs_ms": round(highs),
        "enumeration_ratio": round(enumeration / ours, 2),
        "highs_ratio": round(highs / ours),
        "nodes_per_label": round(float(found.status.num_iters.double().mean()) / energy.num_labels, 3),
        "repeats": repeats,
        "highs_examples": sample,
        "threads": THREADS,
    }


def grow(name: str, energy: DirectedEnergy, repeats: int) -> dict[str, object]:
    """Return the cost of an example, by either objective."""
    row: dict[str, object] = {"model": name, "labels": energy.num_labels, "examples": energy.batch_size}
    for objective, decode in (("hinge", branch_and_bound.decode_hinge), ("log", branch_and_bound.decode)):
        found = decode(energy, node_limit=NODE_LIMIT)
        spent = 1e3 * median_seconds(lambda decode=decode: decode(energy, node_limit=NODE_LIMIT), repeats)
        row |= {
            f"{objective}_us": round(1e3 * spent / energy.batch_size, 2),
            f"{objective}_nodes": round(float(found.status.num_iters.double().mean()), 1),
            f"{objective}_most_nodes": int(found.status.num_iters.max()),
            f"{objective}_proven": round(float(found.status.exact.double().mean()), 4),
        }
    return row


def main() -> None:
    parser = described(__file__, __doc__)
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--sample", type=int, default=20, help="examples that HiGHS is given")
    arguments = parser.parse_args()
    torch.set_num_threads(THREADS)
    sets = ("scene", "yeast")
    compared = [
        told(compare(name, trained_energy(name), arguments.repeats, arguments.sample)) for name in sets
    ]
    show(compared, "all test examples, milliseconds")

    few = max(3, arguments.repeats // 10)
    rcv1 = trained_energy("rcv1_subset1")
    rows = [
        told(grow("trained on rcv1", first_labels(rcv1, labels), few)) for labels in (10, 20, 40, 60, 80, 101)
    ]
    rows += [told(grow("random", random_energy(labels, 100), few)) for labels in (10, 15, 20, 25, 30, 35, 40)]
    with table(arguments.output, arguments.name) as folder:
        write_csv(folder / "table.csv", compared)
        write_csv(folder / "labels.csv", rows)
    show(rows, "one example, microseconds")


if __name__ == "__main__":
    main()
