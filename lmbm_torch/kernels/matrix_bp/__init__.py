"""Belief propagation on restricted Boltzmann machines."""
