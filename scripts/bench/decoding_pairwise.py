"""Decoding of Boltzmann machines by relaxations and integer programmes, beside cvxpy.

In CPU milliseconds for an example: the relaxation beside the same programme in cvxpy, with
parameters and compiled once (``dpp``) or built again for each example (``rebuilt``); the mixed-integer
programme, its time limit by the clock, the share that it proved; to compare, branch and bound on sigmoid
belief networks of the same labels, with the share that it proved. ``lp_gap`` and ``milp_gap`` are the gap
between labelling and bound, as a share of the objective.

Trained models are large-margin ones (C = 0.1, η0 = 10), every two labels coupled, of Scene, Yeast and the
first 50 and 100 labels of Mediamill's subset; examples are unseen ones. Random ones are dense and frustrated:
standard normal evidence, couplings that together weigh as much.

    python scripts/bench/decoding_pairwise.py [--time-limit 15]
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import numpy as np
import torch
from decoding import CLOSE, NODE_LIMIT, random_energy
from matplotlib.figure import Figure
from measuring import described, seconds, show, table, told, write_csv
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from lmbm_torch.data import load
from lmbm_torch.energies import DirectedEnergy, PairwiseEnergy
from lmbm_torch.estimators import LMBMClassifier, LMSBNClassifier
from lmbm_torch.files import write_figure
from lmbm_torch.inference import Decoding
from lmbm_torch.inference.relaxations import integer_program, lp_relaxation
from lmbm_torch.inference.search import branch_and_bound
from lmbm_torch.references import relaxations as programmes


def learned(name: str, num_labels: int) -> tuple[PairwiseEnergy, DirectedEnergy]:
    """Return test examples of a Boltzmann machine and of a belief network, trained on the first labels."""
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
    return coupled, network.fit(inputs, labels).energy(unseen)  # pyright: ignore[reportReturnType]  # pairs


def random_boltzmann(num_labels: int, num_examples: int) -> PairwiseEnergy:
    """Return standard normal evidence, and couplings that together weigh as much."""
    generator = torch.Generator().manual_seed(num_labels)
    unary = torch.randn(num_examples, num_labels, generator=generator).double()
    upper = torch.randn(num_labels, num_labels, generator=generator).double().triu(1) / num_labels**0.5
    return PairwiseEnergy(unary, upper + upper.mT)


def processor_ms(work: Callable[[], object], examples: int, repeats: int = 1) -> float:
    """Return the processor's milliseconds an example, whoever else wants it, at the best of some calls."""
    return 1e3 * min(seconds(work, time.process_time) for _ in range(repeats)) / examples


def relaxations(energy: PairwiseEnergy, hinge: bool, few: int) -> tuple[Decoding, dict[str, float]]:
    """Return the relaxation of the first examples, and what an example costs, there and in cvxpy."""
    decode = lp_relaxation.decode_hinge if hinge else lp_relaxation.decode
    found = decode(energy)
    ours = processor_ms(lambda: decode(energy), energy.batch_size, repeats=5)
    labels = energy.num_labels
    pairs = tuple(combinations(range(labels), 2))

    def build() -> programmes.Relaxation:
        if hinge:
            return programmes.hinge_relaxation(labels, pairs, 1.0)
        return programmes.score_relaxation(labels, pairs)

    part, compiled = energy.select(slice(0, few)), build()
    values, _ = programmes.relax(compiled, part)
    if (values - found.bound[:few]).abs().max() > CLOSE * values.abs().max().clamp(min=1):
        raise RuntimeError("Clarabel called directly and through cvxpy disagree")

    def one_by_one(relaxation: Callable[[], programmes.Relaxation]) -> None:
        for row in range(few):
            programmes.relax(relaxation(), part.select(slice(row, row + 1)))

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
    """Return the mean gap between objective and bound, as a share of the larger of 1 and the objective."""
    share = (found.bound - found.objective).abs() / found.objective.abs().clamp(min=1)
    return round(float(share.mean()), 4)


def compare(
    model: str, energy: PairwiseEnergy, network: DirectedEnergy, hinge: bool, few: int, time_limit: float
) -> dict[str, object]:
    """Return one row of the table; ``few`` examples for whatever takes longer than the relaxation."""
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


def plot(rows: list[dict[str, object]], path: Path) -> None:
    """Plot cost against labels, a panel for each kind of model and objective; hollow without a proof."""
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
    write_figure(path, figure)


def comparisons(time_limit: float) -> list[dict[str, object]]:
    """Return models of more and more labels, trained and random."""
    rows = []
    for name, labels in (("scene", 6), ("yeast", 14), ("mediamill_subset", 50), ("mediamill_subset", 100)):
        examples = slice(0, 20 if labels <= 50 else 5)
        machine, belief = learned(name, labels)
        trained, network = machine.select(examples), belief.select(examples)
        random = random_boltzmann(labels, trained.batch_size)
        random_network = random_energy(labels, trained.batch_size)
        few = {6: 10, 14: 10, 50: 3, 100: 2}[labels]
        for hinge in (False, True):
            rows.append(told(compare(f"trained {name}", trained, network, hinge, few, time_limit)))
            rows.append(told(compare("random", random, random_network, hinge, few, time_limit)))
    return rows


def main() -> None:
    parser = described(__file__, __doc__)
    parser.add_argument("--time-limit", type=float, default=15.0, help="seconds of an example's MILP")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    # Threads of BLAS that wait for work would count as the relaxation's.
    with threadpool_limits(1, "blas"):
        rows = comparisons(arguments.time_limit)
    with table(arguments.output, arguments.name) as folder:
        write_csv(folder / "table.csv", rows)
        plot(rows, folder / "table.png")
    show(rows, "one example of a Boltzmann machine, milliseconds")


if __name__ == "__main__":
    main()
