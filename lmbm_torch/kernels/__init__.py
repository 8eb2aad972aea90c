"""Inner loops of inference and solvers, compiled by numba or interpreted. Internal; may change."""
