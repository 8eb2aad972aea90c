"""Proven MAP of dense Boltzmann machines: semidefinite branch and bound beside HiGHS and toulbar2.

CPU seconds and by the clock for an example, the share with a proof, nodes, and the mean gap
between labelling and bound as a share of the objective. ``undirected`` is branch and bound under the limit of
nodes of the classifiers, which :func:`lmbm_torch.inference.decode` tries first; the others have limits by the
clock. All on one thread.

Cuts are unweighted random graphs of the Biq Mac library (``maxcut`` in the folder of the data); trained and
random machines are those of ``decoding_pairwise``, random ones up to where the limit ends the search.

    python scripts/bench/dense_map.py [--examples 3] [--time-limit 60] [--peers-limit 20] [--most-labels 140]
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from importlib.util import find_spec

import numpy as np
import torch
from decoding_pairwise import gap, learned, random_boltzmann
from measuring import described, show, table, write_csv
from threadpoolctl import threadpool_limits

from lmbm_torch.data.named import data_folder
from lmbm_torch.energies import PairwiseEnergy
from lmbm_torch.inference import Decoding
from lmbm_torch.inference.common.limits import LIMITS
from lmbm_torch.inference.relaxations import integer_program
from lmbm_torch.inference.relaxations.semidefinite import decoding as semidefinite
from lmbm_torch.inference.search import undirected_branch_and_bound

CUTS = {"g05_60.0": 536, "g05_80.0": 929, "g05_100.4": 1440}
SIZES = (30, 40, 50, 60, 80, 100, 120, 140)
Decoder = Callable[[PairwiseEnergy], Decoding]


def cut_problem(name: str) -> PairwiseEnergy:
    """Return the machine whose score is the weight of the edges that its labelling cuts."""
    edges = np.loadtxt(data_folder() / "maxcut" / f"{name}.rud", skiprows=1)
    size = int(edges[:, :2].max())
    weights = torch.zeros(size, size, dtype=torch.float64)
    first, second = torch.from_numpy(edges[:, :2].astype(np.int64).T - 1)
    weights[first, second] = weights[second, first] = torch.from_numpy(edges[:, 2])
    return PairwiseEnergy(torch.zeros(1, size).double(), -weights / 2, weights.sum()[None] / 4)


def decoders(time_limit: float, peers_limit: float) -> dict[str, Decoder]:
    """Return the compared decoders."""
    found: dict[str, Decoder] = {
        "semidefinite": lambda energy: semidefinite.decode(energy, time_limit=time_limit),
        "undirected": lambda energy: undirected_branch_and_bound.decode(
            energy, node_limit=LIMITS.machine_nodes
        ),
        "highs": lambda energy: integer_program.decode(energy, time_limit=peers_limit),
    }
    if find_spec("pytoulbar2"):
        from lmbm_torch.inference.relaxations import cost_function_network

        limit = max(1, round(peers_limit))
        found["toulbar2"] = lambda energy: cost_function_network.decode(energy, time_limit=limit)
    return found


def measured(decode: Decoder, energy: PairwiseEnergy) -> tuple[dict[str, object], torch.Tensor]:
    """Return the columns of one decoder, and the proven objectives of examples, NaN without a proof."""
    found, spent, clock = [], [], []
    for row in range(energy.batch_size):
        part = energy.select(slice(row, row + 1))
        before, start = time.process_time(), time.perf_counter()
        found.append(decode(part))
        spent.append(time.process_time() - before)
        clock.append(time.perf_counter() - start)
    proven = [each.status.exact.item() for each in found]
    nodes = [each.nodes.item() for each in found if each.nodes is not None]
    columns = {
        "s": round(statistics.median(spent), 4),
        "most_s": round(max(spent), 4),
        "clock_s": round(statistics.median(clock), 4),
        "nodes": statistics.median(nodes),
        "proven": round(float(np.mean(proven)), 2),
        "gap": round(float(np.mean([gap(each) for each in found])), 5),
    }
    values = [each.objective.item() if each.status.exact.item() else np.nan for each in found]
    return columns, torch.tensor(values)


def compare(model: str, energy: PairwiseEnergy, given: dict[str, Decoder]) -> dict[str, object]:
    """Return one row of the table.

    Raises:
        RuntimeError: two decoders prove different optima.
    """
    row: dict[str, object] = {"model": model, "labels": energy.num_labels, "examples": energy.batch_size}
    optima = []
    for name in ("semidefinite", "undirected", "highs", "toulbar2"):
        decode = given.get(name)
        columns = dict.fromkeys(("s", "most_s", "clock_s", "nodes", "proven", "gap"), "")
        if decode is not None:
            columns, values = measured(decode, energy)
            optima.append(values)
        row |= {f"{name}_{column}": value for column, value in columns.items()}
    for values in optima[1:]:
        # NaN, of what was not proven, is not larger.
        if ((values - optima[0]).abs() > 1e-5 * optima[0].abs().clamp(min=1)).any():
            raise RuntimeError(f"{model}: expected one optimum, got {optima[0].tolist()}, {values.tolist()}")
    print(row, flush=True)
    return row


def cuts(given: dict[str, Decoder]) -> list[dict[str, object]]:
    """Return the graphs, whose largest cuts are known."""
    rows = []
    for name, largest in CUTS.items():
        energy = cut_problem(name)
        value = given["semidefinite"](energy).objective.item()
        if value != largest:
            raise RuntimeError(f"{name}: expected a cut of {largest}, got {value}")
        rows.append(compare(name, energy, given))
    return rows


def main() -> None:
    parser = described(__file__, __doc__)
    parser.add_argument("--examples", type=int, default=3)
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds by the clock for an example")
    parser.add_argument("--peers-limit", type=float, default=20.0, help="the same of HiGHS and toulbar2")
    parser.add_argument("--most-labels", type=int, default=max(SIZES), help="of random machines")
    arguments = parser.parse_args()
    given = decoders(arguments.time_limit, arguments.peers_limit)
    ours = {name: given[name] for name in ("semidefinite", "undirected")}
    torch.set_num_threads(1)
    # The first call compiles; CPU time beside BLAS threads that wait would say nothing.
    undirected_branch_and_bound.decode(random_boltzmann(24, 1))
    with threadpool_limits(1, "blas"):
        rows = cuts(given)
        for labels in (50, 100):
            trained = learned("mediamill_subset", labels)[0].select(slice(0, arguments.examples))
            rows.append(compare("trained mediamill_subset", trained, given))
        for labels in SIZES:
            if labels <= arguments.most_labels:
                random = random_boltzmann(labels, arguments.examples)
                rows.append(compare("random", random, given if labels <= 50 else ours))
    with table(arguments.output, arguments.name) as folder:
        write_csv(folder / "table.csv", rows)
    show(rows, "one example of a dense Boltzmann machine, seconds")


if __name__ == "__main__":
    main()
