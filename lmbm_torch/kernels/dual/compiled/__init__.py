"""Inner loops of the dual solvers, compiled for the CPU."""
