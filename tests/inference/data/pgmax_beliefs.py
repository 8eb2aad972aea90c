"""How pgmax_beliefs.npz was made: beliefs of restricted Boltzmann machines by PGMax, which is no dependency.

    pip install pgmax==0.6.1 jax==0.10.2 numpy==2.4.6
    JAX_ENABLE_X64=1 python pgmax_beliefs.py

Three machines that share a coupling of 24 × 16, once for the sum-product (weights N(0, 0.4²)) and once for
the max-product (weights N(0, 0.1²)), 2,000 iterations of either with half of the old messages kept. Whether
these had converged is seen by what another 500 iterations change, and stored as ``*_change``.
"""

from __future__ import annotations

import types
from pathlib import Path

import jax
import jax.extend.backend
import numpy as np

# PGMax looks for what JAX has since moved.
jax.lib.xla_bridge = types.SimpleNamespace(get_backend=jax.extend.backend.get_backend)

from pgmax import fgraph, fgroup, infer, vgroup  # noqa: E402

BATCH, VISIBLE, HIDDEN = 3, 24, 16


def log_odds(visible, hidden, coupling, temperature, num_iters):
    """Of one machine's visible and hidden units."""
    above, below = (vgroup.NDVarArray(num_states=2, shape=(size,)) for size in (HIDDEN, VISIBLE))
    graph = fgraph.FactorGraph(variable_groups=[above, below])
    pairs = [(i, j) for i in range(VISIBLE) for j in range(HIDDEN)]
    graph.add_factors(
        fgroup.PairwiseFactorGroup(
            variables_for_factors=[[below[i], above[j]] for i, j in pairs],
            log_potential_matrix=np.stack([np.array([[0, 0], [0, coupling[pair]]]) for pair in pairs]),
        )
    )
    inferer = infer.build_inferer(graph.bp_state, backend="bp")
    evidence = {below: np.stack([0 * visible, visible], 1), above: np.stack([0 * hidden, hidden], 1)}
    arrays = inferer.init(evidence_updates=evidence)
    arrays = inferer.run(arrays, num_iters=num_iters, damping=0.5, temperature=temperature)
    beliefs = inferer.get_beliefs(arrays)
    return tuple(np.asarray(beliefs[side][:, 1] - beliefs[side][:, 0]) for side in (below, above))


def main() -> None:
    generator = np.random.default_rng(0)
    arrays = {}
    for name, scale, temperature in (("sum", 0.4, 1.0), ("max", 0.1, 0.0)):
        visible = generator.standard_normal((BATCH, VISIBLE))
        hidden = generator.standard_normal((BATCH, HIDDEN))
        coupling = scale * generator.standard_normal((VISIBLE, HIDDEN))
        came, later = (
            [
                log_odds(*biases, coupling, temperature, num_iters)
                for biases in zip(visible, hidden, strict=True)
            ]
            for num_iters in (2000, 2500)
        )
        change = max(
            abs(a - b).max()
            for one, two in zip(came, later, strict=True)
            for a, b in zip(one, two, strict=True)
        )
        arrays |= {f"{name}_visible": visible, f"{name}_hidden": hidden, f"{name}_coupling": coupling}
        arrays |= {f"{name}_visible_log_odds": np.stack([one[0] for one in came])}
        arrays |= {f"{name}_hidden_log_odds": np.stack([one[1] for one in came])}
        arrays |= {f"{name}_change": np.asarray(change)}
        print(name, change)
    np.savez(Path(__file__).with_suffix(".npz"), **arrays)


if __name__ == "__main__":
    main()
