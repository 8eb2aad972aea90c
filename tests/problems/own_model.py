"""The source of a module in which a user has written a model."""

OWN_MODEL = """
import torch
from torch import nn
from lmbm_torch.energies import PairwiseEnergy
from lmbm_torch.models import Model


class Attraction(Model):
    def __init__(self, num_features, num_labels, scale=1.0, encoder=None):
        super().__init__(num_features, num_labels, encoder)
        self.scale = scale
        self.field = nn.Parameter(torch.zeros(num_labels, num_features))
        self.pull = nn.Parameter(torch.zeros(()))

    def energy(self, features):
        off_diagonal = 1 - torch.eye(self.num_labels, dtype=self.pull.dtype, device=self.pull.device)
        return PairwiseEnergy(self.scale * features @ self.field.mT, self.pull * off_diagonal)

    def weights(self):
        return torch.cat([self.field.flatten(), self.pull[None]])

    def couples(self):
        return torch.arange(self.field.numel() + 1) == self.field.numel()

    def arguments(self):
        sizes = {"num_features": self.num_features, "num_labels": self.num_labels}
        return {**sizes, "scale": self.scale}
"""
