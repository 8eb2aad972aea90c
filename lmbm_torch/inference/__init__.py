"""Energy in, marginals or labels out: pure functions, one module an algorithm, one function a quantity.

:func:`decode`, :func:`decode_hinge`, :func:`marginals`, :func:`log_partition` and :func:`sample` take an
energy and choose the algorithm by its kind and size (:mod:`lmbm_torch.inference.routes`). An algorithm of
one's own choosing is imported by its module, ``from lmbm_torch.inference import exact``. By the kind of
energy:

* any: ``exact``, enumeration, the oracle of all others; ``constrained``, the best labelling that obeys rules;
* sigmoid belief networks and whatever else is asked for label by label: ``branch_and_bound`` (of networks
  alone), ``best_first`` (with a proof; depth first, too), ``beam_search``, ``most_probable`` (labellings by
  decreasing probability, and marginals within what they leave), ``ancestral`` (samples, and a network's
  marginals), ``bayes`` (the largest expected measure), ``bayes_under_rules``, ``mixture`` (of several);
* Boltzmann machines: ``undirected_branch_and_bound``, ``semidefinite`` (for dense ones), with
  ``semidefinite_proofs`` for certificates, ``flips`` (good labellings, no proof), ``integer_program``,
  ``lp_relaxation``, ``roof_duality`` (its bound, sooner), ``lp_layer`` (differentiable),
  ``cost_function_network`` (toulbar2), ``sparse_map``, ``junction_tree``, ``mini_buckets`` (bounds of the log
  partition from both sides), ``pairwise_bp``, ``tree_reweighted`` (an upper one), ``spin_moments`` (of few
  labels, summed over examples);
* these and restricted ones: ``mean_field``, ``gibbs``;
* restricted Boltzmann machines: ``matrix_bp``, ``conditional_modes``, ``dual_decomposition`` (a bound),
  ``annealed_importance`` and ``log_likelihood`` (estimates from above and from below), ``tempering``
  (samples by exchange between temperatures), ``modes`` (labels from beliefs, under rules,
  or several labellings), ``matching`` (one inference for training and test);
* chains and trees: ``chain_dp``, ``tree_dp``.

The modules in ``parts`` are shared by these, and may change at any time.
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
