"""Training problems and relaxations as convex programmes, to read and to check solvers by.

Each programme is the statement of a paper in about ten lines of cvxpy, solved by Clarabel to some ten digits.
Labellings are enumerated, kernel values are whole matrices: for problems of a few examples.

* ``labels``: labels one by one, binary or of several classes; ``machines``: Boltzmann machines.
* ``chains``, ``graphs``: max-margin Markov networks; ``structural``: structural SVMs over given planes.
* ``relaxations``: decoding over the local polytope.
"""

from lmbm_torch.references.chains import TinyChains, chain_dual, chain_primal, factored_chain_dual
from lmbm_torch.references.labels import hinge_dual, hinge_primal, logistic_dual, logistic_primal
from lmbm_torch.references.machines import machine_dual, machine_primal

__all__ = [
    "TinyChains",
    "chain_dual",
    "chain_primal",
    "factored_chain_dual",
    "hinge_dual",
    "hinge_primal",
    "logistic_dual",
    "logistic_primal",
    "machine_dual",
    "machine_primal",
]
