"""The same loops in NumPy and PyTorch: the readable references."""
