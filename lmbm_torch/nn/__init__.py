"""Layers for the end of a neural network.

* ``crf``: a linear-chain conditional random field over tag scores;
* ``joint``: a joint distribution of labels over their logits.
"""

from lmbm_torch.nn.crf import CRF
from lmbm_torch.nn.joint import JointHeadLayer

__all__ = ["CRF", "JointHeadLayer"]
