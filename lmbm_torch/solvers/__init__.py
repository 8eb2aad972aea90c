"""Dual optimisers: modules with ``init`` and ``update``, driven by ``base.run`` to a certified gap.

Problem and solver are imported by their modules:

    from lmbm_torch.solvers.base import run
    from lmbm_torch.solvers.networks import dual_coordinate
    from lmbm_torch.solvers.networks.problems import LabelProblems

    state = run(dual_coordinate, LabelProblems.from_labels(features, labels), tol=1e-4)

* ``base``, the contract and the driver; ``kernels`` and ``gram``, kernel functions and their values;
* sigmoid belief networks: ``networks.problems`` with ``networks.states``, by ``networks.dual_coordinate``,
  ``networks.exponentiated_gradient`` or ``networks.pegasos``; with kernels ``networks.kernel_problems``, by
  ``networks.kernel_dual_coordinate``, from ``networks.kernel_splitting`` for many orderings at once; with few
  parents for each of many labels ``networks.chosen_parents``;
* Boltzmann machines: ``machines.problem``, by ``machines.proximal_newton`` or ``machines.dual_coordinate``;
* structural SVMs: ``structural.problems``, ``structural.label_vectors`` and ``chains.problems``, by
  ``structural.frank_wolfe``;
* the same of few labels, long chains or many positions, or of columns in unlike units:
  ``structural.label_margins`` and ``chains.margins``, by ``structural.smoothing``;
* chains with kernels: ``chains.kernel_problem``, by ``chains.smo`` or ``chains.exponentiated_gradient``; the
  multi-class SVM, whose chains have one position, by ``chains.multi_class``;
* conditional random fields: ``chains.likelihood``, by ``structural.lbfgs`` or ``chains.iterative_scaling``;
  ``chains.tree_likelihood`` in the dual; hidden labels: ``chains.expectation_maximisation``;
* kernel logistic regression: ``logistic.problems``, by ``logistic.smo`` and ``logistic.newton``.

The other modules are what these are made of, and may change at any time.
"""

from lmbm_torch.extras import naming_extras

with naming_extras():
    import scipy as scipy
