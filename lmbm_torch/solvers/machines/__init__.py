"""Boltzmann machines: one hinge problem of all labels with shared weights of cliques."""
