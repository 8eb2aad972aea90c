"""Today's peers that tables alone need: TabM for all labels, and boosting with a class for each label set."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import torch
from scipy.stats import loguniform
from sklearn.base import BaseEstimator, ClassifierMixin
from torch.nn.functional import binary_cross_entropy_with_logits

from lmbm_torch.compare.methods import BOOSTED, Tuned

HELD_OUT, MOST_EPOCHS, PATIENCE, BATCH = 0.15, 100, 8, 256
# Fewer and narrower networks than TabM's defaults (32 of three blocks of 512): those take a minute a fit.
NETWORKS, BLOCKS = 16, 2


class TabMNetwork(ClassifierMixin, BaseEstimator):
    """TabM (Gorishniy, Kotelnikov, Babenko 2025) with an output for each label, by the package ``tabm``.

    Training ends when the loss of a held-out share of the rows has not fallen for some epochs; the weights
    of the best epoch are kept.

    Args:
        width: of each block.
        dropout: share of dropped units.
        learning_rate, weight_decay: of AdamW.
        random_state: of weights, batches and the held-out rows.
    """

    def __init__(self, width=128, dropout=0.1, learning_rate=2e-3, weight_decay=3e-4, random_state=None):
        self.width = width
        self.dropout = dropout
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.random_state = random_state

    def fit(self, X, y):
        """Train on features (instances, features) and labels (instances, labels) in {0, 1}."""
        rows, labels = _dense(X), torch.as_tensor(np.asarray(y), dtype=torch.float32)
        self.classes_ = np.tile([0, 1], (labels.shape[1], 1))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.random_state or 0)
            sizes = {"k": NETWORKS, "n_blocks": BLOCKS, "d_block": self.width, "dropout": self.dropout}
            make = import_module("tabm").TabM.make
            self.network_ = make(n_num_features=rows.shape[1], d_out=labels.shape[1], **sizes)
            order = torch.randperm(len(rows))
            held = int(HELD_OUT * len(rows))
            self._train(rows[order[held:]], labels[order[held:]], rows[order[:held]], labels[order[:held]])
        return self

    def predict(self, X):
        """Predict labels (instances, labels)."""
        return (self.predict_proba(X) > 0.5).astype(int)

    def predict_proba(self, X):
        """Return the networks' mean probabilities of the labels, (instances, labels)."""
        self.network_.eval()
        with torch.inference_mode():
            return np.concatenate(
                [self.network_(each).sigmoid().mean(1).numpy() for each in _dense(X).split(BATCH)]
            ).astype(float)

    def _train(self, rows: Any, labels: Any, held: Any, truth: Any) -> None:
        network, best, since = self.network_, float("inf"), 0
        rates = {"lr": self.learning_rate, "weight_decay": self.weight_decay}
        optimizer = torch.optim.AdamW(network.parameters(), **rates)
        kept: dict[str, Any] = {}
        for _ in range(MOST_EPOCHS):
            network.train()
            for batch in torch.randperm(len(rows)).split(BATCH):
                optimizer.zero_grad()
                _loss(network(rows[batch]), labels[batch]).backward()
                optimizer.step()
            network.eval()
            with torch.inference_mode():
                found = float(_loss(network(held), truth))
            since += 1
            if found < best:
                best, since = found, 0
                kept = {name: value.clone() for name, value in network.state_dict().items()}
            if since == PATIENCE:
                break
        network.load_state_dict(kept)


class BoostedLabelSets(ClassifierMixin, BaseEstimator):
    """A class for each label set of the training rows, by XGBoost with a vector of classes in each leaf.

    Args:
        num_rounds, learning_rate, max_depth: of boosting.
        random_state: of the draws.
    """

    def __init__(self, num_rounds=100, learning_rate=0.1, max_depth=6, random_state=None):
        self.num_rounds = num_rounds
        self.learning_rate = learning_rate
        self.max_depth = max_depth
        self.random_state = random_state

    def fit(self, X, y):
        """Train on features (instances, features) and labels (instances, labels) in {0, 1}."""
        self.classes_ = np.tile([0, 1], (y.shape[1], 1))
        self.labellings_, classes = np.unique(np.asarray(y, int), axis=0, return_inverse=True)
        self.trees_ = import_module("xgboost").XGBClassifier(
            n_estimators=self.num_rounds,
            learning_rate=self.learning_rate,
            max_depth=self.max_depth,
            multi_strategy="multi_output_tree",
            n_jobs=1,
            random_state=self.random_state,
        )
        if len(self.labellings_) > 1:
            self.trees_.fit(X, classes.ravel())
        return self

    def predict(self, X):
        """Return the most probable label set, (instances, labels)."""
        return self.labellings_[self._of_sets(X).argmax(1)]

    def predict_proba(self, X):
        """Return probabilities of the labels (instances, labels), sums over label sets."""
        return self._of_sets(X) @ self.labellings_

    def _of_sets(self, X: Any) -> np.ndarray:
        if len(self.labellings_) == 1:
            return np.ones((X.shape[0], 1))
        return np.asarray(self.trees_.predict_proba(X))


PEERS = {
    "TabM": Tuned(
        TabMNetwork(random_state=0),
        {
            "width": [64, 128, 256],
            "dropout": [0.0, 0.1, 0.3],
            "learning_rate": loguniform(3e-4, 5e-3),
            "weight_decay": loguniform(1e-5, 1e-1),
        },
        library="tabm",
    ),
    "label sets, XGBoost": Tuned(
        BoostedLabelSets(random_state=0), BOOSTED, is_scaled=False, library="xgboost"
    ),
}


def _dense(X: Any) -> torch.Tensor:
    return torch.as_tensor(np.asarray(X.todense() if hasattr(X, "todense") else X), dtype=torch.float32)


def _loss(logits: Any, labels: Any) -> Any:
    """Return the mean loss of logits (instances, networks, labels); each network learns by itself."""
    return binary_cross_entropy_with_logits(logits, labels[:, None].expand_as(logits))
