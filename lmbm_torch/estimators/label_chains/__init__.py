"""Classifiers of label vectors over classifiers of other libraries: chains decoded jointly, and trees."""
