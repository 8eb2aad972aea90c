"""Why a linear network or machine answers as it does: fields taken apart, and answers that would differ."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass
from html import escape
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse

from lmbm_torch.checks import check_finite, check_shape
from lmbm_torch.data.features import numbered
from lmbm_torch.energies import DirectedEnergy, PairwiseEnergy
from lmbm_torch.inference.results import Decoding

__all__ = [
    "Explanation",
    "LabelExplanation",
    "check_linear",
    "explanation",
    "is_explained",
    "without_names",
]

Decode = Callable[[np.ndarray, np.ndarray | None], Decoding | None]

# Of features and of labels, each, in a text.
NUM_SHOWN = 3


@dataclass(frozen=True)
class LabelExplanation:
    """Why a label has its value: ``field`` = ``intercept`` + Σ ``features`` + Σ ``labels``.

    Args:
        name: of the label.
        value: its answer, 0 or 1.
        field: half the log-odds of the label, given the input and the labels that it depends on.
        intercept: the field where all features are at their reference, without the labels.
        features: name → contribution, the largest first.
        labels: name → contribution of each label that it depends on, the largest first: of a network its
            parents, of a machine all neighbours.
        otherwise: other label → its value, where that changes if this label is held at its other value and
            all others are decoded again; None if no labelling that obeys the rules is left.
        cost: by how much the objective of decoding suffers from that; infinite if none is left.
    """

    name: str
    value: int
    field: float
    intercept: float
    features: Mapping[str, float]
    labels: Mapping[str, float]
    otherwise: Mapping[str, int] | None
    cost: float


@dataclass(frozen=True)
class Explanation(Mapping[str, LabelExplanation]):
    """Why an instance has its labels: label → :class:`LabelExplanation`; a text, or HTML in a notebook.

    Args:
        by_label: in the order of the labels.
        by_feature: feature → the labels, with their values, that change if it alone is at its reference; the
            features of largest contributions.
        rules: those that the answer would break without them.
    """

    by_label: tuple[LabelExplanation, ...]
    by_feature: Mapping[str, Mapping[str, int]]
    rules: tuple[str, ...] = ()

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
        """Of names, numbers and dicts of these alone."""
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

    def rows(self) -> Iterator[tuple[str, str, str]]:
        """Of each label its value, the largest contributions, and what changes if it is otherwise."""
        for label in self.by_label:
            parts = [f"{label.intercept:+.2f}", *_shown(label.features), *_shown(label.labels)]
            because = f"field {label.field:+.2f} = {', '.join(parts)}"
            if label.otherwise is None:
                otherwise = f"{1 - label.value} is ruled out"
            else:
                changes = _changes(label.otherwise) or "nothing else"
                otherwise = f"at {1 - label.value} for {label.cost:.2f} changes {changes}"
            yield f"{label.name} = {label.value}", because, otherwise

    def remarks(self) -> list[str]:
        """Which features change the answer, and the rules that hold it."""
        changing = [
            f"{name} at its reference: {_changes(changes)}"
            for name, changes in self.by_feature.items()
            if changes
        ]
        return [*changing, *(f"held by the rule {rule}" for rule in self.rules)]


def explanation(
    model: Any,
    decode: Decode,
    X: Any,
    reference: ArrayLike | None,
    num_features: int,
    rules: tuple[str, ...] = (),
) -> Explanation:
    """Take a decoded instance apart.

    Args:
        model: a classifier that :func:`check_linear` has passed, ``without_names``.
        decode: (instances, known) → the labels to explain, which need not be the model's own choice; None
            where rules leave none.
        X: (1, features), one validated instance.
        reference: (features,), relative to which features contribute; by default what training was centred
            at: the means where C is "scale", else 0.
        num_features: how many are set to their reference, one at a time.
        rules: told in the explanation.

    Raises:
        ValueError: more or fewer instances than one, a reference of another shape or that is not finite,
            cliques of three labels.
    """
    X = X.toarray() if sparse.issparse(X) else np.asarray(X, np.float64)
    check_shape("X", X, 1, None)
    if reference is not None:
        reference = np.asarray(reference, np.float64)
        check_shape("reference", reference, X.shape[1])
        check_finite("reference", reference)
    centre = np.array(np.broadcast_to(model.feature_shift_ if reference is None else reference, X.shape[1:]))
    names = model.label_names_
    features = getattr(model, "names_of_features_", None) or numbered("feature", X.shape[1])
    best: Any = decode(X, None)
    labels, energy = best.labels[0].cpu().numpy(), model.energy(X)
    from_features = model.coef_ * (X[0] - centre)
    from_labels = _couplings(energy) * (2 * labels - 1)
    fields = energy.local_fields(best.labels.to(energy.device))[0].tolist()
    intercepts = (model.intercept_ + model.coef_ @ centre).tolist()
    by_label = tuple(
        LabelExplanation(
            name,
            int(labels[label]),
            fields[label],
            intercepts[label],
            _largest(features, from_features[label]),
            _largest(names, from_labels[label]),
            *_otherwise(decode, X, best, names, label),
        )
        for label, name in enumerate(names)
    )
    largest = np.argsort(-np.abs(from_features).max(0), kind="stable")[:num_features].tolist()
    answers = zip(largest, _without(decode, X, centre, largest), strict=True)
    by_feature = {features[place]: _differing(names, labels, answer) for place, answer in answers}
    return Explanation(by_label, by_feature, rules)


def check_linear(model: Any) -> None:
    """Refuse what has no linear fields to take apart.

    Raises:
        TypeError: a model of another kind than a network or machine.
        ValueError: a kernel, or a model of classes.
    """
    if getattr(model, "kernel", "linear") != "linear":
        raise ValueError(f"explain: expected a linear model, got kernel={model.kernel!r}")
    if not (hasattr(model, "coef_") and hasattr(model, "energy")):
        raise TypeError(f"explain: expected a linear network or machine, got {type(model).__name__}")
    if model.binarizer_ is not None:
        raise ValueError("explain: expected a model of label matrices, got one that was fitted to classes")


def without_names(model: Any) -> Any:
    """The classifier for arrays; where it was fitted to a data frame, with ``names_of_features_``."""
    names = getattr(model, "feature_names_in_", None)
    if names is None:
        return model
    model = copy(model)
    model.names_of_features_ = tuple(map(str, names))
    del model.feature_names_in_
    return model


def is_explained(model: Any, X: Any) -> bool:
    """Whether a fitted model of label matrices has fields that :func:`explanation` takes apart."""
    is_linear = getattr(model, "kernel", "linear") == "linear" and hasattr(model, "coef_")
    if not is_linear or not hasattr(model, "energy"):
        return False
    energy = model.energy(X)
    return isinstance(energy, PairwiseEnergy) or not getattr(energy, "cliques", ())


def _couplings(energy: Any) -> np.ndarray:
    """Row i holds the weights of the labels that label i depends on."""
    if isinstance(energy, DirectedEnergy) and not energy.cliques:
        weights = energy.parents
    elif isinstance(energy, PairwiseEnergy):
        weights = energy.pairwise
    else:
        raise ValueError("explain: expected dependencies between two labels, got cliques of more")
    return (weights if weights.ndim == 2 else weights[0]).detach().cpu().numpy()


def _otherwise(
    decode: Decode, X: np.ndarray, best: Decoding, names: Sequence[str], label: int
) -> tuple[dict[str, int] | None, float]:
    """What else changes where a label is held at its other value, and at which cost."""
    labels = best.labels[0].cpu().numpy()
    held = np.full((1, len(names)), np.nan)
    held[0, label] = 1 - labels[label]
    other = decode(X, held)
    if other is None:
        return None, np.inf
    changes = _differing(names, labels, other.labels[0].cpu().numpy())
    del changes[names[label]]
    return changes, abs(float(other.objective[0] - best.objective[0]))


def _without(
    decode: Decode, X: np.ndarray, reference: np.ndarray, features: Sequence[int]
) -> Iterator[np.ndarray]:
    """The answers where each of the features, one at a time, is at its reference."""
    for feature in features:
        changed = X.copy()
        changed[0, feature] = reference[feature]
        found: Any = decode(changed, None)
        yield found.labels[0].cpu().numpy()


def _differing(names: Sequence[str], before: np.ndarray, after: np.ndarray) -> dict[str, int]:
    """The labels with other values, and these."""
    places = np.flatnonzero(before != after).tolist()
    return {names[place]: int(after[place]) for place in places}


def _largest(names: Sequence[str], values: np.ndarray) -> dict[str, float]:
    """By size; what contributes nothing is left out."""
    order: list[int] = np.argsort(-np.abs(values), kind="stable").tolist()
    return {names[place]: float(values[place]) for place in order if values[place]}


def _shown(contributions: Mapping[str, float]) -> list[str]:
    parts = [f"{name} {value:+.2f}" for name, value in contributions.items()]
    return parts if len(parts) <= NUM_SHOWN else [*parts[:NUM_SHOWN], "…"]


def _changes(labels: Mapping[str, int]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in labels.items())
