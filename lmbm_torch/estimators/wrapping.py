"""Classifiers that are built of several fits of one sigmoid belief network."""

from __future__ import annotations

from operator import attrgetter
from typing import Any, ClassVar, Self, cast

from sklearn.base import clone

from lmbm_torch import constraints as rules_of
from lmbm_torch.estimators.network import NetworkClassifier
from lmbm_torch.estimators.settings import Constraints
from lmbm_torch.estimators.sigmoid_belief import LMSBNClassifier
from lmbm_torch.estimators.under_rules import Rules


class WrappingClassifier(NetworkClassifier):
    """A classifier whose parameter ``base`` is the network to fit, ``LMSBNClassifier()`` if None."""

    _accepted: ClassVar[Constraints] = {
        **NetworkClassifier._accepted,
        "base": [LMSBNClassifier, None],
    }

    base: LMSBNClassifier | None

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.pairwise = getattr(self.base, "kernel", None) == "precomputed"
        return tags

    # A fitted network, with the margin and the device of all.
    _network: Any

    @property
    def _hinge_margin(self) -> float:
        """γ of decoding, the network's."""
        return self._network._hinge_margin if hasattr(self, "_network") else self._unfitted()._hinge_margin

    device: Any = property(attrgetter("_network.device"), doc="Where predictions are computed.")

    def _unfitted(self, **settings: Any) -> LMSBNClassifier:
        """A network to fit, with other ``settings`` than the base's."""
        base = LMSBNClassifier() if self.base is None else self.base
        # Their rules are those of the whole.
        return cast(LMSBNClassifier, clone(base)).set_params(constraints=None, **settings)

    @property
    def _given_rules(self) -> tuple[Rules | None, ...]:
        return (self.constraints, None if self.base is None else self.base.constraints)

    def _with_rules(self, rules: rules_of.Constraints | None) -> Self:
        other = super()._with_rules(rules)
        if self.base is not None and self.base.constraints is not None:
            other.base = cast(LMSBNClassifier, clone(self.base)).set_params(constraints=None)
        return other
