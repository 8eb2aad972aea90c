"""Automatic choice among families of classifiers by cross-validation within a time budget."""
