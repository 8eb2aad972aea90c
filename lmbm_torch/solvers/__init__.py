"""Dual optimisers, free of Lightning: ``init → update → run``, an immutable state, the gap always defined.

Problem and solver are imported by their modules, ``from lmbm_torch.solvers import dual_coordinate``:

* ``base``, what all of them promise; ``kernels`` and ``gram``, inner products evaluated when asked for;
* sigmoid belief networks: ``label_problems``, by ``dual_coordinate``, ``label_gradient`` (exponentiated) or
  ``pegasos``; with kernels ``kernel_problems``, by ``kernel_dual_coordinate``;
* Boltzmann machines: ``shared_problem``, by ``proximal_newton`` or ``shared_dual_coordinate``;
* structural SVMs: ``structural_problems``, ``label_vectors`` and ``chain_problems``, by ``frank_wolfe`` or,
  to read, ``cutting_plane``;
* chains with kernels: ``chain_kernel_problem``, by ``chain_smo`` or ``exponentiated_gradient``;
* conditional random fields: ``chain_lbfgs``, ``iterative_scaling``, ``tree_likelihood`` in the dual; hidden
  labels: ``expectation_maximisation``;
* kernel logistic regression: ``logistic_problems``, by ``smo`` and ``logistic_newton``;
* the same problems in cvxpy, to hold them to: ``references``, ``structural_references`` and
  ``chain_references``.

The other modules are what these are made of, and may change at any time.
"""
