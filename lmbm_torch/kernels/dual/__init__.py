"""Inner loops of the dual solvers."""
