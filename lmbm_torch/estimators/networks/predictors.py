"""Fitted belief networks as NumPy arrays, for servers that predict row by row."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import compress
from typing import NamedTuple

import numpy as np
import torch
from scipy.sparse import issparse

from lmbm_torch.checks import check_finite, check_shape
from lmbm_torch.data.tensors import to_tensor
from lmbm_torch.inference.search.branch_and_bound import HingeSearch
from lmbm_torch.models import SigmoidBeliefNetwork

# Number of labels of all rows up to which a call is faster than a switch of Python's threads.
SHORT = 128
# Seconds that a short call waits at most, because another call may have a long search.
PATIENCE = 0.05


class Turns:
    """A lock by which short calls run after each other.

    A call releases Python's lock for the product and the search. After a short call the thread would wait for
    all threads that took the lock meanwhile (with eight threads half as many calls a second as with one).
    """

    def __init__(self) -> None:
        self._renew()
        # A fork may happen while another thread holds the lock; Windows has no fork.
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self._lock = threading.Lock()

    @contextmanager
    def of(self, decisions: int) -> Iterator[None]:
        """Wait for a turn if there are few ``decisions``, the labels of all rows."""
        lock = self._lock
        is_mine = decisions <= SHORT and lock.acquire(timeout=PATIENCE)
        try:
            yield
        finally:
            if is_mine:
                lock.release()


TURNS = Turns()


class Predictions(NamedTuple):
    """Label sets of least hinge loss, with their certificates.

    Args:
        labels: (instances, labels) in {0, 1}.
        loss: (instances,), hinge losses.
        bound: (instances,), lower bounds of the losses of all label sets.
        exact: (instances,), whether no label set is better.
        converged: (instances,), whether no limit ended the search.
    """

    labels: np.ndarray
    loss: np.ndarray
    bound: np.ndarray
    exact: np.ndarray
    converged: np.ndarray


@dataclass(frozen=True)
class NetworkPredictor:
    """The decoder of a fitted :class:`~lmbm_torch.estimators.LMSBNClassifier`, unchanged by later fits.

    Predictors can be pickled, and used by several threads at once.

    Attributes:
        weight: (labels, features), float64.
        bias: (labels,).
        search: the compiled search with the couplings of the labels.
        label_names: (labels,).
    """

    weight: np.ndarray
    bias: np.ndarray
    search: HingeSearch
    label_names: tuple[str, ...]

    @classmethod
    @torch.no_grad()
    def of(
        cls,
        model: SigmoidBeliefNetwork,
        label_names: tuple[str, ...],
        *,
        margin: float,
        cutoff: float | None,
        node_limit: int | None,
    ) -> NetworkPredictor:
        """Return the decoder of a model, with shared memory of the weights of features."""
        parents = model.parent_weight * model.allowed_parents
        search = HingeSearch.of(
            parents.numpy(),
            model.ordering.numpy(),
            model.cliques,
            model.clique_weight.numpy(),
            margin=margin,
            cutoff=cutoff,
            node_limit=node_limit,
        )
        return cls(model.feature_weight.numpy(), model.bias.numpy(), search, label_names)

    def decode(self, X) -> Predictions:
        """Return the label set of least hinge loss for each instance, with a proof.

        Args:
            X: (instances, features), dense.

        Raises:
            ValueError: sparse rows, a wrong number of features, or values that are not finite numbers.
        """
        if issparse(X):
            raise ValueError("X: expected dense rows, got a sparse matrix; use the estimator's predict")
        X = np.asarray(X)
        # NumPy would convert text, and drop the imaginary part of complex numbers.
        if X.dtype.kind not in "biuf":
            raise ValueError(f"X: expected real numbers, got {X.dtype}")
        X = X.astype(np.float64, copy=False)
        check_shape("X", X, None, self.weight.shape[1])
        check_finite("X", X)
        return self.decode_checked(X)

    def decode_checked(self, X: np.ndarray) -> Predictions:
        """Return :meth:`decode` of finite features in float64 or float32, without further checks."""
        # The model's product in torch, for the same ties as the model's energy; the rest in NumPy, because
        # an operation of torch takes as long as the search of a row.
        with TURNS.of(len(X) * len(self.bias)):
            product = to_tensor(X).to(torch.float64) @ torch.from_numpy(self.weight).mT
            found = self.search(product.numpy() + self.bias)
        loss = found.losses[:, 0]
        return Predictions(found.labels[:, 0], loss, found.bound, loss <= found.bound, ~found.limited)

    def predict(self, X) -> np.ndarray:
        """Return the labels, (instances, labels) in {0, 1}; see :meth:`decode`."""
        return self.decode(X).labels

    def names(self, labels: np.ndarray) -> list[tuple[str, ...]]:
        """Return the names of the labels with value 1 in each row of ``labels`` (instances, labels)."""
        return [tuple(compress(self.label_names, row)) for row in labels]
