"""How features make an energy: ``nn.Module``s, x → energy. No model runs inference or knows a data set."""

from lmbm_torch.models.boltzmann import BoltzmannMachine
from lmbm_torch.models.chain import LinearChain, MaximumEntropyMarkov
from lmbm_torch.models.conditional_rbm import ConditionalRBM, RestrictedBoltzmannMachine
from lmbm_torch.models.emissions import Bernoulli, Emission, Gaussian, Multinomial
from lmbm_torch.models.encoders import ConvolutionalEncoder
from lmbm_torch.models.hidden_markov import HiddenMarkov
from lmbm_torch.models.saving import load, save
from lmbm_torch.models.sigmoid_belief import SigmoidBeliefNetwork

__all__ = [
    "Bernoulli",
    "BoltzmannMachine",
    "ConditionalRBM",
    "ConvolutionalEncoder",
    "Emission",
    "Gaussian",
    "HiddenMarkov",
    "LinearChain",
    "MaximumEntropyMarkov",
    "Multinomial",
    "RestrictedBoltzmannMachine",
    "SigmoidBeliefNetwork",
    "load",
    "save",
]
