"""Classifiers of label vectors: chains of any classifiers, decoded jointly, and trees for all labels."""
