"""Fast predictors from fitted belief networks, with NumPy arrays, for servers that predict row by row."""

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

# Largest number of decisions (rows · labels) in a short call, which takes less time than a thread switch.
SHORT = 128
# Largest number of seconds that a short call waits for its turn; another call's search may take long.
PATIENCE = 0.05


class Turns:
    """A lock that makes threads run short calls one after another, which is faster than at the same time.

    A call releases Python's global lock during the product and the search, and then waits for all threads
    that took the global lock meanwhile: without turns, eight threads make half as many calls a second as one.
    """

    def __init__(self) -> None:
        self._renew()
        # Renew the lock in forked processes: another thread may hold it during the fork. Windows has no fork.
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self._lock = threading.Lock()

    @contextmanager
    def of(self, decisions: int) -> Iterator[None]:
        """Wait for a turn before a short call, one with few ``decisions`` (rows · labels)."""
        lock = self._lock
        is_mine = decisions <= SHORT and lock.acquire(timeout=PATIENCE)
        try:
            yield
        finally:
            if is_mine:
                lock.release()


TURNS = Turns()


class Predictions(NamedTuple):
    """Label sets with the least hinge loss, and proofs.

    Args:
        labels: (instances, labels) in {0, 1}, the label sets.
        loss: (instances,), the hinge losses of the label sets.
        bound: (instances,), proven lower bounds on the hinge loss of any label set.
        exact: (instances,), whether the label set is proven to have the least loss.
        converged: (instances,), whether the search ended before reaching a limit.
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
        weight: (labels, features), weights of the features, float64.
        bias: (labels,), intercepts.
        search: the compiled search, which holds the weights between labels.
        label_names: (labels,), names of the labels.
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
        """Build the decoder of a model, whose feature weights are shared rather than copied."""
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
        """Return the label set with the least hinge loss for each instance, with a proof.

        Args:
            X: (instances, features), dense.

        Raises:
            ValueError: X is sparse, has a wrong number of features, or holds values that are not finite.
        """
        if issparse(X):
            raise ValueError("X: expected dense rows, got a sparse matrix; use the estimator's predict")
        X = np.asarray(X)
        # Refuse texts and complex numbers, which ``astype`` would convert silently to real numbers.
        if X.dtype.kind not in "biuf":
            raise ValueError(f"X: expected real numbers, got {X.dtype}")
        X = X.astype(np.float64, copy=False)
        check_shape("X", X, None, self.weight.shape[1])
        check_finite("X", X)
        return self.decode_checked(X)

    def decode_checked(self, X: np.ndarray) -> Predictions:
        """Return :meth:`decode` of finite features in float64 or float32, without further checks."""
        # Multiply in torch, so rounding and ties are the same as in the model's energy; use NumPy otherwise,
        # because a single torch operation takes as long as the search of a row.
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
