"""Figure 3 of lmbm_and_lmsbn_2010: what exact decoding costs as labels are added.

A linear network is trained on some of the documents, with the labels that occur most, and decodes the test
part. Beside it stand an untrained network, whose weights are drawn with the standard deviations of the best
trained network's, and the linear relaxation of both. Time is told for more and more labels, without a cutoff
as in the paper and with one, of the processor, so that other work on the machine does not count. Solved
within S are the documents whose best labelling costs less than S right branches, which is certified; the
share is told for all labels and more and more S. Theorem 9 promises a share of 1 − E[loss] / (S γ) of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import highspy
import numpy as np
import torch
from matplotlib.figure import Figure
from scipy import sparse

from lmbm_torch.compare.tables import write_csv
from lmbm_torch.data import MultilabelData
from lmbm_torch.energies import DirectedEnergy
from lmbm_torch.estimators import LMSBNClassifier
from lmbm_torch.files import write_figure
from lmbm_torch.inference.search import branch_and_bound
from lmbm_torch.viz.style import COLOURS, open_frame
from reproduce.cells import Cell

NUM_LABELS = (10, 20, 40, 60, 80, 101)
NUM_INSTANCES = (10, 100, 1000, 3000)
UNTRAINED = 0
"""The number of instances that stands for random weights."""
CUTOFF = 4
"""S of the times."""
CUTOFFS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""S of the shares."""
PENALTY, MARGIN = 1.0, 1.0
# Ends searches that would take seconds; a document that meets it counts as not solved.
NODE_LIMIT = 100_000
# Documents of the test part that are decoded, by a trained and by an untrained network; and how many are
# timed one by one, by search and by the relaxation.
TESTED, TESTED_UNTRAINED, TIMED, TIMED_RELAXED = 1000, 20, 200, 5


def decoding_cells(data: MultilabelData) -> Iterator[Cell]:
    """Yield a cell for each number of labels and of training instances."""
    for instances in (*NUM_INSTANCES, UNTRAINED):
        for labels in NUM_LABELS:
            method = f"{labels} labels, {_name(instances)}"
            yield Cell(data.name, method, partial(timed, data, labels, instances))
    for instances in (NUM_INSTANCES[-1], UNTRAINED):
        for labels in NUM_LABELS:
            method = f"{labels} labels, {_name(instances)}, LP"
            yield Cell(data.name, method, partial(relaxed, data, labels, instances))
    for instances in (*NUM_INSTANCES, UNTRAINED):
        method = f"{data.num_labels} labels, {_name(instances)}, any S"
        yield Cell(data.name, method, partial(shares, data, instances))


def _name(instances: int) -> str:
    return "untrained" if instances == UNTRAINED else f"{instances} instances"


def timed(data: MultilabelData, num_labels: int, num_instances: int) -> dict[str, Any]:
    """Decode the test part with one cutoff, and some of its documents one by one, with it and without."""
    energy, mean_loss, seconds = modelled(data, num_labels, num_instances)
    search = partial(branch_and_bound.decode_hinge, margin=MARGIN, node_limit=NODE_LIMIT)
    found = search(energy, cutoff=float(CUTOFF))
    milliseconds = _milliseconds(partial(search, cutoff=float(CUTOFF)), energy, TIMED)
    exact = _milliseconds(search, energy, TIMED)
    return {
        "labels": num_labels,
        "instances": num_instances,
        "fit_seconds": seconds,
        "median_ms": float(np.median(milliseconds)),
        "p95_ms": float(np.quantile(milliseconds, 0.95)),
        "exact_ms": float(np.median(exact)),
        "median_nodes": float(np.median(np.asarray(found.nodes))),
        "within": float(found.status.exact.double().mean()),
        "promised": promised(mean_loss, CUTOFF, MARGIN),
    }


def relaxed(data: MultilabelData, num_labels: int, num_instances: int) -> dict[str, Any]:
    """Solve the linear relaxation of a few documents one by one."""
    energy, _, _ = modelled(data, num_labels, num_instances)
    parents = energy.parents.double().numpy()
    milliseconds = [
        solve(network_program(unary, parents, relaxed=True))[1]
        for unary in energy.unary[:TIMED_RELAXED].double().numpy()
    ]
    return {"labels": num_labels, "instances": num_instances, "relaxed_ms": float(np.median(milliseconds))}


def _milliseconds(decode: Callable[[DirectedEnergy], Any], energy: DirectedEnergy, count: int) -> list[float]:
    """Return the processor time of each of the first documents."""
    found = []
    for row in range(min(count, energy.batch_size)):
        document = energy.select(slice(row, row + 1))
        started = time.process_time()
        decode(document)
        found.append(1e3 * (time.process_time() - started))
    return found


def shares(data: MultilabelData, num_instances: int) -> dict[str, Any]:
    """Decode the test part with all labels, with every cutoff and with none."""
    energy, mean_loss, _ = modelled(data, data.num_labels, num_instances)

    def solved(cutoff: float | None) -> float:
        found = branch_and_bound.decode_hinge(energy, MARGIN, cutoff=cutoff, node_limit=NODE_LIMIT)
        return float(found.status.exact.double().mean())

    return {
        "labels": data.num_labels,
        "instances": num_instances,
        "mean_loss": mean_loss,
        "proven": solved(None),
        "_curve": [(S, solved(float(S)), promised(mean_loss, S, MARGIN)) for S in CUTOFFS],
    }


def modelled(
    data: MultilabelData, num_labels: int, num_instances: int
) -> tuple[DirectedEnergy, float, float]:
    """Return the test part's energy by a network of the commonest labels, its mean loss and training time."""
    commonest = np.argsort(-data.labels[data.train].sum(0), kind="stable")[:num_labels]
    is_trained = num_instances != UNTRAINED
    train = data.train[: num_instances if is_trained else NUM_INSTANCES[-1]]
    test = data.test[: TESTED if is_trained else TESTED_UNTRAINED]
    labels = data.labels[:, commonest]
    network = LMSBNClassifier(PENALTY, margin=MARGIN, max_parents=None, random_state=0)
    started = time.perf_counter()
    network.fit(data.features[train], labels[train])
    seconds = time.perf_counter() - started
    features = data.features[test]
    energy = network.energy(features) if is_trained else _random_energy(network, features)
    losses = (MARGIN - energy.local_margins(torch.from_numpy(labels[test]))).clamp(min=0).sum(1)
    return energy, float(losses.mean()), seconds


def _random_energy(network: LMSBNClassifier, features: Any) -> DirectedEnergy:
    """Return the energy by weights that are drawn with the standard deviations of a fitted network's."""
    random = np.random.default_rng(0)
    places = np.argsort(network.ordering_)
    earlier = places[:, None] > places
    coef = random.normal(0, network.coef_.std(), network.coef_.shape)
    intercept = random.normal(0, network.intercept_.std(), network.intercept_.shape)
    spread = network.parent_coef_[earlier].std()
    parents = np.where(earlier, random.normal(0, spread, earlier.shape), 0)
    unary = torch.from_numpy(features @ coef.T + intercept)
    return DirectedEnergy(unary, torch.from_numpy(parents), torch.from_numpy(network.ordering_))


def promised(mean_loss: float, cutoff: float, margin: float) -> float:
    """Return the share of Theorem 9."""
    return max(0.0, 1 - mean_loss / (cutoff * margin))


def draw_decoding(results: list[dict[str, Any]], folder: Path) -> None:
    """Plot Figure 3, time over labels and solved shares over S, and write its points as a table."""
    if not any("_curve" in result for result in results):
        return
    figure = Figure(figsize=(6.0, 7.0), layout="constrained")
    above, below = figure.subplots(2)
    rows, times = [], []
    for instances, colour in zip((*NUM_INSTANCES, UNTRAINED), COLOURS, strict=False):
        own = [result for result in results if result.get("instances") == instances]
        if not own:
            continue
        name = "untrained" if instances == UNTRAINED else f"trained on {instances}"
        for key, style, suffix in (("exact_ms", "o-", ""), ("relaxed_ms", "s--", ", LP")):
            points = [(result["labels"], result[key]) for result in own if key in result]
            times += [(instances, key.removesuffix("_ms"), *point) for point in points]
            if points:
                above.plot(*np.array(points).T, style, color=colour, label=name + suffix)
        curve = np.array([point for result in own for point in result.get("_curve", ())])
        below.plot(*curve[:, :2].T, marker="o", color=colour, label=name)
        below.plot(*curve[:, ::2].T, "--", color=colour)
        rows += [(instances, int(S), *values) for S, *values in curve.tolist()]
    below.plot([], [], "k--", label="bounds (Theorem 9)")
    above.set(xlabel="labels", ylabel="milliseconds a document", yscale="log")
    ticks = [S for S in CUTOFFS if S.bit_count() == 1]
    below.set(xscale="log", xlabel="S", ylabel="share solved within S")
    below.set_xticks(ticks, map(str, ticks))
    below.minorticks_off()
    for axes in (above, below):
        open_frame(axes)
        axes.legend(frameon=False, fontsize=8)
    write_figure(folder / "decoding.png", figure)
    for name, columns, points in (
        ("decoding", ("instances", "S", "solved_within", "promised"), rows),
        ("decoding_times", ("instances", "routine", "labels", "milliseconds"), times),
    ):
        write_csv(folder / f"{name}.csv", [dict(zip(columns, point, strict=True)) for point in points])


def network_program(unary: np.ndarray, parents: np.ndarray, *, relaxed: bool = False) -> highspy.HighsLp:
    """Build min Σ_i ξ_i over binary y, ξ ≥ 0, ξ_i ≥ 1 − m_i(y), q_ij = y_i y_j by McCormick's inequalities.

    Columns are y, ξ, q; a product of spins is s_i s_j = 4 q_ij − 2 y_i − 2 y_j + 1. Relaxed, y is in [0, 1].
    """
    num_labels = len(unary)
    child, parent = parents.nonzero()
    pair = np.arange(len(child))
    of_child, of_parent = (
        sparse.csr_array((np.ones(len(pair)), (pair, labels)), shape=(len(pair), num_labels))
        for labels in (child, parent)
    )
    products = sparse.csr_array((4 * parents[child, parent], (child, pair)), shape=(num_labels, len(pair)))
    own = np.diag(2 * unary - 2 * parents.sum(1)) - 2 * parents
    identity = sparse.eye_array(len(pair))
    blocks = [
        [sparse.csr_array(own), sparse.eye_array(num_labels), products],
        [of_child, None, -identity],
        [of_parent, None, -identity],
        [-of_child - of_parent, None, identity],
    ]
    matrix: Any = sparse.csr_array(sparse.block_array(blocks, format="csr"))

    counts = [num_labels, num_labels, len(pair)]
    program = highspy.HighsLp()
    program.num_row_, program.num_col_ = matrix.shape
    program.col_cost_ = np.repeat([0.0, 1.0, 0.0], counts)
    program.col_lower_ = np.zeros(matrix.shape[1])
    program.col_upper_ = np.repeat([1.0, highspy.kHighsInf, 1.0], counts)
    if not relaxed:
        binary, real = highspy.HighsVarType.kInteger, highspy.HighsVarType.kContinuous
        program.integrality_ = [binary] * num_labels + [real] * (matrix.shape[1] - num_labels)
    program.row_lower_ = np.concatenate([1 + unary - parents.sum(1), np.repeat([0.0, 0.0, -1.0], len(pair))])
    program.row_upper_ = np.full(matrix.shape[0], highspy.kHighsInf)
    program.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    program.a_matrix_.start_, program.a_matrix_.index_ = matrix.indptr, matrix.indices
    program.a_matrix_.value_ = matrix.data
    return program


def solve(program: highspy.HighsLp) -> tuple[float, float]:
    """Return the least loss, and the milliseconds of the processor to it."""
    solver = highspy.Highs()
    solver.silent()
    solver.setOptionValue("threads", 1)
    solver.setOptionValue("mip_rel_gap", 0.0)
    started = time.process_time()
    solver.passModel(program)
    solver.run()
    spent = 1e3 * (time.process_time() - started)
    if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        raise RuntimeError(f"HiGHS stopped: {solver.getModelStatus()}")
    return solver.getInfo().objective_function_value, spent
