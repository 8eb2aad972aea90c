"""Boltzmann machines: one hinge problem for all labels together, since cliques share weights."""
