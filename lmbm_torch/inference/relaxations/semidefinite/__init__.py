"""Search for the best labelling of dense Boltzmann machines by semidefinite bounds."""
