"""Inner loops of inference and solvers, which numba compiles. This package is internal and may change."""
