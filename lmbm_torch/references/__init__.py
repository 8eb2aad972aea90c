"""Training problems and relaxations as convex programmes for cvxpy, which serve to check the solvers.

Each programme states a problem of a paper in about ten lines. The solver Clarabel gives about ten correct
digits. Labellings are enumerated and kernel matrices are dense: problems should have only a few examples.

* ``labels``: separate labels, binary or of several classes; ``machines``: Boltzmann machines.
* ``chains``, ``graphs``: max-margin Markov networks; ``structural``: structural SVMs over cutting planes.
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
