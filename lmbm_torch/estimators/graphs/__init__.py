"""Classifiers of the nodes of graphs."""
