"""Plain references of the dual solvers' inner loops, in NumPy and PyTorch."""
