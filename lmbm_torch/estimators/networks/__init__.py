"""Sigmoid belief networks with a large margin: trainers, orders of labels, ensembles."""
