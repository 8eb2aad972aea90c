"""Energy in, marginals or labels out: pure functions, one module an algorithm, one function a quantity.

An algorithm is imported by its module, ``from lmbm_torch.inference import exact``, and only then
costs anything.
"""

from lmbm_torch.inference.results import (
    BipartiteMarginals,
    BipartiteMessages,
    BipartiteSamples,
    ChainMarginals,
    Decoding,
    LogPartitionEstimate,
    Marginals,
    PairwiseMessages,
    Status,
    TreeMarginals,
)

__all__ = [
    "BipartiteMarginals",
    "BipartiteMessages",
    "BipartiteSamples",
    "ChainMarginals",
    "Decoding",
    "LogPartitionEstimate",
    "Marginals",
    "PairwiseMessages",
    "Status",
    "TreeMarginals",
]
