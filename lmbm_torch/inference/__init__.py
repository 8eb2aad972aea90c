"""Energy in, marginals or labels out: pure functions, one module an algorithm, one function a quantity.

:func:`decode`, :func:`decode_hinge`, :func:`decode_expected`, :func:`marginals`, :func:`log_partition` and
:func:`sample` take an energy and choose the algorithm by the kind and size of the energy, from one table of
routes. Each algorithm is also a module, like ``from lmbm_torch.inference.enumeration import exact``.
The algorithms by the kind of energy:

* any kind: ``enumeration.exact`` (enumeration, the oracle of all other routines),
  ``under_rules.constrained`` (the best labelling that obeys rules), ``common.limits`` (sizes at which the
  choice of a routine changes);
* sigmoid belief networks and other directed models: ``search.branch_and_bound`` (for belief networks),
  ``search.best_first`` (with a proof; depth first, too), ``search.beam_search``, ``search.most_probable``
  (labellings by decreasing probability, and marginals with an error bound), ``sampling.ancestral`` (samples,
  and a belief network's marginals), ``expected.bayes`` (the largest expected measure), ``expected.measures``,
  ``search.mixture`` (mixtures of several models);
* Boltzmann machines: ``search.undirected_branch_and_bound``, ``relaxations.semidefinite.decoding`` (for dense
  couplings), ``relaxations.semidefinite.proofs`` for certificates, ``relaxations.integer_program``,
  ``relaxations.lp_relaxation``, ``relaxations.lp_layer`` (differentiable),
  ``relaxations.cost_function_network`` (toulbar2), ``relaxations.sparse_map``, ``graphs.elimination``,
  ``messages.mini_buckets`` (lower and upper bounds of the log partition), ``enumeration.half_products`` (of
  few labels, summed over examples), and all routines of graphs, after
  :func:`~lmbm_torch.energies.to_factors`;
* Boltzmann machines and restricted Boltzmann machines: ``messages.mean_field``, ``sampling.gibbs``;
* restricted Boltzmann machines: ``messages.matrix_bp``, ``messages.scheduled_bp`` (in other orders, and
  annealed), ``messages.conditional_modes``, ``messages.dual_decomposition`` (an upper bound),
  ``sampling.annealed_importance`` and ``sampling.log_likelihood`` (estimates from above and below),
  ``sampling.tempering`` (samples by exchange between temperatures), ``messages.modes`` (labels from
  marginals, under rules, or several labellings), ``messages.matching`` (one inference for training and test);
* chains, segments and trees: ``trees.chain_dp``, ``trees.semi_chain_dp``, ``trees.tree_dp``;
* graphs of labels of many states: ``graphs.elimination`` (exact), ``graphs.dual_ascent`` (the best
  labelling with a bound, and branch and bound), ``graphs.belief_propagation`` (and mean field, a lower
  bound of the log partition), ``graphs.tree_reweighted`` (an upper bound), ``messages.mini_buckets`` (both
  bounds), ``graphs.programming`` (linear and integer programmes by HiGHS), ``graphs.cycles`` (with cycle
  inequalities), ``graphs.gibbs``.

All other modules are internal and may change.
"""

from lmbm_torch.inference.common.results import (
    BipartiteMarginals,
    Decoding,
    Marginals,
    StateMarginals,
    Status,
)
from lmbm_torch.inference.routes.quantities import (
    decode,
    decode_expected,
    decode_hinge,
    log_partition,
    marginals,
    sample,
)

__all__ = [
    "BipartiteMarginals",
    "Decoding",
    "Marginals",
    "StateMarginals",
    "Status",
    "decode",
    "decode_expected",
    "decode_hinge",
    "log_partition",
    "marginals",
    "sample",
]
