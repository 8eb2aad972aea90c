"""Labellings of largest expected measure, like F1 or the Jaccard index."""
