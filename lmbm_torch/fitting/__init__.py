"""Training in the dual: from a model to the dual problem, and from a solver's state to the model's weights.

This package is internal and may change.

* ``dual``: sigmoid belief networks, linear or with a kernel, and Boltzmann machines;
* ``recipe``: the default settings for all trainings.
"""
