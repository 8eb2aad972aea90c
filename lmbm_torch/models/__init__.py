"""Models: modules that map features to an energy. No model runs inference or knows a data set.

To add your own model, write a subclass of :class:`Model` in any Python module. After this module is imported,
training, files and prediction work with the model.
"""

from lmbm_torch.models.base import Model
from lmbm_torch.models.boltzmann import BoltzmannMachine
from lmbm_torch.models.conditional_rbm import ConditionalRBM, RestrictedBoltzmannMachine
from lmbm_torch.models.encoders import ConvolutionalEncoder
from lmbm_torch.models.factor_graph import FactorGraph
from lmbm_torch.models.hidden_markov import HiddenMarkov
from lmbm_torch.models.onnx import export_onnx
from lmbm_torch.models.sigmoid_belief import SigmoidBeliefNetwork

__all__ = [
    "BoltzmannMachine",
    "ConditionalRBM",
    "ConvolutionalEncoder",
    "FactorGraph",
    "HiddenMarkov",
    "Model",
    "RestrictedBoltzmannMachine",
    "SigmoidBeliefNetwork",
    "export_onnx",
]
