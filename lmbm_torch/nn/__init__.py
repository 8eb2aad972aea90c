"""Layers for the end of a neural network.

* ``crf``: a linear-chain conditional random field over tag scores;
* ``joint``: a joint distribution of labels over their logits;
* ``semi_crf``: a semi-Markov conditional random field, over segments of up to a number of tokens.
"""

from lmbm_torch.nn.crf import CRF
from lmbm_torch.nn.joint import JointHeadLayer
from lmbm_torch.nn.semi_crf import SemiCRF

__all__ = ["CRF", "JointHeadLayer", "SemiCRF"]
