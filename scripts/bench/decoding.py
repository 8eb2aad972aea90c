"""Exact hinge decoding by branch and bound, beside batched enumeration and a MILP solver.

Peers: ``inference.exact`` on the whole batch, on the same cores; HiGHS on the same problem with the products
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

The third one has Boltzmann machines, in milliseconds of processor time for an example: the relaxation beside
the same programme in cvxpy, with parameters and compiled once (``dpp``) or built again for each example
(``rebuilt``); the mixed-integer programme, its time limit by the clock, the share that it proved; to compare,
branch and bound on sigmoid belief networks of the same labels, with the share that it proved. ``lp_gap`` and
``milp_gap`` are what is left between labelling and bound, as a share of the objective. Trained models are
large-margin ones (C = 0.1, η0 = 10), every two labels coupled, of Scene, Yeast and the first 50 and 100
labels of Mediamill's subset; examples are unseen ones. Random ones are dense and frustrated: standard normal
evidence, couplings that together weigh as much.

    python scripts/bench/decoding.py [--repeats 50] [--sample 20] [--time-limit 15] [--only TABLE]
"""

from __future__ import annotations

import argparse
import csv
import statistics
import time
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path

import highspy
import numpy as np
import torch
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table
from scipy import sparse
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from threadpoolctl import threadpool_limits

from lmbm_torch.data import load
from lmbm_torch.energies import DirectedEnergy, PairwiseEnergy
from lmbm_torch.estimators import LMBMClassifier, LMSBNClassifier
from lmbm_torch.inference import (
    Decoding,
    branch_and_bound,
    exact,
    integer_program,
    lp_reference,
    lp_relaxation,
)

RESULTS = Path(__file__).parent / "results"
THREADS = 2
NODE_LIMIT = 1_000_000
CLOSE = 1e-4


def label_svms(
    name: str, num_labels: int | None, context: Callable[[int, int], Sequence[int]]
) -> tuple[np.ndarray, np.ndarray]:
    """Evidence for the test examples' first labels, and the weights of ``context(label, labels)``'s spins."""
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
    """The test examples of a model in the order of the labels, in float32 like the models of the library."""
    unary, parents = label_svms(name, num_labels, lambda label, count: range(label))
    weights = torch.tensor(parents, dtype=torch.float32)
    return DirectedEnergy(torch.tensor(unary, dtype=torch.float32), weights, torch.arange(len(weights)))


def learned(name: str, num_labels: int) -> tuple[PairwiseEnergy, DirectedEnergy]:
    """Unseen examples of a Boltzmann machine and of a sigmoid belief network, trained on the first labels."""
    data = load(name)
    half = len(data.train) // 2
    # The subset of Mediamill comes without a test part, in no order.
    train, test = (data.train, data.test) if len(data.test) else (data.train[:half], data.train[half:])
    labels = data.labels[train, :num_labels]
    scaler = StandardScaler().fit(data.features[train])
    inputs, unseen = (scaler.transform(data.features[rows].astype(np.float64)) for rows in (train, test))
    machine = LMBMClassifier(0.1, solver="dual_coordinate", decoder="lp_relaxation", tol=1e-2, random_state=0)
    network = LMSBNClassifier(0.1, ordering="index", random_state=0)
    coupled = machine.fit(inputs, labels).energy(unseen)
    return coupled, network.fit(inputs, labels).energies(unseen)[0]  # pyright: ignore[reportReturnType]  # pairs


def random_boltzmann(num_labels: int, num_examples: int) -> PairwiseEnergy:
    """Standard normal evidence, and couplings that together weigh as much."""
    generator = torch.Generator().manual_seed(num_labels)
    unary = torch.randn(num_examples, num_labels, generator=generator).double()
    upper = torch.randn(num_labels, num_labels, generator=generator).double().triu(1) / num_labels**0.5
    return PairwiseEnergy(unary, upper + upper.mT)


def random_energy(num_labels: int, num_examples: int) -> DirectedEnergy:
    """Standard normal evidence, and parents that together weigh as much."""
    generator = torch.Generator().manual_seed(num_labels)
    unary = torch.randn(num_examples, num_labels, generator=generator)
    parents = torch.randn(num_labels, num_labels, generator=generator) / num_labels**0.5
    return DirectedEnergy(unary, parents.tril(-1), torch.arange(num_labels))


def first_labels(energy: DirectedEnergy, count: int) -> DirectedEnergy:
    """The labels that come first: those after them are nobody's parents."""
    return DirectedEnergy(energy.unary[:, :count], energy.parents[:count, :count], torch.arange(count))


def network_program(unary: np.ndarray, parents: np.ndarray) -> highspy.HighsLp:
    """min Σ_i ξ_i over binary y, ξ ≥ 0, ξ_i ≥ 1 − m_i(y), with q_ij = y_i y_j by McCormick's inequalities.

    Columns are y, ξ, q; a product of spins is s_i s_j = 4 q_ij − 2 y_i − 2 y_j + 1.
    """
    num_labels = len(unary)
    child, parent = parents.nonzero()
    pair, own = np.arange(len(child)), np.arange(num_labels)
    num_columns = 2 * num_labels + len(pair)
    margins = np.zeros((num_labels, num_columns))
    margins[:, :num_labels] = -2 * parents
    margins[own, own] = 2 * unary - 2 * parents.sum(1)
    margins[own, num_labels + own] = 1
    margins[child, 2 * num_labels + pair] = 4 * parents[child, parent]
    below_child, below_parent, above = np.zeros((3, len(pair), num_columns))
    below_child[pair, child] = below_parent[pair, parent] = above[pair, 2 * num_labels + pair] = 1
    below_child[pair, 2 * num_labels + pair] = below_parent[pair, 2 * num_labels + pair] = -1
    above[pair, child] = above[pair, parent] = -1
    matrix = np.concatenate([margins, below_child, below_parent, above])
    row, column = matrix.nonzero()

    counts = [num_labels, num_labels, len(pair)]
    program = highspy.HighsLp()
    program.num_row_, program.num_col_ = len(matrix), num_columns
    program.col_cost_ = np.repeat([0.0, 1.0, 0.0], counts)
    program.col_lower_ = np.zeros(num_columns)
    program.col_upper_ = np.repeat([1.0, highspy.kHighsInf, 1.0], counts)
    binary, real = highspy.HighsVarType.kInteger, highspy.HighsVarType.kContinuous
    program.integrality_ = [binary] * num_labels + [real] * (num_columns - num_labels)
    program.row_lower_ = np.concatenate([1 + unary - parents.sum(1), np.repeat([0.0, 0.0, -1.0], len(pair))])
    program.row_upper_ = np.full(len(matrix), highspy.kHighsInf)
    program.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    program.a_matrix_.start_ = np.searchsorted(row, np.arange(len(matrix) + 1)).astype(np.int32)
    program.a_matrix_.index_, program.a_matrix_.value_ = column.astype(np.int32), matrix[row, column]
    return program


def solve(program: highspy.HighsLp) -> tuple[float, float]:
    """The least loss, and the milliseconds to it."""
    solver = highspy.Highs()
    solver.silent()
    solver.setOptionValue("threads", 1)
    solver.setOptionValue("mip_rel_gap", 0.0)
    started = time.perf_counter()
    solver.passModel(program)
    solver.run()
    spent = 1e3 * (time.perf_counter() - started)
    if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        raise RuntimeError(f"HiGHS stopped: {solver.getModelStatus()}")
    return solver.getInfo().objective_function_value, spent


def median_ms(work: Callable[[], object], repeats: int) -> float:
    """After one call that compiles and warms up."""
    work()
    spent = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        spent.append(time.perf_counter() - started)
    return 1e3 * statistics.median(spent)


def compare(name: str, energy: DirectedEnergy, repeats: int, sample: int) -> dict[str, object]:
    """Milliseconds for all examples, and whether the three agree."""
    found, enumerated = branch_and_bound.decode_hinge(energy), exact.decode_hinge(energy)
    if not found.status.exact.all() or (found.objective - enumerated.objective).abs().max() > CLOSE:
        raise RuntimeError(f"{name}: branch and bound and enumeration disagree")
    rows = torch.linspace(0, energy.batch_size - 1, sample).long()
    parents = energy.parents.double().numpy()
    solved = [solve(network_program(unary, parents)) for unary in energy.unary[rows].double().numpy()]
    if (found.objective[rows] - torch.tensor([loss for loss, _ in solved])).abs().max() > CLOSE:
        raise RuntimeError(f"{name}: branch and bound and HiGHS disagree")

    ours = median_ms(lambda: branch_and_bound.decode_hinge(energy), repeats)
    enumeration = median_ms(lambda: exact.decode_hinge(energy), max(3, repeats // 10))
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
    """The cost of an example, by either objective."""
    row: dict[str, object] = {"model": name, "labels": energy.num_labels, "examples": energy.batch_size}
    for objective, decode in (("hinge", branch_and_bound.decode_hinge), ("log", branch_and_bound.decode)):
        found = decode(energy, node_limit=NODE_LIMIT)
        spent = median_ms(lambda decode=decode: decode(energy, node_limit=NODE_LIMIT), repeats)
        row |= {
            f"{objective}_us": round(1e3 * spent / energy.batch_size, 2),
            f"{objective}_nodes": round(float(found.status.num_iters.double().mean()), 1),
            f"{objective}_most_nodes": int(found.status.num_iters.max()),
            f"{objective}_proven": round(float(found.status.exact.double().mean()), 4),
        }
    return row


def processor_ms(work: Callable[[], object], examples: int, repeats: int = 1) -> float:
    """The processor's milliseconds an example, whoever else wants it, at the best of some calls."""
    spent = []
    for _ in range(repeats):
        started = time.process_time()
        work()
        spent.append(time.process_time() - started)
    return 1e3 * min(spent) / examples


def relaxations(energy: PairwiseEnergy, hinge: bool, few: int) -> tuple[Decoding, dict[str, float]]:
    """The relaxation of the first examples, and what an example costs, there and in cvxpy."""
    decode = lp_relaxation.decode_hinge if hinge else lp_relaxation.decode
    found = decode(energy)
    ours = processor_ms(lambda: decode(energy), energy.batch_size, repeats=5)
    labels = energy.num_labels
    pairs = tuple(combinations(range(labels), 2))

    def build() -> lp_reference.Relaxation:
        if hinge:
            return lp_reference.hinge_relaxation(labels, pairs, 1.0)
        return lp_reference.score_relaxation(labels, pairs)

    part, compiled = energy.select(slice(0, few)), build()
    values, _ = lp_reference.relax(compiled, part)
    if (values - found.bound[:few]).abs().max() > CLOSE * values.abs().max().clamp(min=1):
        raise RuntimeError("Clarabel called directly and through cvxpy disagree")

    def one_by_one(relaxation: Callable[[], lp_reference.Relaxation]) -> None:
        for row in range(few):
            lp_reference.relax(relaxation(), part.select(slice(row, row + 1)))

    dpp = processor_ms(lambda: one_by_one(lambda: compiled), few, repeats=3)
    rebuilt = processor_ms(lambda: one_by_one(build), few)
    return found, {
        "lp_ms": round(ours, 2),
        "dpp_ms": round(dpp, 2),
        "rebuilt_ms": round(rebuilt, 1),
        "dpp_ratio": round(dpp / ours, 1),
        "rebuilt_ratio": round(rebuilt / ours, 1),
    }


def gap(found: Decoding) -> float:
    """What is left between objective and bound, as a share of the objective or of 1, the mean."""
    share = (found.bound - found.objective).abs() / found.objective.abs().clamp(min=1)
    return round(float(share.mean()), 4)


def undirected(
    model: str, energy: PairwiseEnergy, network: DirectedEnergy, hinge: bool, few: int, time_limit: float
) -> dict[str, object]:
    """One row of the third table; ``few`` examples for whatever takes longer than the relaxation."""
    relaxed, times = relaxations(energy, hinge, few)
    part = energy.select(slice(0, few))
    milp = integer_program.decode_hinge if hinge else integer_program.decode
    started = time.process_time()
    solved = milp(part, time_limit=time_limit)
    milp_ms = 1e3 * (time.process_time() - started) / few
    sign = -1 if hinge else 1
    slack = CLOSE * solved.objective.abs().clamp(min=1)
    if (sign * (solved.objective - relaxed.bound[:few]) > slack).any():
        raise RuntimeError(f"{model}: a labelling is better than the relaxation's bound")
    search = branch_and_bound.decode_hinge if hinge else branch_and_bound.decode
    network = network.select(slice(0, energy.batch_size))
    proven = search(network, node_limit=NODE_LIMIT).status.exact
    searched = processor_ms(lambda: search(network, node_limit=NODE_LIMIT), energy.batch_size, repeats=3)
    return {
        "model": model,
        "labels": energy.num_labels,
        "objective": "hinge" if hinge else "score",
        **times,
        "lp_tight": round(float(relaxed.status.exact.double().mean()), 2),
        "lp_gap": gap(relaxed),
        "milp_ms": round(milp_ms, 1),
        "milp_proven": round(float(solved.status.exact.double().mean()), 2),
        "milp_gap": gap(solved),
        "network_ms": round(searched, 4),
        "network_proven": round(float(proven.double().mean()), 2),
        "examples": energy.batch_size,
        "few": few,
        "time_limit_s": time_limit,
    }


def plot_undirected(rows: list[dict[str, object]]) -> None:
    """Cost against labels, a panel for each kind of model and objective; hollow where proofs are missing."""
    figure = Figure(figsize=(9, 7), layout="constrained")
    axes = figure.subplots(2, 2, sharex=True, sharey=True)
    series = {
        "lp_ms": ("LP, Clarabel directly", None),
        "dpp_ms": ("LP, cvxpy compiled once", None),
        "rebuilt_ms": ("LP, cvxpy rebuilt", None),
        "milp_ms": ("MILP, HiGHS", "milp_proven"),
        "network_ms": ("branch and bound, sigmoid belief network", "network_proven"),
    }
    kinds = [(kind, objective) for kind in ("trained", "random") for objective in ("score", "hinge")]
    for axis, (kind, objective) in zip(axes.flat, kinds, strict=True):
        chosen = [row for row in rows if str(row["model"]).startswith(kind) and row["objective"] == objective]
        labels = [row["labels"] for row in chosen]
        for column, (label, proven) in series.items():
            (line,) = axis.plot(labels, [row[column] for row in chosen], label=label)
            for row in chosen:
                filled = proven is None or row[proven] == 1
                face = line.get_color() if filled else "white"
                axis.plot(row["labels"], row[column], "o", color=line.get_color(), markerfacecolor=face)
        axis.set(xscale="log", yscale="log", title=f"{kind}, {objective}")
        axis.set_xticks(labels, labels=[str(count) for count in labels])
        axis.minorticks_off()
    figure.supxlabel("labels")
    figure.supylabel("processor milliseconds an example")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
    figure.savefig(RESULTS / "decoding_pairwise.png", dpi=120)


def report(name: str, title: str, rows: list[dict[str, object]]) -> None:
    """Write a CSV file and print it as a table."""
    RESULTS.mkdir(exist_ok=True)
    with (RESULTS / f"{name}.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    table = Table(title=title)
    for column in rows[0]:
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(*map(str, row.values()))
    Console(width=200).print(table)


def directed_tables(repeats: int, sample: int) -> None:
    """The first two tables."""
    rows = [compare(name, trained_energy(name), repeats, sample) for name in ("scene", "yeast")]
    report("decoding", "all test examples, milliseconds", rows)

    few = max(3, repeats // 10)
    rcv1 = trained_energy("rcv1_subset1")
    rows = [grow("trained on rcv1", first_labels(rcv1, labels), few) for labels in (10, 20, 40, 60, 80, 101)]
    rows += [grow("random", random_energy(labels, 100), few) for labels in (10, 15, 20, 25, 30, 35, 40)]
    report("decoding_labels", "one example, microseconds", rows)


def undirected_table(time_limit: float) -> None:
    """The third table, and its plot."""
    torch.set_num_threads(1)
    rows = []
    for name, labels in (("scene", 6), ("yeast", 14), ("mediamill_subset", 50), ("mediamill_subset", 100)):
        examples = slice(0, 20 if labels <= 50 else 5)
        machine, belief = learned(name, labels)
        trained, network = machine.select(examples), belief.select(examples)
        random = random_boltzmann(labels, trained.batch_size)
        random_network = random_energy(labels, trained.batch_size)
        few = {6: 10, 14: 10, 50: 3, 100: 2}[labels]
        for hinge in (False, True):
            rows.append(undirected(f"trained {name}", trained, network, hinge, few, time_limit))
            rows.append(undirected("random", random, random_network, hinge, few, time_limit))
    report("decoding_pairwise", "one example of a Boltzmann machine, milliseconds", rows)
    plot_undirected(rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--sample", type=int, default=20, help="examples that HiGHS is given")
    parser.add_argument("--time-limit", type=float, default=15.0, help="seconds of an example's MILP")
    parser.add_argument("--only", choices=("directed", "undirected"), help="these tables alone")
    arguments = parser.parse_args()
    torch.set_num_threads(THREADS)
    if arguments.only != "undirected":
        directed_tables(arguments.repeats, arguments.sample)
    if arguments.only != "directed":
        # Threads of BLAS that wait for work would count as the relaxation's.
        with threadpool_limits(1, "blas"):
            undirected_table(arguments.time_limit)


if __name__ == "__main__":
    main()
