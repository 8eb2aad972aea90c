"""Hard constraints on labels: rules as objects or text, hierarchies, and consequences of rules.

Every rule is linear in the labels, Σ_i a_i y_i ≤ b with y in {0, 1}.
:mod:`lmbm_torch.inference.under_rules.constrained` decodes under rules.
"""

from __future__ import annotations

from lmbm_torch.constraints.linear import Constraints
from lmbm_torch.constraints.rules import Rule, at_least, at_most, exactly, hierarchy, implies
from lmbm_torch.constraints.text import parse, read
from lmbm_torch.constraints.transitions import AllowedTransitions, allowed_transitions

__all__ = [
    "AllowedTransitions",
    "Constraints",
    "Rule",
    "allowed_transitions",
    "at_least",
    "at_most",
    "exactly",
    "hierarchy",
    "implies",
    "parse",
    "read",
]
