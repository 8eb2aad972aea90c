"""Labellings of largest expected measure, such as F1 or the Jaccard index."""
