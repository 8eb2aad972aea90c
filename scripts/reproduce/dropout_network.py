"""A network of neurons for label matrices, trained by binary cross-entropy with dropout (Srivastava 2014)."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from torch import nn

LEAST = 1e-3
"""Of the labels' frequencies, at which the network begins."""


class DropoutNetwork(ClassifierMixin, BaseEstimator):
    """Layers of rectified units; the labels are independent given the last one.

    Args:
        hidden: units in each layer.
        input_dropout, dropout: shares of features and of units that are left out in a step.
        epochs, batch_size, learning_rate, weight_decay: of AdamW.
        random_state: of first weights, of the order of instances and of dropout.
    """

    def __init__(
        self,
        hidden=(500, 500),
        *,
        input_dropout=0.2,
        dropout=0.5,
        epochs=30,
        batch_size=64,
        learning_rate=1e-3,
        weight_decay=1e-4,
        random_state=0,
    ):
        self.hidden = hidden
        self.input_dropout = input_dropout
        self.dropout = dropout
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> Self:
        """Learn from features (instances, features) and labels (instances, labels) in {0, 1}."""
        X, y = torch.tensor(X, dtype=torch.float32), torch.tensor(y, dtype=torch.float32)
        # Its own random numbers, and those of the process as they were.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.random_state)
            self.network_ = self._network(X.shape[1], y.mean(0))
            self._train(X, y)
        self.network_.eval()
        return self

    @torch.no_grad()
    def predict_proba(self, X: Any) -> np.ndarray:
        """Return P(y_i = 1 | x), (instances, labels)."""
        return self.network_(torch.tensor(X, dtype=torch.float32)).double().sigmoid().numpy()

    def _network(self, num_features: int, frequency: torch.Tensor) -> nn.Sequential:
        layers: list[nn.Module] = [nn.Dropout(self.input_dropout)]
        sizes = (num_features, *self.hidden)
        for inputs, outputs in pairwise(sizes):
            layers += [nn.Linear(inputs, outputs), nn.ReLU(), nn.Dropout(self.dropout)]
        last = nn.Linear(sizes[-1], len(frequency))
        with torch.no_grad():
            last.bias.copy_(frequency.clamp(LEAST, 1 - LEAST).logit())
            last.weight.mul_(0.1)
        return nn.Sequential(*layers, last)

    def _train(self, X: torch.Tensor, y: torch.Tensor) -> None:
        optimizer = torch.optim.AdamW(
            self.network_.parameters(), self.learning_rate, weight_decay=self.weight_decay
        )
        for _ in range(self.epochs):
            for rows in torch.randperm(len(X)).split(self.batch_size):
                fields = self.network_(X[rows])
                loss = nn.functional.binary_cross_entropy_with_logits(fields, y[rows], reduction="sum")
                optimizer.zero_grad()
                (loss / len(rows)).backward()
                optimizer.step()
