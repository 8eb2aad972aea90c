"""From a model to its training problem in the dual, from the solver's state to the model's weights.

Imported by its module:

* ``dual``: sigmoid belief networks, linear or with a kernel, and Boltzmann machines;
* ``recipe``: what all of them are trained by where nobody says otherwise.
"""
