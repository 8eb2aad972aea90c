"""Dual optimisers: modules with ``init`` and ``update``, driven by ``base.run`` to a certified duality gap.

Import a problem and a solver from their modules::

    from lmbm_torch.solvers.base import run
    from lmbm_torch.solvers.networks import dual_coordinate
    from lmbm_torch.solvers.networks.problems import LabelProblems

    state = run(dual_coordinate, LabelProblems.from_labels(features, labels), tol=1e-4)

* ``base``: the contract and the driver; ``gram``: kernel functions and kernel values.
* Sigmoid belief networks: ``networks.problems`` by ``networks.dual_coordinate``,
  ``networks.exponentiated_gradient`` or ``networks.pegasos``; with kernels ``networks.kernel_problems`` by
  ``networks.kernel_dual_coordinate``; with few parents for each of many labels ``networks.chosen_parents``.
* Boltzmann machines: ``machines.problem`` by ``machines.proximal_newton`` or ``machines.dual_coordinate``.
* Structural SVMs: ``structural.problems``, ``structural.label_vectors`` and ``chains.problems`` by
  ``structural.frank_wolfe``; for few labels, long chains, many positions or columns in unlike units
  ``structural.label_vectors`` and ``chains.linear`` by ``structural.smoothing``.
* Chains with kernels: ``chains.kernel_problem`` by ``chains.smo`` or ``chains.exponentiated_gradient``; the
  multi-class SVM (chains of one position) by ``chains.multi_class``, with free biases by
  ``chains.free_bias``.
* Graphs of many states: ``structural.graphs``, by ``structural.frank_wolfe`` or by their own L-BFGS.
* Conditional random fields: ``chains.linear`` by ``structural.lbfgs``, ``chains.iterative_scaling`` or, with
  an elastic net, ``chains.elastic_net``; in the dual ``chains.tree_likelihood``; with hidden labels
  ``chains.expectation_maximisation``.
* Kernel logistic regression: ``smo``.

The remaining modules are internal and may change.
"""

from lmbm_torch.extras import naming_extras

with naming_extras():
    import scipy as scipy
