"""Rules over the labels of a model, checked and applied to batches of labellings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property

import numpy as np

from lmbm_torch.constraints.feasibility import completion, contradiction
from lmbm_torch.constraints.rules import NOT, Rule
from lmbm_torch.constraints.text import parse
from lmbm_torch.memory import part_bytes
from lmbm_torch.persistence.stored import Stored

__all__ = ["Constraints"]

# Sums of weights may exceed bounds by this share of the absolute weights, because of round-off.
ROUND_OFF = 1e-9
# Largest number of entries (instances times weights) of a chunk.
CHUNK = 2**22


@dataclass(frozen=True, eq=False)
class Constraints(Stored):
    """Linear rules, Σ_i a_i y_i ≤ b, over labels y in {0, 1}.

    Args:
        rules: rules on names or indices of labels; a labelling must obey all rules.
        names: names of all labels.

    Raises:
        ValueError: a label is unknown, a weight or bound is not finite, or rules contradict each other; then
            the message names rules that contradict each other.

    Examples:
        >>> import numpy as np
        >>> from lmbm_torch import Constraints
        >>> rules = Constraints.of("sea -> not urban", ["sea", "urban"])
        >>> rules.broken(np.array([[1, 1], [1, 0]]))
        [['sea -> not urban'], []]
    """

    rules: tuple[Rule, ...]
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(set(self.names)) < len(self.names):
            raise ValueError("names: expected distinct names, got repeated names")
        strange = [name for name in self.names if name.startswith(NOT)]
        if strange:
            raise ValueError(f"names: expected names that do not begin with {NOT!r}, got {strange[0]!r}")
        for rule in self.rules:
            if not np.isfinite([rule.bound, *rule.weights.values()]).all():
                raise ValueError(f"constraints: expected finite weights and bounds, got {rule}")
        self.check(np.full(self.num_labels, np.nan))

    @classmethod
    def of(cls, given: Constraints | str | Rule | Iterable[str | Rule], names: Sequence[str]) -> Constraints:
        """Build constraints on the labels ``names`` from rules given as texts, as objects, or as both.

        Raises:
            ValueError: a text is not a rule; see also the class.
        """
        if isinstance(given, Constraints):
            if given.names != tuple(names):
                raise ValueError("constraints: expected rules over the same labels, got other labels")
            return given
        several = [given] if isinstance(given, str | Rule) else given
        rules: list[Rule] = []
        for each in several:
            rules += parse(each) if isinstance(each, str) else [each]
        return cls(tuple(rules), tuple(names))

    @property
    def num_labels(self) -> int:
        return len(self.names)

    def violated(self, labels: np.ndarray) -> np.ndarray:
        """Return a mask (instances, rules) of the rules broken by labels (instances, labels) in {0, 1}."""
        self._check_width("labels", labels)
        if not self._starts.size:
            return np.zeros((len(labels), 0), bool)
        sums = np.add.reduceat(labels[:, self._columns] * self._weights, self._starts, axis=1)
        return sums > self._bounds + self._slack

    def involved(self, rules: np.ndarray) -> np.ndarray:
        """Return for each label how many of ``rules``, a mask (rules,), contain the label, (labels,)."""
        return np.bincount(self._columns[rules[self._rows]], minlength=self.num_labels)

    def broken(self, labels: np.ndarray) -> list[list[str]]:
        """Return for each labelling the texts of the broken rules."""
        return [[self.texts[rule] for rule in row.nonzero()[0]] for row in self.violated(labels)]

    def propagate(self, known: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Fill in labels that follow from known labels, rule by rule, until nothing more follows.

        Args:
            known: (instances, labels) in {0, 1, NaN}, NaN for a free label.

        Returns:
            The labels, and a mask (instances,): False if the known labels break a rule; then the labels of
            the instance have no meaning. Even if True, a labelling under all rules may not exist.
        """
        self._check_width("known", known)
        if not self._starts.size:
            return known.copy(), np.ones(len(known), bool)
        step = max(1, part_bytes(8 * CHUNK) // (8 * len(self._columns)))
        parts = [self._propagated(known[start : start + step]) for start in range(0, len(known), step)]
        if not parts:
            return known.copy(), np.ones(0, bool)
        labels, consistent = zip(*parts, strict=True)
        return np.concatenate(labels), np.concatenate(consistent)

    def nearest(self, labels: np.ndarray, known: np.ndarray) -> np.ndarray | None:
        """Return the labelling nearest to ``labels`` that obeys all rules and agrees with ``known``.

        Args:
            labels: (labels,) in {0, 1}.
            known: (labels,) in {0, 1, NaN}, NaN for a free label.

        Returns:
            The labelling (labels,), or None if no labelling does.

        Raises:
            ImportError: SciPy is missing.
        """
        return completion(self.matrix, self._bounds, labels, known)

    def leaves_any(self, known: np.ndarray) -> bool:
        """Return whether a labelling obeys all rules and agrees with ``known`` (labels,) in {0, 1, NaN}."""
        return self.nearest(np.zeros(self.num_labels), known) is not None

    def check(self, known: np.ndarray, where: str = "constraints") -> None:
        """Raise ValueError if no labelling obeys all rules and agrees with known labels (labels,).

        Raises:
            ValueError: the message names the argument ``where``, and rules that contradict each other.
        """
        if self.leaves_any(known):
            return
        rules = contradiction(self.matrix, self._bounds, known)
        texts = list(dict.fromkeys(self.texts[rule] for rule in rules))
        given = "" if np.isnan(known).all() else " together with the known labels"
        raise ValueError(
            f"{where}: expected rules that some labelling obeys, got a contradiction{given}: "
            + "; ".join(texts)
        )

    @property
    def bounds(self) -> np.ndarray:
        """Return the largest allowed values of ``matrix @ labels``, (inequalities,), round-off included."""
        return self._bounds + self._slack

    @cached_property
    def matrix(self) -> np.ndarray:
        """Return the weights of the labels in each inequality, (inequalities, labels)."""
        matrix = np.zeros((len(self._starts), self.num_labels))
        matrix[self._rows, self._columns] = self._weights
        return matrix

    def _check_width(self, name: str, rows: np.ndarray) -> None:
        """Raise ValueError unless rows have the number of labels; the number of rows may be 0."""
        if rows.ndim != 2 or rows.shape[1] != self.num_labels:
            raise ValueError(f"{name}: expected shape (instances, {self.num_labels}), got {rows.shape}")

    def _propagated(self, known: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        known = known.copy()
        least = np.minimum(self._weights, 0.0)
        while True:
            values = known[:, self._columns]
            free = np.isnan(values)
            sums = np.add.reduceat(np.where(free, least, self._weights * values), self._starts, axis=1)
            room = self._bounds + self._slack - sums
            # Fix a free label if one of its values would break the rule.
            forced = free & (np.abs(self._weights) > room[:, self._rows]) & (room >= 0)[:, self._rows]
            if not forced.any():
                return known, np.asarray((room >= 0).all(1))
            instances, entries = forced.nonzero()
            known[instances, self._columns[entries]] = self._weights[entries] < 0

    @cached_property
    def _inequalities(self) -> list[tuple[dict[int, float], float, str]]:
        """Return each inequality that is not always true: weights by index, bound and text."""
        places = {name: place for place, name in enumerate(self.names)}
        found = []
        for rule in self.rules:
            weights: dict[int, float] = {}
            for label, weight in rule.weights.items():
                place = self._place(label, places, rule.text)
                weights[place] = weights.get(place, 0.0) + float(weight)
            weights = {place: weight for place, weight in weights.items() if weight}
            if weights or rule.bound < 0:
                # Add a label of weight 0 to a false rule without labels: every inequality needs a term.
                found.append((weights or {0: 0.0}, float(rule.bound), rule.text))
        return found

    def _place(self, label: str | int, places: dict[str, int], text: str) -> int:
        if isinstance(label, str):
            if label not in places:
                near = get_close_matches(label, self.names, 1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise ValueError(f"constraints: expected names of labels, got {label!r} in {text!r}{hint}")
            return places[label]
        if not 0 <= label < self.num_labels:
            raise ValueError(
                f"constraints: expected labels 0 to {self.num_labels - 1}, got {label} in {text!r}"
            )
        return label

    @cached_property
    def _entries(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return for each term the index of the inequality, the index of the label, and the weight."""
        terms = [
            (row, place, weight)
            for row, (weights, _, _) in enumerate(self._inequalities)
            for place, weight in weights.items()
        ]
        table = np.array(terms, np.float64).reshape(-1, 3)
        return table[:, 0].astype(np.int64), table[:, 1].astype(np.int64), table[:, 2]

    @property
    def _rows(self) -> np.ndarray:
        return self._entries[0]

    @property
    def _columns(self) -> np.ndarray:
        return self._entries[1]

    @property
    def _weights(self) -> np.ndarray:
        return self._entries[2]

    @cached_property
    def _starts(self) -> np.ndarray:
        """Return the index of the first term of each inequality."""
        return np.searchsorted(self._rows, np.arange(len(self._inequalities)))

    @cached_property
    def _bounds(self) -> np.ndarray:
        return np.array([bound for _, bound, _ in self._inequalities], np.float64)

    @cached_property
    def texts(self) -> list[str]:
        """Return the text of each inequality's rule."""
        return [text for _, _, text in self._inequalities]

    @cached_property
    def _slack(self) -> np.ndarray:
        """Return an upper bound of the round-off in each inequality's sum."""
        sizes = np.abs(self._bounds)
        if self._starts.size:
            sizes = sizes + np.add.reduceat(np.abs(self._weights), self._starts)
        return ROUND_OFF * sizes
