"""PGMax on one graph, for matrix_bp.py and grid_messages.py to run in an interpreter that has it.

    python pgmax_peer.py energy.npz beliefs.npz iterations repeats

``energy.npz`` holds one machine's visible (V,), hidden (H,) and coupling (V, H), or a grid's unary (rows,
columns, states) and pairwise (edges, states, states), the edges to the right first, then those down;
``beliefs.npz`` is given the wall and CPU seconds of each repeat (without those in which PGMax builds its
graph and JAX compiles), and the visible units' log-odds or the grid's beliefs, after these iterations and
after ten times as many. PGMax updates all messages at once, so that it agrees with other schedules only where
propagation has converged.
"""

from __future__ import annotations

import sys
import time
import types

import jax  # pyright: ignore[reportMissingImports]
import jax.extend.backend  # pyright: ignore[reportMissingImports]
import numpy as np

# PGMax looks for what JAX has since moved.
jax.lib.xla_bridge = types.SimpleNamespace(get_backend=jax.extend.backend.get_backend)

from pgmax import fgraph, fgroup, infer, vgroup  # noqa: E402  # pyright: ignore[reportMissingImports]


def machine(visible: np.ndarray, hidden: np.ndarray, coupling: np.ndarray) -> tuple:
    """A restricted Boltzmann machine: the graph, its evidence, and the group whose beliefs are asked for."""
    above, below = (vgroup.NDVarArray(num_states=2, shape=side.shape) for side in (hidden, visible))
    graph = fgraph.FactorGraph(variable_groups=[above, below])
    pairs = [[below[i], above[j]] for i in range(len(visible)) for j in range(len(hidden))]
    potentials = np.zeros((*coupling.shape, 2, 2))
    potentials[..., 1, 1] = coupling
    add_pairs(graph, pairs, potentials.reshape(-1, 2, 2))
    return (
        graph,
        {below: np.stack([0 * visible, visible], 1), above: np.stack([0 * hidden, hidden], 1)},
        below,
    )


def grid(unary: np.ndarray, pairwise: np.ndarray) -> tuple:
    """A grid of variables of many states, as :func:`machine`."""
    rows, columns, states = unary.shape
    cells = vgroup.NDVarArray(num_states=states, shape=(rows, columns))
    graph = fgraph.FactorGraph(variable_groups=[cells])
    pairs = [[cells[r, c], cells[r, c + 1]] for r in range(rows) for c in range(columns - 1)]
    pairs += [[cells[r, c], cells[r + 1, c]] for r in range(rows - 1) for c in range(columns)]
    add_pairs(graph, pairs, pairwise)
    return graph, {cells: unary}, cells


def add_pairs(graph: fgraph.FactorGraph, pairs: list, potentials: np.ndarray) -> None:
    graph.add_factors(
        fgroup.PairwiseFactorGroup(variables_for_factors=pairs, log_potential_matrix=potentials)
    )


def main() -> None:
    source, target, iterations, repeats = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    with np.load(source) as energy:
        graph, evidence, group = (grid if "pairwise" in energy else machine)(**energy)
    inferer = infer.build_inferer(graph.bp_state, backend="bp")
    start = inferer.init(evidence_updates=evidence)
    # Not compiled by PGMax itself.
    compiled = jax.jit(inferer.run, static_argnames=("num_iters", "damping", "temperature"))

    def run(num_iters: int):
        return jax.block_until_ready(compiled(start, num_iters=num_iters, damping=0.0, temperature=1.0))

    def asked(arrays) -> np.ndarray:
        beliefs = np.asarray(inferer.get_beliefs(arrays)[group])
        return beliefs if beliefs.ndim == 3 else beliefs[:, 1] - beliefs[:, 0]

    after = asked(run(iterations))
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter(), time.process_time()
        run(iterations)
        seconds.append((time.perf_counter() - started[0], time.process_time() - started[1]))
    wall, cpu = np.transpose(seconds)
    np.savez(target, seconds=wall, cpu_seconds=cpu, after=after, later=asked(run(10 * iterations)))


if __name__ == "__main__":
    main()
