"""Energy in, marginals or labels out: pure functions, one module an algorithm, one function a quantity."""

from lmbm_torch.inference.results import BipartiteMarginals, BipartiteMessages, Decoding, Marginals, Status

__all__ = ["BipartiteMarginals", "BipartiteMessages", "Decoding", "Marginals", "Status"]
