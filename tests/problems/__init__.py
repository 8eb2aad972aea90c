"""Data sets and models on which a training takes milliseconds."""
