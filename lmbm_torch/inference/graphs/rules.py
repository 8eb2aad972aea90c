"""Rules over binary labels as further tables and variables of a graph of tables. Internal."""

from __future__ import annotations

import numpy as np
import torch

from lmbm_torch.constraints import Constraints
from lmbm_torch.energies import FactorEnergy
from lmbm_torch.inference.trees.rule_tables import rule_tables


def ruled(energy: FactorEnergy, constraints: Constraints) -> FactorEnergy:
    """Return the energy with score −∞ for labellings that break a rule.

    The last variables are counters of rules. The labels determine the counters: each allowed labelling has
    one extension, with the same score.

    Raises:
        TypeError: ``constraints`` is no :class:`~lmbm_torch.constraints.Constraints`.
        ValueError: packed graphs; rules over another number of labels, or over a label with more than two
            states; see :func:`~lmbm_torch.inference.trees.rule_tables.rule_tables`.
    """
    structure = energy.structure
    if not isinstance(constraints, Constraints):
        came = type(constraints).__name__
        raise TypeError(f"constraints: expected the result of Constraints.of(rules, names), got {came}")
    if energy.is_packed:
        raise ValueError("energy: expected one graph under rules, got packed graphs; use energy.examples()")
    if constraints.num_labels != structure.num_variables:
        wanted = f"rules over {structure.num_variables} labels"
        raise ValueError(f"constraints: expected {wanted}, got {constraints.num_labels}")
    for label in np.flatnonzero((constraints.matrix != 0).any(0)).tolist():
        if (states := structure.num_states[label]) != 2:
            wanted = "rules over labels of two states (tables of −∞ forbid other states)"
            raise ValueError(f"constraints: expected {wanted}, got a rule over label {label} of {states}")
    found = rule_tables(constraints, tuple(scope for scope in structure.scopes if len(scope) > 1))
    sizes = (*structure.num_states, *found.sizes)
    entries = energy.table.split(np.diff(structure.first).tolist(), 1)
    factors = [
        (scope, table.reshape(-1, *(sizes[each] for each in scope)))
        for scope, table in zip(structure.every_scope, entries, strict=True)
    ]
    for scope, allowed in zip(found.scopes, found.tables, strict=True):
        out = torch.from_numpy(~allowed).to(energy.device)
        factors.append((scope, energy.table.new_zeros(out.shape).masked_fill(out, -torch.inf)))
    return FactorEnergy.of(sizes, factors)
