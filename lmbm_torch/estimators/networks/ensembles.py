"""An ensemble of large-margin sigmoid belief networks over random orderings, decoded jointly."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils import check_random_state
from torch import Tensor

from lmbm_torch import constraints as rules_of
from lmbm_torch.energies import DirectedEnergy
from lmbm_torch.estimators.common.base import Rows
from lmbm_torch.estimators.common.calls import all_or_nothing, bar, of_label_columns, watched
from lmbm_torch.estimators.common.settings import SHARED, Constraints, StrOptions
from lmbm_torch.estimators.common.targets import known_tensor
from lmbm_torch.estimators.common.under_rules import Rules, decode_around
from lmbm_torch.estimators.decoders.decoding import DecodingClassifier
from lmbm_torch.estimators.decoders.distributions import DECODERS, NetworkMixture, hinge_losses
from lmbm_torch.estimators.networks import orderings
from lmbm_torch.estimators.networks.sigmoid_belief import (
    LMSBNClassifier,
    decode_expected,
    network_capabilities,
    unfitted_network,
)
from lmbm_torch.fitting.dual import Path
from lmbm_torch.inference.results import Decoding
from lmbm_torch.inference.routes import LIMITS
from lmbm_torch.inference.search import mixture
from lmbm_torch.kernels.blas import single_threaded
from lmbm_torch.protocol import Capabilities


def _in_random_order(network: LMSBNClassifier, seed: int) -> LMSBNClassifier:
    """A network with the same settings otherwise, which has seen that the data are valid, as this one has."""
    other = copy(network)
    other.random_state, other.ordering = seed, "random"
    return other


class LMSBNEnsembleClassifier(DecodingClassifier[DirectedEnergy]):
    """Large-margin sigmoid belief networks in several orderings, whose mean hinge loss is minimised exactly.

    The order of the labels matters to a directed model, and no order is best for every instance: members
    that differ only in their order err on different instances.

    Args:
        base: the network to fit in every ordering; its own ``ordering`` is that of the first member, the
            others are random, and its ``cutoff`` and ``node_limit`` are not used in joint decoding. Default:
            ``LMSBNClassifier()``.
        num_members: number of networks.
        orders: how random ones are drawn: ``"random"``, each by itself; ``"halves"``, so that several members
            share each half (:func:`~lmbm_torch.estimators.networks.orderings.random_halves`); ``"auto"``, the
            latter of networks with a kernel, where a label is solved once for all members in which its
            parents are the same.
        max_candidates: of each member's best labellings before a search ends without proof.
        node_limit: end each member's search after so many nodes, and the instance's without proof; None for
            never. ``predict`` warns of ends without proof.
        decoder: what :meth:`predict` optimises under the members' mixture, one of those of
            :class:`LMSBNClassifier`; the base's own is not used.
        verbose: 1 for a bar of the members, with the largest gap so far (needs rich), in place of their own
            bars; 0 for none.
        random_state: of the orderings, and of the members' own random numbers.
        constraints: rules that all answers obey, as text or objects (:mod:`lmbm_torch.constraints`), over the
            columns of ``y``, beside those of the base.

    Attributes:
        members_: the fitted networks.
    """

    _accepted: ClassVar[Constraints] = {
        **SHARED,
        "base": [LMSBNClassifier, None],
        "decoder": [StrOptions({*DECODERS})],
        "orders": [StrOptions({"auto", "random", "halves"})],
    }

    def __init__(
        self,
        base=None,
        *,
        num_members=10,
        orders="auto",
        max_candidates=64,
        node_limit=LIMITS.network_nodes,
        decoder="hinge",
        verbose=0,
        random_state=None,
        constraints=None,
    ):
        self.base = base
        self.num_members = num_members
        self.orders = orders
        self.max_candidates = max_candidates
        self.node_limit = node_limit
        self.decoder = decoder
        self.verbose = verbose
        self.random_state = random_state
        self.constraints = constraints

    @watched
    @all_or_nothing
    def fit(self, X: Rows, y: Rows, sample_weight: ArrayLike | None = None) -> Self:
        """See :meth:`LMSBNClassifier.fit`."""
        X, labels, sample_weight = self._validate_fit(X, y, sample_weight, allow_missing=True)
        random = check_random_state(self.random_state)
        seeds = [int(random.randint(2**31)) for _ in range(self.num_members)]
        first = unfitted_network(self.base, random_state=seeds[0])
        if self.verbose:
            first.set_params(verbose=0)
        data = first._validate_fit(X, labels, sample_weight, allow_missing=True)
        networks = [first, *(_in_random_order(first, seed) for seed in seeds[1:])]
        known, gap = None, 0.0
        orders = self._random_orders(data[1].shape[1], networks[1:])
        paths = [Path(), *(Path(ordering=order) for order in orders)]
        # Set once, for each fit would set it anew.
        with bar(type(self).__name__, self.verbose) as tell, single_threaded():
            for done, (network, path) in enumerate(zip(networks, paths, strict=True), 1):
                path.known = known
                known = network._fit_valid(*data, path)
                if known is not None and network is first:
                    known = known.before(orders, first.tol)
                gap = max(gap, float(network.duality_gap_))
                if tell is not None:
                    tell(done / len(networks), f"{done} of {len(networks)} members, gap {gap:.1e}")
        self.members_ = networks
        return self

    def _random_orders(self, num_labels: int, networks: Sequence[LMSBNClassifier]) -> list[np.ndarray]:
        """The networks' orders, which those that share halves are given as their ``ordering``."""
        is_linear = all(each.kernel == "linear" for each in networks)
        if not networks or self.orders == "random" or (self.orders == "auto" and is_linear):
            return [orderings.random(num_labels, each._seed()) for each in networks]
        found = orderings.random_halves(num_labels, len(networks), networks[0]._seed())
        for network, order in zip(networks, found, strict=True):
            network.set_params(ordering=order)
        return found

    @watched
    @of_label_columns
    def decode(
        self, X: Rows, known: ArrayLike | None = None, top_k: int = 1, constraints: Rules | None = None
    ) -> Decoding:
        """The ``top_k`` labellings of least mean hinge loss, with their certificate.

        Args:
            X: (instances, features), dense or CSR.
            known: (instances, labels) of {0, 1, NaN}: outputs that are given already.
            top_k: how many labellings, best first; at most ``max_candidates``.
            constraints: further rules, for this call, as text or objects.
        """
        if (rules := self._rules(constraints)) is not None:
            return decode_around(self.with_rules(None), X, rules, known, top_k)
        energies = self.energies(X)
        known = known_tensor(known, energies[0])
        return mixture.decode_hinge(energies, self._margin, known=known, top_k=top_k, **self._limits)

    def energies(self, X) -> list[DirectedEnergy]:
        """The members' energies for instances (instances, features)."""
        X = self._validate_predict(X)
        return [member.energy(X) for member in self.members_]

    def energy(self, X: Rows) -> DirectedEnergy:
        """Refuse: an ensemble has one energy for each member, see :meth:`energies`.

        Raises:
            ValueError: always.
        """
        raise ValueError("energy: expected a single network, got an ensemble of several; see energies")

    def calibrated(self, energies: Sequence[DirectedEnergy]) -> list[DirectedEnergy]:
        """Each member's energy with the calibration of that member."""
        pairs = zip(self.members_, energies, strict=True)
        return [each for member, energy in pairs for each in member.calibrated([energy])]

    def predict_decoding(self, X: Rows, known: ArrayLike | None = None) -> Decoding:
        """The labels of :meth:`predict` for label matrices; their objective is what ``decoder`` names."""
        if self.decoder == "hinge":
            return self.decode(X, known=known)
        return decode_expected(self, self.decoder, X, known)

    @property
    def capabilities(self) -> Capabilities:
        """See :class:`~lmbm_torch.protocol.Capabilities`."""
        # Under rules the search is repeated with labels held.
        found = network_capabilities(self.decoder, self._margin, self._limits)
        return replace(found, searches_under_rules=False)

    def with_rules(self, rules: rules_of.Constraints | None) -> Self:
        """The same classifier, whose answers obey these rules alone; None for no rules."""
        other = super().with_rules(rules)
        if self.base is not None:
            other.base = unfitted_network(self.base)
        return other

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.pairwise = unfitted_network(self.base).kernel == "precomputed"
        return tags

    @property
    def device(self) -> Any:
        """Where predictions are computed, as the base says."""
        return self.members_[0].device

    @property
    def _margin(self) -> float:
        """γ of decoding, that of the members."""
        members = getattr(self, "members_", [unfitted_network(self.base)])
        return members[0]._hinge_margin

    @property
    def _given_rules(self) -> tuple[Rules | None, ...]:
        return (self.constraints, None if self.base is None else self.base.constraints)

    def _decode_energy(self, energy: DirectedEnergy, *arguments: Any, **named: Any) -> Decoding:
        return self.members_[0]._decode_energy(energy, *arguments, **named)

    def _distribution(self, energies: Sequence[DirectedEnergy]) -> NetworkMixture:
        return NetworkMixture(energies, self._seed)

    def _code_losses(self, X: Rows, codes: Tensor) -> Tensor:
        return hinge_losses(self.energies(X), codes, self._margin)

    @property
    def _limits(self) -> dict[str, Any]:
        """The settings that may end a search before its proof, by their names in :func:`mixture.decode`."""
        return {"node_limit": self.node_limit, "max_candidates": self.max_candidates}
