"""Explanations of predicted labels: contributions to fields, and changes that alter the prediction."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass, replace
from html import escape
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lmbm_torch.data.rows import num_instances
from lmbm_torch.estimators.explain.contributions import Fields, given_names, largest_first
from lmbm_torch.inference.common.results import Decoding


class Answer(NamedTuple):
    """The predicted labels (1, labels) of an instance, and the decoding objective (1,), NaN if unknown."""

    labels: Tensor
    objective: Tensor

    @classmethod
    def of(cls, labels: np.ndarray) -> Answer:
        """Build an answer from labels (1, labels), with an unknown objective."""
        return cls(torch.from_numpy(labels), torch.full((1,), torch.nan, device="cpu"))


Decode = Callable[[np.ndarray, np.ndarray | None], Decoding | Answer | None]

# Largest number of features, and also of labels, whose contributions are shown in a text.
NUM_SHOWN = 3


@dataclass(frozen=True)
class LabelExplanation:
    """The explanation of a label: ``field`` = ``intercept`` + Σ ``features`` + Σ ``labels``.

    Args:
        name: name of the label.
        value: the predicted value of the label, as in ``fit``.
        other: the value of the label that was not predicted.
        field: half the log-odds of the label, given the input and the labels in ``labels``; or the
            probability, see ``unit``.
        intercept: the field if all features have the reference values, without contributions of labels.
        features: from names of features to contributions, the largest first; for a kernel, of rows.
        labels: from names of labels to contributions, the largest first: for a belief network the parents,
            for a Boltzmann machine all neighbours.
        otherwise: dictionary of the labels that change, with new values, if this label is fixed at ``other``;
            None if no label set is possible then, or if the classifier takes no known labels.
        cost: how much worse the objective of decoding becomes then; infinite if no label set is possible, NaN
            if the classifier has no objective.
        unit: the unit of ``field`` and contributions: "field" (half log-odds), "probability" (for forests),
            or "unknown" if contributions are unknown; ``field`` is then the probability, or NaN.
    """

    name: str
    value: Any
    other: Any
    field: float
    intercept: float
    features: Mapping[str, float]
    labels: Mapping[str, float]
    otherwise: Mapping[str, Any] | None
    cost: float
    unit: str = "field"


@dataclass(frozen=True)
class Explanation(Mapping[str, LabelExplanation]):
    """The explanation of an instance: a mapping from labels to :class:`LabelExplanation`.

    ``str`` gives a text; a notebook shows a table.

    Args:
        by_label: the explanations of the labels, in the order of the labels.
        by_feature: for the features with the largest contributions, the labels that change if only this
            feature is set to the reference, with the new values.
        rules: the rules, as text, that a prediction without rules would break.
        fields_of: name of the explained classifier, if several classifiers predict together.
    """

    by_label: tuple[LabelExplanation, ...]
    by_feature: Mapping[str, Mapping[str, Any]]
    rules: tuple[str, ...] = ()
    fields_of: str = ""

    def __getitem__(self, name: str) -> LabelExplanation:
        for label in self.by_label:
            if label.name == name:
                return label
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return (label.name for label in self.by_label)

    def __len__(self) -> int:
        return len(self.by_label)

    def to_dict(self) -> dict[str, Any]:
        """Convert the explanation to nested dictionaries of names and numbers."""
        return asdict(self)

    def __str__(self) -> str:
        lines = [f"{name}: {because}; {otherwise}" for name, because, otherwise in self.rows()]
        return "\n".join(lines + self.remarks())

    def _repr_html_(self) -> str:
        cells = "".join(
            f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in self.rows()
        )
        remarks = "".join(f"<p>{escape(remark)}</p>" for remark in self.remarks())
        head = "<tr><th>label</th><th>because of</th><th>otherwise</th></tr>"
        return f"<table><thead>{head}</thead><tbody>{cells}</tbody></table>{remarks}"

    def in_values(self, classes: Any) -> Explanation:
        """Return the explanation with the values ``classes`` (labels, 2) in place of 0 and 1."""
        values = dict(zip(self, np.asarray(classes).tolist(), strict=True))
        if all(each == [0, 1] for each in values.values()):
            return self

        def told(labels: Mapping[str, int]) -> dict[str, Any]:
            return {name: values[name][label] for name, label in labels.items()}

        by_label = (
            replace(
                each,
                value=values[each.name][each.value],
                other=values[each.name][each.other],
                otherwise=None if each.otherwise is None else told(each.otherwise),
            )
            for each in self.by_label
        )
        by_feature = {name: told(labels) for name, labels in self.by_feature.items()}
        return replace(self, by_label=tuple(by_label), by_feature=by_feature)

    def rows(self) -> Iterator[tuple[str, str, str]]:
        """Yield for each label three texts: the value, the largest contributions, and changes otherwise."""
        for label in self.by_label:
            yield f"{label.name} = {label.value}", _because(label), _told_otherwise(label)

    def remarks(self) -> list[str]:
        """Return texts on features that change the prediction, on rules, and on the explained classifier."""
        changing = [
            f"{name} at its reference: {_changes(changes)}"
            for name, changes in self.by_feature.items()
            if changes
        ]
        of = [f"fields are those of {self.fields_of}"] if self.fields_of else []
        return [*changing, *(f"held by the rule {rule}" for rule in self.rules), *of]


def explanation(
    fields: Fields,
    decode: Decode,
    X: Any,
    num_features: int,
    rules: tuple[str, ...] = (),
    *,
    takes_known: bool = True,
) -> Explanation:
    """Explain the predicted labels of an instance.

    Args:
        fields: the fields of the model.
        decode: function from instances and known labels to predicted labels, or None if rules allow no label
            set; labels may differ from the model's own prediction, for example in a mixture.
        X: a validated instance, in the form for ``fields`` and ``decode``.
        num_features: number of features to set to the reference, one at a time.
        rules: rules to mention in the explanation.
        takes_known: whether ``decode`` takes known labels.

    Raises:
        ValueError: X has several instances, or the model has cliques of three or more labels.
    """
    check_one_instance(X)
    names, best = fields.names, decode(X, None)
    assert best is not None
    labels = best.labels[0].cpu().numpy()
    parts = fields.contributions(X, labels)
    by_label = tuple(
        LabelExplanation(
            name,
            int(labels[label]),
            1 - int(labels[label]),
            float(parts.fields[label]),
            float(parts.intercepts[label]),
            _largest(parts.sources, parts.from_sources[label]),
            _largest(names, parts.from_labels[label]),
            *(_otherwise(decode, X, best, names, label) if takes_known else (None, np.nan)),
            unit=parts.units[label],
        )
        for label, name in enumerate(names)
    )
    by_feature = {
        name: _differing(names, labels, _labels(decode, changed))
        for name, changed in fields.without(X, labels, num_features)
    }
    return Explanation(by_label, by_feature, rules, parts.whose)


def check_one_instance(X: Any) -> None:
    """Check that X is a single instance, and raise ValueError otherwise."""
    if (came := num_instances(X)) != 1:
        raise ValueError(f"X: expected one instance, got {came} instances")


def without_names(model: Any) -> Any:
    """Return a copy that takes arrays; the copy keeps feature names in ``names_of_features_``."""
    names = given_names(model)
    if names is None:
        return model
    model = copy(model)
    model.names_of_features_ = names
    vars(model).pop("feature_names_in_", None)
    return model


def _otherwise(
    decode: Decode, X: Any, best: Decoding | Answer, names: Sequence[str], label: int
) -> tuple[dict[str, int] | None, float]:
    """Fix a label at the value not predicted; return the labels that change, and the cost."""
    labels = best.labels[0].cpu().numpy()
    held = np.full((1, len(names)), np.nan)
    held[0, label] = 1 - labels[label]
    other = decode(X, held)
    if other is None:
        return None, np.inf
    changes = _differing(names, labels, other.labels[0].cpu().numpy())
    del changes[names[label]]
    return changes, abs(float(other.objective[0] - best.objective[0]))


def _labels(decode: Decode, X: Any) -> np.ndarray:
    found: Any = decode(X, None)
    return found.labels[0].cpu().numpy()


def _differing(names: Sequence[str], before: np.ndarray, after: np.ndarray) -> dict[str, int]:
    """Return the labels that differ between ``before`` and ``after``: names and values in ``after``."""
    places = np.flatnonzero(before != after).tolist()
    return {names[place]: int(after[place]) for place in places}


def _largest(names: Sequence[str], values: np.ndarray) -> dict[str, float]:
    """Return the contributions that are not zero, by name, in descending order of size."""
    return {names[place]: float(values[place]) for place in largest_first(values) if values[place]}


def _because(label: LabelExplanation) -> str:
    if label.unit == "unknown":
        if np.isnan(label.field):
            return "neither probability nor parts are known"
        return f"probability {label.field:+.2f}, of which no parts are known"
    parts = [f"{label.intercept:+.2f}", *_shown(label.features), *_shown(label.labels)]
    return f"{label.unit} {label.field:+.2f} = {', '.join(parts)}"


def _told_otherwise(label: LabelExplanation) -> str:
    if label.otherwise is None:
        return f"{label.other} cannot be held" if np.isnan(label.cost) else f"{label.other} is ruled out"
    cost = "" if np.isnan(label.cost) else f" for {label.cost:.2f}"
    return f"at {label.other}{cost} changes {_changes(label.otherwise) or 'nothing else'}"


def _shown(contributions: Mapping[str, float]) -> list[str]:
    parts = [f"{name} {value:+.2f}" for name, value in contributions.items()]
    return parts if len(parts) <= NUM_SHOWN else [*parts[:NUM_SHOWN], "…"]


def _changes(labels: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in labels.items())
