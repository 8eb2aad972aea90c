"""The same searches in NumPy and PyTorch: the readable references."""
