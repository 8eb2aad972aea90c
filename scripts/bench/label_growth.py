"""Growth of time and memory of networks with few parents, with rows and with the density of labels.

Sparse features and labels are drawn from common topics: each row has one, which raises some features and
labels. Rows double at ``--density`` labels a row, then the density doubles at ``--least`` rows. A network is
learned by blocks of 64 labels, one after the other; measured are ``--sampled`` of them, evenly spaced along
the ordering, with all rows and all labels before them to choose parents from: CPU seconds of a
block, the peak memory beyond that of the libraries, each row of the table in a process of its own, and the
relative gap reached. The last row is the largest table learned whole, by :class:`LMSBNClassifier` at its
defaults: its ordering, the choice of how many parents, and all blocks. What was measured before is not
measured again, so that a table that was interrupted goes on.

    OMP_NUM_THREADS=1 python scripts/bench/label_growth.py [--labels 4000] [--least 3125] [--most 100000]
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Any

import numpy as np
from measuring import described, seconds, show, table, write_csv
from rich.console import Console
from scipy import sparse

from lmbm_torch.estimators import LMSBNClassifier
from lmbm_torch.estimators.networks import orderings
from lmbm_torch.fitting.recipe import MANY_LABELS
from lmbm_torch.solvers.networks.chosen_parents import BLOCK, ManyLabels, solve_block
from reproduce.cells import Cell, compute

FEATURES, FEATURES_A_ROW, TOPICS = 1000, 10, 200
PARENTS = 20


def main() -> None:
    parser = described(__file__, __doc__)
    parser.add_argument("--labels", type=int, default=4000)
    parser.add_argument("--least", type=int, default=3125, help="rows")
    parser.add_argument("--most", type=int, default=100_000, help="rows")
    parser.add_argument("--density", type=int, default=4, help="labels a row")
    parser.add_argument("--sampled", type=int, default=3, help="blocks that are learned")
    arguments = parser.parse_args()
    doublings = int(np.log2(arguments.most // arguments.least)) + 1
    sizes = [(arguments.least * 2**d, arguments.density) for d in range(doublings)]
    sizes += [(arguments.least, arguments.density * 2**d) for d in range(1, 3)]
    cells = [
        Cell(
            f"{instances} rows",
            f"{density} of {arguments.labels} labels a row",
            partial(alone, blocks_of, instances, arguments.labels, density, arguments.sampled),
        )
        for instances, density in sizes
    ]
    largest = arguments.most, arguments.labels, arguments.density
    cells.append(Cell(f"{arguments.most} rows", "whole", partial(alone, whole, *largest)))
    with table(arguments.output, arguments.name):
        found = compute(cells, arguments.output, Console())
        rows = [{key: row[key] for key in row if key not in ("data", "method")} for row in found]
        write_csv(arguments.output / "table.csv", rows)
    show(rows, "Fits of networks with few parents")


def alone(measure: Callable[..., dict[str, Any]], *arguments: int) -> dict[str, Any]:
    """Return what is measured in a process that has no other's peak of memory."""
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        return process.submit(measure, *arguments).result()


def blocks_of(instances: int, labels: int, density: int, sampled: int) -> dict[str, Any]:
    """Return the row of some blocks of labels."""
    solve = partial(solve_block, max_parents=PARENTS, tol=1e-3, max_iter=1000, seed=0)
    few = problems_of(50, labels, density)
    # Compiles.
    solve(few, few.blocks()[0])
    before = peak_MiB()
    problems = problems_of(instances, labels, density)
    blocks = problems.blocks()
    chosen = [blocks[place] for place in np.linspace(0, len(blocks) - 1, sampled).round().astype(int)]
    started = time.process_time()
    solved = [solve(problems, block) for block in chosen]
    spent = time.process_time() - started
    primal, dual = (sum(getattr(part, name).sum() for part in solved) for name in ("primal", "dual"))
    return {
        "instances": instances,
        "labels": labels,
        "labels_a_row": problems.labels.nnz / instances,
        "blocks": f"{sampled} of {len(blocks)}",
        "parents": PARENTS,
        "seconds_a_block": spent / sampled,
        "rounds": float(np.mean(np.concatenate([part.num_iters for part in solved]))),
        "peak_MiB": peak_MiB() - before,
        "gap": (primal - dual) / primal,
    }


def whole(instances: int, labels: int, density: int) -> dict[str, Any]:
    """Return the row of the estimator's own fit."""
    network = LMSBNClassifier(random_state=0)
    # Compiles; of as many labels the couplings would be no news any more to the peak.
    network.fit(*drawn(200, min(labels, 2 * MANY_LABELS), density))
    before = peak_MiB()
    X, Y = drawn(instances, labels, density)
    spent = seconds(lambda: network.fit(X, Y), time.process_time)
    blocks = -(-labels // BLOCK)
    return {
        "instances": instances,
        "labels": labels,
        "labels_a_row": Y.nnz / instances,
        "blocks": "all and the choice of parents",
        "parents": network.max_parents_,
        "seconds_a_block": spent / blocks,
        "rounds": network.n_iter_,
        "peak_MiB": peak_MiB() - before,
        "gap": network.duality_gap_,
    }


def peak_MiB() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def problems_of(instances: int, labels: int, density: int) -> ManyLabels:
    """Return the problems of :class:`LMSBNClassifier` with C = 1."""
    X, Y = drawn(instances, labels, density)
    order = orderings.frequency(Y)
    return ManyLabels(features=X, labels=sparse.csc_array(Y, dtype=np.float64)[:, order], C=1.0)


def drawn(instances: int, labels: int, density: int) -> tuple[sparse.csr_array, sparse.csr_array]:
    """Return features and labels by topic, half of each row's from its own topic."""
    random = np.random.default_rng(0)
    topic = random.integers(TOPICS, size=instances)
    return (
        entries(random, topic, FEATURES, FEATURES_A_ROW),
        entries(random, topic, labels, density),
    )


def entries(random: np.random.Generator, topic: np.ndarray, columns: int, count: int) -> sparse.csr_array:
    """Return ``count`` draws a row, of which some may coincide."""
    own = topic[:, None] * (columns // TOPICS) + random.integers(columns // TOPICS, size=(len(topic), count))
    anywhere = random.integers(columns, size=own.shape)
    column = np.where(random.random(own.shape) < 0.5, own, anywhere).ravel()
    row = np.repeat(np.arange(len(topic)), count)
    found = sparse.csr_array((np.ones(len(row)), (row, column)), shape=(len(topic), columns))
    found.data[:] = 1
    return found


if __name__ == "__main__":
    main()
