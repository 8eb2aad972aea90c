"""PGMax on a restricted Boltzmann machine, for matrix_bp.py to run in an interpreter that has it.

    python pgmax_peer.py energy.npz beliefs.npz iterations repeats

``energy.npz`` holds one machine's visible (V,), hidden (H,) and coupling (V, H); ``beliefs.npz`` is given the
seconds of each repeat (without those in which PGMax builds its graph and JAX compiles), and the log-odds of
the visible units after these iterations and after ten times as many. PGMax updates all messages at once, so
that it agrees with others only where propagation has converged.
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


def main() -> None:
    source, target, iterations, repeats = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    with np.load(source) as energy:
        visible, hidden, coupling = energy["visible"], energy["hidden"], energy["coupling"]
    above, below = (vgroup.NDVarArray(num_states=2, shape=side.shape) for side in (hidden, visible))
    graph = fgraph.FactorGraph(variable_groups=[above, below])
    units = [[below[i] for i in range(len(visible))], [above[j] for j in range(len(hidden))]]
    potentials = np.zeros((*coupling.shape, 2, 2))
    potentials[..., 1, 1] = coupling
    graph.add_factors(
        fgroup.PairwiseFactorGroup(
            variables_for_factors=[[i, j] for i in units[0] for j in units[1]],
            log_potential_matrix=potentials.reshape(-1, 2, 2),
        )
    )
    inferer = infer.build_inferer(graph.bp_state, backend="bp")
    evidence = {below: np.stack([0 * visible, visible], 1), above: np.stack([0 * hidden, hidden], 1)}
    start = inferer.init(evidence_updates=evidence)

    def run(num_iters: int):
        arrays = inferer.run(start, num_iters=num_iters, damping=0.0, temperature=1.0)
        return jax.block_until_ready(arrays)

    def log_odds(arrays) -> np.ndarray:
        beliefs = inferer.get_beliefs(arrays)[below]
        return np.asarray(beliefs[:, 1] - beliefs[:, 0])

    run(iterations)
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        arrays = run(iterations)
        seconds.append(time.perf_counter() - started)
    np.savez(target, seconds=seconds, after=log_odds(arrays), later=log_odds(run(10 * iterations)))


if __name__ == "__main__":
    main()
