"""Layers for the end of a neural network.

* ``crf``: a linear-chain conditional random field over tag scores.
"""

from lmbm_torch.nn.crf import CRF

__all__ = ["CRF"]
