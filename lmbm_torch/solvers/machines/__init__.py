"""Boltzmann machines: one hinge problem of all labels, whose cliques share weights."""
