"""Training problems in the dual: from a model to the problem, from the solver's state to the weights.

This package is internal and may change.

* ``dual``: sigmoid belief networks, linear or with a kernel, and Boltzmann machines;
* ``recipe``: the default settings of all trainings.
"""
