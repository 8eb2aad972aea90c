"""Proofs by search as labels are added: the exponential cost of lmbm_and_lmsbn_2010, section 2.3.

Branch and bound on Boltzmann machines, whose bounds tell little until late, on sigmoid belief networks of the
same labels, and toulbar2, which bounds a Boltzmann machine's score by soft local consistency. Examples are
given one at a time; nodes, milliseconds by the clock at the best of three calls (some tenths are the call
itself) and the share that was proved within a million nodes, or toulbar2's time limit. Nodes and milliseconds
are medians over examples.

Models are linear SVMs trained on the first labels of RCV1, for a Boltzmann machine each on the spins of all
other labels, couplings averaged over both directions; and the random ones of ``decoding_pairwise.py``.

    python scripts/bench/searches.py [--examples 11] [--time-limit 15]
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from decoding import NODE_LIMIT, label_svms, random_energy, trained_energy
from decoding_pairwise import random_boltzmann
from matplotlib.figure import Figure
from measuring import described, show, table, write_csv

from lmbm_torch.energies import DirectedEnergy, PairwiseEnergy
from lmbm_torch.files import write_figure
from lmbm_torch.inference.relaxations import cost_function_network
from lmbm_torch.inference.search import branch_and_bound, undirected_branch_and_bound


def trained_boltzmann(name: str, num_labels: int) -> PairwiseEnergy:
    """Return the test examples of a model whose labels are all coupled."""
    unary, weights = label_svms(
        name, num_labels, lambda label, count: [other for other in range(count) if other != label]
    )
    return PairwiseEnergy(torch.tensor(unary), torch.tensor(weights + weights.T) / 2)


def searched(name: str, decode: Callable, energy: PairwiseEnergy | DirectedEnergy) -> dict[str, object]:
    """Return the cost of a search, the median over examples, in columns of its name."""
    decode(energy.select(slice(0, 1)))
    nodes, spent, proven = [], [], []
    for row in range(energy.batch_size):
        part = energy.select(slice(row, row + 1))
        calls = []
        for _ in range(3):
            started = time.perf_counter()
            found = decode(part)
            calls.append(1e3 * (time.perf_counter() - started))
        spent.append(min(calls))
        nodes.append(int(found.nodes.item()))
        proven.append(bool(found.status.exact.item()))
    return {
        f"{name}_nodes": statistics.median(nodes),
        f"{name}_ms": round(statistics.median(spent), 3),
        f"{name}_proven": statistics.mean(proven),
    }


def searches(
    model: str, energy: PairwiseEnergy, network: DirectedEnergy, time_limit: float
) -> list[dict[str, object]]:
    """Return two rows of the table, one for each objective."""
    rows = []
    for objective in ("score", "hinge"):
        name = "decode" if objective == "score" else "decode_hinge"
        machine = partial(getattr(undirected_branch_and_bound, name), node_limit=NODE_LIMIT)
        directed = partial(getattr(branch_and_bound, name), node_limit=NODE_LIMIT)
        row: dict[str, object] = {"model": model, "labels": energy.num_labels, "objective": objective}
        row |= {"examples": energy.batch_size} | searched("machine", machine, energy)
        row |= searched("network", directed, network)
        toulbar2 = dict.fromkeys(("toulbar2_nodes", "toulbar2_ms", "toulbar2_proven"), "")
        if objective == "score":
            decode = partial(cost_function_network.decode, time_limit=time_limit)
            toulbar2 = searched("toulbar2", decode, energy)
        rows.append(row | toulbar2)
        print(rows[-1], flush=True)
    return rows


def plot_searches(rows: list[dict[str, object]], path: Path) -> None:
    """Plot nodes and cost against labels, a column for each kind of model; hollow without a proof."""
    figure = Figure(figsize=(9, 7), layout="constrained")
    axes = figure.subplots(2, 2, sharex=True, sharey="row")
    series = {
        ("machine", "score"): "Boltzmann machine, score",
        ("machine", "hinge"): "Boltzmann machine, hinge",
        ("network", "score"): "sigmoid belief network, probability",
        ("network", "hinge"): "sigmoid belief network, hinge",
        ("toulbar2", "score"): "Boltzmann machine, score, toulbar2",
    }
    for column, kind in enumerate(("trained", "random")):
        for (name, objective), label in series.items():
            chosen = [r for r in rows if str(r["model"]).startswith(kind) and r["objective"] == objective]
            for axis, quantity in zip(axes[:, column], ("nodes", "ms"), strict=True):
                # A logarithmic axis has no place for a search without nodes.
                values = [max(float(str(row[f"{name}_{quantity}"])), 1e-3) for row in chosen]
                (line,) = axis.plot([row["labels"] for row in chosen], values, label=label)
                for row, value in zip(chosen, values, strict=True):
                    face = line.get_color() if row[f"{name}_proven"] == 1 else "white"
                    axis.plot(row["labels"], value, "o", color=line.get_color(), markerfacecolor=face)
        axes[0, column].set(title=kind, yscale="log")
        axes[1, column].set(yscale="log")
    axes[0, 0].set_ylabel("nodes an example, median")
    axes[1, 0].set_ylabel("milliseconds, median")
    figure.supxlabel("labels")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
    write_figure(path, figure)


def main() -> None:
    parser = described(__file__, __doc__)
    parser.add_argument("--examples", type=int, default=11)
    parser.add_argument("--time-limit", type=float, default=15.0, help="seconds of an example for toulbar2")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    examples = slice(0, arguments.examples)
    rows = []
    for count in (6, 10, 14, 18, 22):
        machine = trained_boltzmann("rcv1_subset1", count).select(examples)
        network = trained_energy("rcv1_subset1", count).select(examples)
        rows += searches("trained rcv1_subset1", machine, network, arguments.time_limit)
        machine = random_boltzmann(count, arguments.examples)
        network = random_energy(count, arguments.examples)
        rows += searches("random", machine, network, arguments.time_limit)
    with table(arguments.output, arguments.name) as folder:
        write_csv(folder / "table.csv", rows)
        plot_searches(rows, folder / "table.png")
    show(rows, "searches of one example, medians")


if __name__ == "__main__":
    main()
