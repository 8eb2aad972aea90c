"""Plain references of inference's inner loops, in NumPy and PyTorch."""
