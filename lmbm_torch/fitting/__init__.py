"""Training in the dual: build a model's dual problem, solve it, and copy the solution to the model's weights.

This package is internal and may change.

* ``dual``: dual problems of sigmoid belief networks, linear or with a kernel, and of Boltzmann machines;
* ``recipe``: the default settings for all trainings.
"""
