"""Energy in, marginals or labels out: pure functions, one module an algorithm, one function a quantity.

:func:`decode`, :func:`decode_hinge`, :func:`marginals`, :func:`log_partition` and :func:`sample` take an
energy and choose the algorithm by its kind and size (:mod:`lmbm_torch.inference.routes`). An algorithm of
one's own choosing is imported by its module, ``from lmbm_torch.inference.enumeration
import exact``. By the kind of energy:

* any: ``enumeration.exact``, enumeration, the oracle of all others; ``under_rules.constrained``, the best
  labelling that obeys rules;
* sigmoid belief networks and whatever else is asked for label by label: ``search.branch_and_bound`` (of
  networks alone), ``search.best_first`` (with a proof; depth first, too), ``search.beam_search``,
  ``search.most_probable`` (labellings by decreasing probability, and marginals within what they leave),
  ``sampling.ancestral`` (samples, and a network's marginals), ``expected.bayes`` (the largest expected
  measure), ``expected.bayes_under_rules``, ``search.mixture`` (of several);
* Boltzmann machines: ``search.undirected_branch_and_bound``, ``semidefinite.decoding`` (for dense ones), with
  ``semidefinite.proofs`` for certificates, ``search.flips`` (good labellings, no proof),
  ``relaxations.integer_program``, ``relaxations.lp_relaxation``, ``relaxations.roof_duality`` (its bound,
  sooner), ``relaxations.lp_layer`` (differentiable), ``relaxations.cost_function_network`` (toulbar2),
  ``relaxations.sparse_map``, ``trees.junction_tree``, ``messages.mini_buckets`` (bounds of the log partition
  from both sides), ``messages.pairwise_bp``, ``messages.tree_reweighted`` (an upper one),
  ``enumeration.spin_moments`` (of few labels, summed over examples);
* these and restricted ones: ``messages.mean_field``, ``sampling.gibbs``;
* restricted Boltzmann machines: ``messages.matrix_bp``, ``messages.conditional_modes``,
  ``messages.dual_decomposition`` (a bound), ``sampling.annealed_importance`` and ``sampling.log_likelihood``
  (estimates from above and from below), ``sampling.tempering`` (samples by exchange between temperatures),
  ``messages.modes`` (labels from beliefs, under rules, or several labellings), ``messages.matching`` (one
  inference for training and test);
* chains and trees: ``trees.chain_dp``, ``trees.tree_dp``.

The other modules of these rooms are what these are made of, and may change at any time.
"""

from lmbm_torch.inference.results import (
    BipartiteMarginals,
    BipartiteMessages,
    BipartiteSamples,
    ChainMarginals,
    Decoding,
    Estimate,
    LikelyLabellings,
    LogLikelihoodBounds,
    LogPartitionBounds,
    Marginals,
    PairwiseMessages,
    StateMarginals,
    Status,
    TemperedSamples,
    TreeMarginals,
)
from lmbm_torch.inference.routes import decode, decode_hinge, log_partition, marginals, sample

__all__ = [
    "BipartiteMarginals",
    "BipartiteMessages",
    "BipartiteSamples",
    "ChainMarginals",
    "Decoding",
    "Estimate",
    "LikelyLabellings",
    "LogLikelihoodBounds",
    "LogPartitionBounds",
    "Marginals",
    "PairwiseMessages",
    "StateMarginals",
    "Status",
    "TemperedSamples",
    "TreeMarginals",
    "decode",
    "decode_hinge",
    "log_partition",
    "marginals",
    "sample",
]
