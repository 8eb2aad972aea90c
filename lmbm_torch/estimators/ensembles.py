"""An ensemble of large-margin sigmoid belief networks over random orderings, decoded jointly."""

from __future__ import annotations

from typing import Any, cast

import torch
from sklearn.base import clone
from sklearn.utils import check_random_state

from lmbm_torch.checks import check_count
from lmbm_torch.energies import DirectedEnergy
from lmbm_torch.estimators.network import NetworkClassifier, label_tensor
from lmbm_torch.estimators.sigmoid_belief import LMSBNClassifier
from lmbm_torch.inference import branch_and_bound, mixture
from lmbm_torch.inference.results import Decoding


class LMSBNEnsembleClassifier(NetworkClassifier):
    """Large-margin sigmoid belief networks in several orderings, whose mean hinge loss is minimised exactly.

    The order of the labels matters to a directed model, and no order is right: members that differ in
    nothing else err on different instances.

    Args:
        base: the network to fit in every ordering; its own ``ordering`` is that of the first member, the
            others are random, and its ``cutoff`` and ``node_limit`` have no part in joint decoding. Default:
            ``LMSBNClassifier()``.
        num_members: how many.
        max_candidates: of each member's best labellings before a search ends without proof.
        node_limit: end each member's search after so many nodes, and the instance's without proof; None for
            never. ``predict`` warns of ends without proof.
        decoder: what :meth:`predict` optimises, as for :class:`LMSBNClassifier`, under the members' mixture;
            the base's own has no part.
        random_state: of the orderings, and of the members' own random numbers.

    Attributes:
        members_: the fitted networks.
    """

    def __init__(
        self,
        base=None,
        *,
        num_members=10,
        max_candidates=64,
        node_limit=branch_and_bound.NODE_LIMIT,
        decoder="hinge",
        random_state=None,
    ):
        self.base = base
        self.num_members = num_members
        self.max_candidates = max_candidates
        self.node_limit = node_limit
        self.decoder = decoder
        self.random_state = random_state

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.pairwise = (
            isinstance(self.base, LMSBNClassifier) and self.base.kernel == "precomputed"
        )
        return tags

    def fit(self, X, y, sample_weight=None):
        """As for :class:`LMSBNClassifier`."""
        check_count("num_members", self.num_members)
        check_count("max_candidates", self.max_candidates)
        if self.node_limit is not None:
            check_count("node_limit", self.node_limit)
        X, labels, sample_weight = self._validate_fit(X, y, sample_weight)
        if not isinstance(self.base, LMSBNClassifier | None):
            raise TypeError(f"base: expected an LMSBNClassifier or None, got {self.base!r}")
        random = check_random_state(self.random_state)
        base = LMSBNClassifier() if self.base is None else self.base
        self.members_ = []
        for member in range(self.num_members):
            network = cast(LMSBNClassifier, clone(base))
            network.set_params(random_state=int(random.randint(2**31)))
            if member:
                network.set_params(ordering="random")
            self.members_.append(network.fit(X, labels, sample_weight))
        return self

    def decode(self, X, known=None) -> Decoding:
        """The labelling of least mean hinge loss, with its certificate.

        Args:
            X: (instances, features), dense or CSR.
            known: (instances, labels) of {0, 1, NaN}: outputs that are given already.
        """
        energies = self.energies(X)
        if known is not None:
            known = label_tensor("known", known, energies[0], allow_missing=True)
        margin, _ = self._settings
        return mixture.decode_hinge(energies, margin, known=known, **self._limits)

    def energies(self, X) -> list[DirectedEnergy]:
        """The members' energies for instances (instances, features)."""
        X = self._validate_predict(X)
        return [energy for member in self.members_ for energy in member.energies(X)]

    @property
    def _settings(self) -> tuple[float, torch.device]:
        return self.members_[0]._settings

    @property
    def _limits(self) -> dict[str, Any]:
        return {"node_limit": self.node_limit, "max_candidates": self.max_candidates}
