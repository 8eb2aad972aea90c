"""Output layers for neural networks.

* ``crf``: a linear-chain conditional random field over tag scores;
* ``joint``: a joint distribution of labels, given logits for each label;
* ``semi_crf``: a semi-Markov conditional random field over segments of limited length.
"""

from lmbm_torch.nn.crf import CRF
from lmbm_torch.nn.joint import JointHeadLayer
from lmbm_torch.nn.semi_crf import SemiCRF

__all__ = ["CRF", "JointHeadLayer", "SemiCRF"]
