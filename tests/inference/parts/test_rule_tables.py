"""Tables of rules, with their counters, against the labellings that rules allow."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from lmbm_torch.constraints import Constraints
from lmbm_torch.inference.trees.rule_tables import RuleTables, rule_tables

LABELS = 6
# A chain, no bucket of which holds a rule over all labels.
CHAIN = tuple((label, label + 1) for label in range(LABELS - 1))


def completions(found: RuleTables, labels: tuple[int, ...]) -> int:
    """How many values of the counters all tables allow with a labelling."""
    count, values = 0, [range(size) for size in found.sizes]
    for counters in product(*values):
        state = (*labels, *counters)
        allowed = zip(found.scopes, found.tables, strict=True)
        count += all(table[tuple(state[each] for each in scope)] for scope, table in allowed)
    return count


@pytest.mark.parametrize(
    "text",
    [
        "at_least(2, a, b, c, d, e, f)",
        "exactly_one(a, b, c, d, e, f)",
        # Sums between whole numbers, which are not yet surely within the bound where they are within 1 of it.
        "0.5 a + 0.75 b + 0.5 c + 0.75 d + 0.25 e + f <= 1.75",
        "0.5 a - 0.75 b + 0.5 c - 0.25 d + 0.25 e - f >= -0.75",
        "a + b + c + d + e + f <= 5.99",
        "0.1 a + 0.2 b + 0.3 c + 0.1 d + 0.2 e + 0.3 f <= 0.6",
    ],
)
def test_an_allowed_labelling_has_one_completion_and_any_other_none(text):
    rules = Constraints.of(text, tuple("abcdef"))
    found = rule_tables(rules, CHAIN)
    assert found.sizes
    for labels in product((0, 1), repeat=LABELS):
        is_allowed = not rules.violated(np.array([labels])).any()
        assert completions(found, labels) == is_allowed, labels
