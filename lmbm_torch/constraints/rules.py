"""Rules on labels; each function returns one or more linear inequalities.

A literal is a label, given by name or index, or a negated label: "not " before the name, or ~index.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lmbm_torch.persistence.stored import Given, Stored

__all__ = ["Rule", "at_least", "at_most", "exactly", "hierarchy", "implies"]

Label = str | int
NOT = "not "


@dataclass(frozen=True)
class Rule(Stored):
    """The linear inequality Σ_i weights_i y_i ≤ bound.

    Args:
        weights: the weight of each label, by name or index.
        bound: the bound.
        text: the rule as the user wrote it.

    Examples:
        >>> from lmbm_torch.constraints import Rule
        >>> Rule({"a": 1.0, "b": 1.0}, bound=1.0, text="at_most_one(a, b)").bound
        1.0
    """

    weights: Mapping[Label, float]
    bound: float
    text: str

    def stored_parts(self) -> dict[str, Any]:
        """Return labels and weights as lists, because labels may be numbers, and keys in files are texts."""
        weights = {"labels": [*self.weights], "weights": [*self.weights.values()]}
        return {**weights, "bound": self.bound, "text": self.text}

    @classmethod
    def from_parts(
        cls, given: Given, *, labels: list[Label], weights: list[float], bound: float, text: str
    ) -> Rule:
        """Build the rule from :meth:`stored_parts`."""
        return cls(dict(zip(labels, weights, strict=True)), bound, text)


def at_most(count: int, literals: Sequence[Label], *, when: Sequence[Label] = ()) -> tuple[Rule, ...]:
    """Return the rule "if all literals of ``when`` are true, at most ``count`` of ``literals`` are true".

    Examples:
        >>> from lmbm_torch.constraints import at_most
        >>> [rule.text for rule in at_most(1, ["a", "b"])]
        ['at_most(1, a, b)']
    """
    if count < 0:
        raise ValueError(f"count: expected 0 or more, got {count}")
    if count >= len(literals):
        return ()
    weights, constant = _sum(literals, 1.0)
    # Add ``room`` to the bound for each false condition, so that all literals may be true.
    room = len(literals) - count
    conditions, below = _sum(when, float(room))
    weights = _added(weights, conditions)
    text = _text(f"at_most({count}, {_listed(literals)})", when)
    return (Rule(weights, count - constant + room * len(when) - below, text),)


def at_least(count: int, literals: Sequence[Label], *, when: Sequence[Label] = ()) -> tuple[Rule, ...]:
    """Return the rule "if all literals of ``when`` are true, at least ``count`` of ``literals`` are true".

    Examples:
        >>> from lmbm_torch.constraints import at_least
        >>> [rule.text for rule in at_least(1, ["a", "not b"])]
        ['at_least(1, a, not b)']
    """
    text = _text(f"at_least({count}, {_listed(literals)})", when)
    if count > len(literals):
        return (Rule({}, -1.0, text),) if not when else at_most(len(when) - 1, when)
    rules = at_most(len(literals) - count, [opposite(literal) for literal in literals], when=when)
    return tuple(Rule(rule.weights, rule.bound, text) for rule in rules)


def exactly(count: int, literals: Sequence[Label], *, when: Sequence[Label] = ()) -> tuple[Rule, ...]:
    """Return the rules "if all literals of ``when`` are true, exactly ``count`` of ``literals`` are true".

    Examples:
        >>> from lmbm_torch.constraints import exactly
        >>> len(exactly(1, ["a", "b", "c"]))
        2
    """
    text = _text(f"exactly({count}, {_listed(literals)})", when)
    both = at_most(count, literals, when=when) + at_least(count, literals, when=when)
    return tuple(Rule(rule.weights, rule.bound, text) for rule in both)


def implies(all_of: Sequence[Label], any_of: Sequence[Label]) -> tuple[Rule, ...]:
    """Return the rule "if all literals of ``all_of`` are true, some literal of ``any_of`` is true".

    Examples:
        >>> from lmbm_torch.constraints import implies
        >>> [rule.text for rule in implies(["a"], ["b"])]
        ['a -> b']
    """
    text = f"{_listed(all_of, ' and ')} -> {_listed(any_of, ' or ')}"
    rules = at_least(1, [*(opposite(literal) for literal in all_of), *any_of])
    return tuple(Rule(rule.weights, rule.bound, text) for rule in rules)


def hierarchy(parents: Mapping[Label, Label | Iterable[Label]]) -> tuple[Rule, ...]:
    """Return the rules of a hierarchy: a label is present only if all parents are present.

    Args:
        parents: the parent or the parents of each label.

    Examples:
        >>> from lmbm_torch.constraints import hierarchy
        >>> [rule.text for rule in hierarchy({"terrier": "dog"})]
        ['terrier -> dog']
    """
    rules: list[Rule] = []
    for child, above in parents.items():
        for parent in [above] if isinstance(above, str | int) else above:
            rules += implies([child], [parent])
    return tuple(rules)


def parents_by_path(names: Iterable[str], separator: str = "/") -> dict[str, str]:
    """Return the parent of each label whose name is a path, such as 01/01/03: the longest proper prefix.

    Labels without such a prefix among the names are roots, and are left out.

    Examples:
        >>> from lmbm_torch.constraints.rules import parents_by_path
        >>> parents_by_path(["01", "01/02", "03"])
        {'01/02': '01'}
    """
    known, parents = list(names), {}
    all_names = set(known)
    for name in known:
        parts = name.split(separator)
        above = (separator.join(parts[:depth]) for depth in range(len(parts) - 1, 0, -1))
        parent = next((path for path in above if path in all_names), None)
        if parent is not None:
            parents[name] = parent
    return parents


def opposite(literal: Label) -> Label:
    """Return the negated literal; for a label given by index, ~index."""
    if isinstance(literal, int):
        return ~literal
    return literal.removeprefix(NOT) if literal.startswith(NOT) else NOT + literal


def _sum(literals: Sequence[Label], weight: float) -> tuple[dict[Label, float], float]:
    """Express ``weight`` times the number of true literals by weights of labels and a constant."""
    weights, constant = {}, 0.0
    for literal in literals:
        is_negative = literal < 0 if isinstance(literal, int) else literal.startswith(NOT)
        label = opposite(literal) if is_negative else literal
        weights = _added(weights, {label: -weight if is_negative else weight})
        constant += weight if is_negative else 0.0
    return weights, constant


def _added(first: Mapping[Label, float], second: Mapping[Label, float]) -> dict[Label, float]:
    return {**first, **{label: first.get(label, 0.0) + weight for label, weight in second.items()}}


def _text(rule: str, when: Sequence[Label]) -> str:
    return f"{_listed(when, ' and ')} -> {rule}" if when else rule


def _listed(literals: Iterable[Label], between: str = ", ") -> str:
    return between.join(
        f"not {~each}" if isinstance(each, int) and each < 0 else str(each) for each in literals
    )
