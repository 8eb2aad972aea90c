"""Ensembles of large-margin sigmoid belief networks over random orders of labels, decoded jointly."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils import check_random_state

from lmbm_torch.energies import DirectedEnergy
from lmbm_torch.estimators.common.base import Rows
from lmbm_torch.estimators.common.calls import answer_call, bar, fit_call
from lmbm_torch.estimators.common.decoders.decoding import DecodingClassifier
from lmbm_torch.estimators.common.decoders.distributions import DECODERS
from lmbm_torch.estimators.common.settings import SHARED, Constraints, StrOptions
from lmbm_torch.estimators.common.targets import known_tensor
from lmbm_torch.estimators.common.under_rules import Rules, decode_around
from lmbm_torch.estimators.networks import orderings
from lmbm_torch.estimators.networks.sigmoid_belief import (
    LMSBNClassifier,
    network_capabilities,
    unfitted_network,
)
from lmbm_torch.fitting.dual import Path
from lmbm_torch.inference.common.limits import LIMITS
from lmbm_torch.inference.common.results import Decoding
from lmbm_torch.inference.search import mixture
from lmbm_torch.kernels.threads import single_threaded
from lmbm_torch.protocol import Capabilities


def _in_random_order(network: LMSBNClassifier, seed: int) -> LMSBNClassifier:
    """Return a copy of the network with a random order of labels; the copy keeps what validation found."""
    other = copy(network)
    other.random_state, other.ordering = seed, "random"
    return other


class LMSBNEnsembleClassifier(DecodingClassifier[DirectedEnergy]):
    """An ensemble of large-margin sigmoid belief networks with different orders of the labels.

    Predicted is the label set with the least mean hinge loss over the networks. A belief network depends on
    the order of its labels, and networks with different orders err on different instances.

    Args:
        base: belief network with the parameters of all members, by default ``LMSBNClassifier()``. Only the
            first member uses ``ordering``; ``decoder``, ``cutoff`` and ``node_limit`` are not used.
        num_members: number of belief networks.
        orders: ``"random"`` for independent random orders, or ``"halves"`` for random orders in which members
            share sets of parents (:func:`~lmbm_torch.estimators.networks.orderings.random_halves`) and train
            a label only once for the same parents. ``"auto"`` means ``"halves"`` if there is a kernel.
        max_candidates: largest number of label sets that the search takes from each member.
        node_limit: largest number of search nodes of a member; None for no limit. ``predict`` warns if a
            limit ends a search, so the label set is not proven best.
        decoder: the metric that :meth:`predict` optimises, see :class:`LMSBNClassifier`.
        verbose: 1 for a progress bar of the members (needs rich), 0 for none.
        random_state: seed of the orders and of the members.
        constraints: rules that all predictions obey, as text or objects (:mod:`lmbm_torch.constraints`),
            added to the rules of ``base``.

    Attributes:
        members_: the fitted belief networks.

    Examples:
        >>> from lmbm_torch.estimators import LMSBNEnsembleClassifier
        >>> X, y = [[0.0], [1.0], [2.0], [3.0]], [[0, 0], [0, 1], [1, 1], [1, 1]]
        >>> LMSBNEnsembleClassifier(num_members=3, random_state=0).fit(X, y).predict([[2.5]])
        array([[1, 1]])
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

    @fit_call
    def fit(self, X: Rows, y: Rows, sample_weight: ArrayLike | None = None) -> Self:
        """Train all members; see :meth:`LMSBNClassifier.fit`."""
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
        # Set a single BLAS thread here, once for all fits.
        with bar(type(self).__name__, self.verbose) as tell, single_threaded():
            for done, (network, path) in enumerate(zip(networks, paths, strict=True), 1):
                path.known = known
                known = network._fit_valid(*data, path)
                if known is not None and network is first:
                    known = known.as_template()
                gap = max(gap, float(network.duality_gap_))
                if tell is not None:
                    tell(done / len(networks), f"{done} of {len(networks)} members, gap {gap:.1e}")
        self.members_ = networks
        return self

    def _random_orders(self, num_labels: int, networks: Sequence[LMSBNClassifier]) -> list[np.ndarray]:
        """Draw the orders of all members but the first; with ``"halves"`` also set each ``ordering``."""
        is_linear = all(each.kernel == "linear" for each in networks)
        if not networks or self.orders == "random" or (self.orders == "auto" and is_linear):
            return [orderings.random(num_labels, each._seed()) for each in networks]
        found = orderings.random_halves(num_labels, len(networks), networks[0]._seed())
        for network, order in zip(networks, found, strict=True):
            network.set_params(ordering=order)
        return found

    @answer_call
    def decode(
        self, X: Rows, known: ArrayLike | None = None, top_k: int = 1, constraints: Rules | None = None
    ) -> Decoding:
        """Return the ``top_k`` (at most ``max_candidates``) label sets with the least mean hinge loss.

        See :meth:`DecodingClassifier.decode` for the arguments.
        """
        if (rules := self._rules(constraints)) is not None:
            return decode_around(
                self.with_rules(None), X, rules, self._known_codes(known), top_k, values=self.label_values
            )
        energies = self.energies(X)
        known = known_tensor(known, energies[0], self._label_classes)
        return mixture.decode_hinge(energies, self._margin, known=known, top_k=top_k, **self._limits)

    @answer_call
    def energies(self, X) -> list[DirectedEnergy]:
        X = self._validate_predict(X)
        return [member.energy(X) for member in self.members_]

    def energy(self, X: Rows) -> DirectedEnergy:
        """Raise ValueError: an ensemble has an energy for each member, see :meth:`energies`.

        Raises:
            ValueError: always.
        """
        raise ValueError("energy: expected a single network, got an ensemble of several; see energies")

    def calibrated(self, energies: Sequence[DirectedEnergy]) -> list[DirectedEnergy]:
        """Calibrate the energy of each member by the member's own calibration."""
        pairs = zip(self.members_, energies, strict=True)
        return [each for member, energy in pairs for each in member.calibrated([energy])]

    @property
    def capabilities(self) -> Capabilities:
        # The search takes no rules: under rules, decoding is repeated with some labels held fixed.
        found = network_capabilities(self.decoder, self._margin, self._limits)
        return replace(found, searches_under_rules=False)

    @property
    def device(self) -> Any:
        """Return the device on which the members predict."""
        return self.members_[0].device

    @property
    def _margin(self) -> float:
        """Return the margin γ of the hinge losses in decoding."""
        members = getattr(self, "members_", [unfitted_network(self.base)])
        return members[0]._hinge_margin

    def _decode_energy(self, energy: DirectedEnergy, *arguments: Any, **named: Any) -> Decoding:
        return self.members_[0]._decode_energy(energy, *arguments, **named)

    @property
    def _limits(self) -> dict[str, Any]:
        """Return the search limits as keyword arguments of :func:`mixture.decode`."""
        return {"node_limit": self.node_limit, "max_candidates": self.max_candidates}
