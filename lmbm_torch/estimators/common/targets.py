"""Conversion of targets in any form to label matrices in {0, 1, NaN}, and weights of labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy import sparse
from sklearn.utils.class_weight import compute_sample_weight
from torch import Tensor

from lmbm_torch.checks import check_labels, check_shape, is_absent, is_missing
from lmbm_torch.data.features import numbered
from lmbm_torch.data.tables import schema
from lmbm_torch.data.tables.frames import column_names, is_frame, is_plain, open_frame
from lmbm_torch.data.tables.labels import (
    SEPARATOR,
    UNCERTAIN,
    LabelForm,
    are_truths,
    fit_labels,
    has_names,
    label_sets,
)
from lmbm_torch.energies import Energy
from lmbm_torch.memory import part_bytes
from lmbm_torch.solvers.networks.problems import canonical

# Sparse label matrices are converted to dense ones in batches of rows with at most this many entries.
VALUES_AT_ONCE = 2**22


@dataclass(frozen=True, eq=False)
class LabelFrame:
    """A minimal data frame of labels: a label matrix with names of the labels.

    Args:
        columns: names of the labels.
        values: labels (instances, labels), or (instances,) for a single label.
    """

    columns: tuple[str, ...]
    values: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    def __len__(self) -> int:
        return len(self.values)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.values, dtype=dtype)

    def __getitem__(self, key: Any) -> LabelFrame:
        """Return the label with this name or, for indices, these instances."""
        if isinstance(key, str):
            return LabelFrame((key,), self.values[:, self.columns.index(key)])
        return LabelFrame(self.columns, self.values[key])

    def to_numpy(self) -> np.ndarray:
        """Return the labels as an array."""
        return self.values


def named_labels(y: Any, names: Sequence[str] | None = None) -> Any:
    """Convert sets of label names to a frame of labels in {0, 1, NaN}; return other targets unchanged.

    Sets are a list or a column of tuples, sets or lists of texts, or of texts such as ``"red;blue"`` or JSON
    arrays; None marks instances without known labels. Two cases are no sets: lists of equal length are a
    label matrix, and texts without a semicolon are classes unless ``names`` are given.

    Args:
        names: names of the labels in ``fit``; by default all names in ``y``, in alphabetical order.

    Raises:
        ValueError: a name is not among ``names``.
    """
    if is_frame(y) and hasattr(y, "column_names"):
        # Convert a PyArrow table, which has ``column_names`` instead of ``columns``.
        columns = [y[name].to_numpy() for name in y.column_names]
        y = LabelFrame(tuple(y.column_names), np.column_stack(columns))
    sets = _sets(y, are_classes=names is None)
    if sets is None:
        return y
    occurring = sorted(set().union(*(each for each in sets if each is not None)))
    labels = tuple(occurring if names is None else names)
    if strange := [name for name in occurring if name not in labels]:
        raise ValueError(f"y: expected names among {list(labels)}, got {strange[:5]}")
    place = {name: index for index, name in enumerate(labels)}
    matrix = np.zeros((len(sets), len(labels)))
    for row, each in enumerate(sets):
        columns = slice(None) if each is None else [place[name] for name in each]
        matrix[row, columns] = np.nan if each is None else 1
    return LabelFrame(labels, matrix)


def form_of_labels(y: Any, uncertain: str | None) -> LabelForm | None:
    """Find out how the columns of a data frame of labels are written: as marks, sets of names, or classes.

    Return None if no form is needed: for matrices, single columns, frames of numbers, and frames of two texts
    in each column. In different frames, two texts are two classes unless they mean 0 and 1, as no and yes.

    Args:
        uncertain: a key of :data:`UNCERTAIN`, if −1 marks an uncertain label; otherwise None.

    Raises:
        ValueError: see :func:`~lmbm_torch.data.tables.labels.fit_labels`.
    """
    if not is_frame(y) or isinstance(y, LabelFrame) or y.shape[1] < 2 or is_plain(y):
        return None
    table = open_frame(y)
    names = [*table.columns]
    declared = {
        name
        for name in table.categories
        if len({value for value in table.columns[name].tolist() if value is not None and value == value}) > 2
    }
    found = fit_labels(table.columns, names, classes=declared, uncertain=uncertain)
    given = (np.asarray(y[key]).tolist() for key in getattr(y, "column_names", y.columns))
    are_texts = {any(isinstance(value, str) for value in column) for column in given}
    if len(are_texts) == 1 and all(column.kind == "truths" for column in found.columns):
        return None
    pairs = {
        column.name
        for column in found.columns
        if column.kind == "truths" and not are_truths(table.columns[column.name])
    }
    return fit_labels(table.columns, names, classes=declared | pairs, uncertain=uncertain)


def formed_labels(y: Any, form: LabelForm) -> Any:
    """Convert a data frame with the columns of a form to labels in {0, 1, NaN}; keep different targets.

    Uncertain labels stay −1.
    """
    if not is_frame(y) or {*column_names(y)} != {column.name for column in form.columns}:
        return y
    given = open_frame(y).columns
    columns = form.applied(given)
    labels = np.column_stack([columns[name] for name in form.label_names])
    return LabelFrame(form.label_names, np.where(form.uncertain(given), -1, labels))


def certain_labels(y: Any, uncertain: str) -> tuple[LabelFrame, np.ndarray]:
    """Replace uncertain labels (−1); return the new labels and a mask of the replaced ones.

    A −1 becomes 0, 1 or missing, as in Irvin et al. (2019), Section 4.1, for radiologists' reports.

    Args:
        y: labels (instances, labels) in {−1, 0, 1}, with NaN or None for missing labels.
        uncertain: a key of :data:`UNCERTAIN`, such as ``"zeros"``.

    Raises:
        ValueError: ``uncertain`` is unknown, or ``y`` has a wrong shape or values except −1, 0, 1 and NaN.
    """
    if not isinstance(uncertain, str) or uncertain not in UNCERTAIN:
        raise ValueError(f"uncertain: expected one of {list(UNCERTAIN)} or None, got {uncertain!r}")
    wanted = "y: expected labels (instances, labels) that are 0, 1, -1 (uncertain) or missing"
    try:
        labels = dense(y)
        values = np.where(is_missing(labels), np.nan, labels.astype(object)).astype(np.float64)
    except (TypeError, ValueError) as strange:
        raise ValueError(f"{wanted}: {strange}") from None
    if values.ndim != 2:
        raise ValueError(f"{wanted}, got an array of shape {values.shape}")
    if strange := np.setdiff1d(values[~np.isnan(values)], (-1, 0, 1)).tolist():
        raise ValueError(f"{wanted}, got {strange[:5]}")
    mask = values == -1
    names = tuple(map(str, getattr(y, "columns", numbered("label", values.shape[1]))))
    return LabelFrame(names, np.where(mask, UNCERTAIN[uncertain], values)), mask


def _sets(y: Any, *, are_classes: bool) -> list[list[str] | None] | None:
    """Convert sets of names to a list for each instance, None if unknown; return None if ``y`` has no sets.

    Args:
        are_classes: whether texts without a semicolon are classes.
    """
    column = y[y.columns[0]] if is_frame(y) and len(y.columns) == 1 else y
    if len(getattr(column, "shape", (0,))) != 1 or not hasattr(column, "__len__"):
        return None
    values = np.asarray(column) if hasattr(column, "to_numpy") else column
    if isinstance(values, np.ndarray) and values.dtype.kind not in "OU":
        return None
    found = [None if is_absent(value) else value for value in values]
    known = [value for value in found if value is not None]
    if known and all(isinstance(value, str) for value in known):
        if are_classes and not has_names(known):
            return None
        return label_sets(np.array(found, dtype=object), SEPARATOR)
    if not known or not all(isinstance(each, list | tuple | set | frozenset | np.ndarray) for each in known):
        return None
    is_matrix = isinstance(column, list) and all(isinstance(each, list) for each in found)
    if is_matrix and len({*map(len, known)}) == 1:
        return None
    are_names = all(isinstance(name, str) for each in known for name in each)
    return [None if each is None else list(each) for each in found] if are_names else None


def known_by_name(
    known: Mapping[str, Any], names: Sequence[str], count: int, form: LabelForm | None = None
) -> np.ndarray:
    """Convert known labels given by name to a matrix (instances, labels) with NaN for unknown labels.

    Args:
        known: dictionary from a name to a common value for all instances, or to values (instances,).
        names: names of the labels in ``fit``.
        count: number of instances.
        form: form of the data frame in ``fit``, if any; then ``known`` has names and values of its columns.

    Raises:
        ValueError: a name is not among ``names``, or a value cannot be read by ``form``.
    """
    if form is not None:
        known = form.applied({name: _repeated(value, count) for name, value in known.items()})
    if strange := [name for name in known if name not in names]:
        raise ValueError(f"known: expected names among {list(names)}, got {strange[:5]}")
    found = np.full((count, len(names)), np.nan)
    for name, value in known.items():
        found[:, names.index(name)] = value
    return found


def _repeated(value: Any, count: int) -> np.ndarray:
    """Repeat a single value for each instance, if needed; return texts as an array of objects."""
    values = np.asarray(value)
    return np.broadcast_to(values.astype(object if values.dtype.kind in "OU" else np.float64), (count,))


def label_matrix(name: str, labels, *, allow_missing: bool) -> np.ndarray:
    """Convert labels to an array of float64, and check the values.

    Raises:
        TypeError: labels are not numbers.
        ValueError: labels are not 0 or 1 (or NaN, if allowed).
    """
    labels = dense(labels)
    if labels.dtype == object:
        try:
            labels = labels.astype(np.float64)
        except (TypeError, ValueError) as strange:
            raise TypeError(f"{name}: expected numbers: {strange}") from None
    check_labels(name, labels, allow_missing=allow_missing)
    return labels.astype(np.float64)


def predicted_sparse(
    predict: Callable[[Any, np.ndarray | None], Any], X: Any, known: Any, classes: np.ndarray
) -> sparse.csr_array:
    """Predict labels in batches of rows, and return the label matrix as CSR.

    Args:
        predict: function from instances and known labels to predicted labels.
        classes: (labels, 2), the values of each label.

    Raises:
        ValueError: the values of labels in ``fit`` were not 0 and 1.
    """
    if (np.asarray(classes) != (0, 1)).any():
        raise ValueError("sparse_output: expected labels 0 and 1 in fit, got other values")
    X = X.tocsr() if sparse.issparse(X) else X
    step, count = rows_at_once(len(classes)), np.shape(X)[0]
    parts = []
    # Call ``predict`` even if there are no rows, because ``predict`` then raises the proper error.
    for first in range(0, max(count, 1), step):
        rows = slice(first, first + step)
        given = None if known is None else np.asarray(known)[rows]
        parts.append(sparse.csr_array(predict(X[rows], given)))
    return sparse.csr_array(sparse.vstack(parts, format="csr"))


def rows_at_once(num_labels: int) -> int:
    """Return how many rows of a sparse label matrix are converted to dense ones at once."""
    return max(1, part_bytes(8 * VALUES_AT_ONCE) // (8 * num_labels))


def sparse_label_matrix(labels) -> sparse.csr_array:
    """Convert a sparse label matrix to CSR with float64 entries; add duplicates and drop stored zeros.

    Raises:
        ValueError: an entry of the result is not 0 or 1.
    """
    rows = canonical(sparse.csr_array(labels, dtype=np.float64))
    check_labels("y", rows.data)
    return rows


def label_codes(name: str, labels: Any, classes: Any, *, allow_missing: bool) -> np.ndarray:
    """Convert labels in the values of ``classes`` to 0, 1 and NaN (missing), as float64.

    Args:
        labels: (instances, labels) in the values of ``classes``.
        classes: (labels, 2), the values that mean 0 and 1 for each label; None if these are 0 and 1.

    Raises:
        TypeError: the classes are 0 and 1, but labels are not numbers.
        ValueError: labels have a wrong shape, values that are not in ``classes``, or forbidden NaN.
    """
    if classes is None or _are_bits(np.asarray(classes)):
        return label_matrix(name, labels, allow_missing=allow_missing)
    values = labels.toarray() if sparse.issparse(labels) else np.asarray(labels)
    check_shape(name, values, None, len(classes))
    missing = is_missing(values)
    off, on = np.asarray(classes).T
    values = np.where(missing, off, values)
    codes = np.where(values == off, 0.0, np.where(values == on, 1.0, np.inf))
    if np.isinf(codes).any():
        row, label = np.argwhere(np.isinf(codes))[0]
        raise ValueError(
            f"{name}: expected the values of fit, {np.asarray(classes)[label].tolist()} for label {label}, "
            f"got {values[row, label]!r}"
        )
    if missing.any() and not allow_missing:
        raise ValueError(f"{name}: expected no missing labels, got {int(missing.sum())} missing labels")
    return np.where(missing, np.nan, codes)


def label_values(codes: np.ndarray, classes: Any) -> np.ndarray:
    """Convert labels (…, labels) in {0, 1, NaN} to the values of ``classes`` (labels, 2); NaN stays NaN.

    Args:
        classes: see :func:`label_codes`.
    """
    if classes is None or _are_bits(np.asarray(classes)):
        return codes
    classes = np.asarray(classes)
    values = np.where(codes == 1, classes[:, 1], classes[:, 0])
    missing = is_missing(np.asarray(codes))
    if not missing.any():
        return values
    return np.where(missing, np.nan, values.astype(object if values.dtype.kind in "OU" else np.float64))


def _are_bits(classes: np.ndarray) -> bool:
    return classes.dtype.kind == "i" and bool((classes == (0, 1)).all())


def label_tensor(
    name: str, labels: Any, energy: Energy, classes: Any = None, *, allow_missing: bool = False
) -> Tensor:
    """Convert labels to a tensor in {0, 1, NaN} with the energy's device and dtype.

    Args:
        classes: see :func:`label_codes`.

    Raises:
        TypeError, ValueError: see :func:`label_codes`; ValueError also if labels do not fit the energy.
    """
    codes = label_codes(name, labels, classes, allow_missing=allow_missing)
    check_shape(name, codes, energy.batch_size, energy.num_labels)
    return torch.from_numpy(codes).to(energy.device, energy.dtype)


def known_tensor(known: Any, energy: Energy, classes: Any) -> Tensor | None:
    """Convert known labels (instances, labels), NaN if unknown, to a tensor for a decoder; keep None."""
    return None if known is None else label_tensor("known", known, energy, classes, allow_missing=True)


def check_given(estimator: Any, y: Any) -> None:
    """Check that targets were given, and raise ValueError if ``y`` is None."""
    if y is None:
        # scikit-learn's estimator checks expect exactly this message.
        raise ValueError(f"{type(estimator).__name__} requires y to be passed, but the target y is None")


def with_rows(X: Any) -> Any:
    """Convert sparse matrices to CSR, so rows can be selected; keep instances in a different form."""
    return canonical(X) if sparse.issparse(X) else X


def dense(labels) -> np.ndarray:
    """Convert labels to a dense array; classes in a single column are kept as they are."""
    if isinstance(labels, LabelFrame):
        return labels.values
    if hasattr(labels, "columns") and labels.shape[1] > 1:
        values = np.asarray(labels)
        if values.dtype == object and any(isinstance(value, str) for value in values.ravel()):
            return values
        table = open_frame(labels)
        columns = list(table.columns.values())
        if all(column.dtype.kind in "iuf" for column in columns):
            # Keep numbers as they are, because the caller checks the values.
            return np.column_stack(columns)
        return schema.label_matrix(table, list(table.columns))
    return labels.toarray() if sparse.issparse(labels) else np.asarray(labels)


def declared_values(labels: Any) -> list[list[Any] | None] | None:
    """Return each column's declared categories in a data frame; None if no column is categorical.

    Ordered categories keep the order; unordered categories are sorted.
    """
    if isinstance(labels, LabelFrame) or not hasattr(labels, "columns"):
        return None
    columns = (
        labels.iloc[:, place] if hasattr(labels, "iloc") else labels[:, place]
        for place in range(labels.shape[1])
    )
    kinds = [column.dtype for column in columns]
    found = [
        None
        if getattr(kind, "categories", None) is None
        else [*kind.categories]
        if getattr(kind, "ordered", False)
        else sorted(kind.categories)
        for kind in kinds
    ]
    return None if all(each is None for each in found) else found


def check_columns(labels: Any, names: Sequence[str] | None) -> None:
    """Check that a data frame of labels has the columns of ``fit`` in order; raise ValueError if not.

    Args:
        labels: labels in any form; labels without column names are not checked.
        names: names of the labels in ``fit``; None or label_0, label_1, … if ``fit`` was given no names.
    """
    columns = getattr(labels, "columns", None)
    if columns is None or not names or tuple(names) == numbered("label", len(names)):
        return
    found = [str(name) for name in columns]
    if found == [*names]:
        return
    if sorted(found) == sorted(names):
        raise ValueError(f"labels: expected columns in the order of fit, {[*names]}, got {found}")
    missing, unknown = ([name for name in a if name not in b] for a, b in ((names, found), (found, names)))
    raise ValueError(f"labels: expected the columns of fit, got unknown {unknown[:5]}, lack {missing[:5]}")


def exact_match(truth: np.ndarray, predicted: np.ndarray, sample_weight: Any = None) -> float:
    """Return the share of instances with all known labels right, among instances with a known label.

    Args:
        truth, predicted: (instances, labels) of any values; NaN, None or NA in ``truth`` for missing labels.
        sample_weight: weights (instances,); without weights all weights are 1.
    """
    check_shape("y", truth, *predicted.shape)
    missing = is_missing(truth)
    right = (np.where(missing, predicted, truth) == predicted).all(1)
    weights = np.ones(len(right)) if sample_weight is None else np.asarray(sample_weight, np.float64)
    return float(np.average(right, weights=weights * ~missing.all(1)))


def is_label_matrix(y: np.ndarray) -> bool:
    """Return whether targets are a label matrix rather than a class for each instance."""
    if y.ndim != 2:
        return False
    is_binary = np.issubdtype(y.dtype, np.number) and bool(((y == 0) | (y == 1) | (y != y)).all())
    return y.shape[1] > 1 or is_binary


def positive_probabilities(came: Any, classes: Any, positive: Sequence[Any]) -> np.ndarray:
    """Convert the result of ``predict_proba`` to probabilities of the positive values, (instances, labels).

    A label with a single value in training has the probability 0 or 1.

    Args:
        came: a matrix (instances, labels), or an array (instances, values) for each label or the only label.
        classes: ``classes_`` of the classifier: the values of each label, or of the only label.
        positive: (labels,), the positive value of each label.
    """
    is_single = len(positive) == 1 and classes is not None and np.ndim(classes[0]) == 0
    if not isinstance(came, list | tuple):
        if not is_single:
            return np.asarray(came)
        came = [came]
    values: Any = [classes] if is_single else classes
    pairs = zip(came, values, positive, strict=True)
    return np.column_stack(
        [np.asarray(each)[:, np.asarray(own) == value].sum(1) for each, own, value in pairs]
    )


def label_weights(
    class_weight: Any, labels: np.ndarray, missing: np.ndarray, sample_weight: np.ndarray | None
) -> np.ndarray | None:
    """Return the weight of each label of each instance, (instances, labels); None if all are 1.

    Args:
        class_weight: a setting for all labels, or a list with a setting for each label. A setting is
            ``"balanced"`` (weight = known instances / (classes · instances of the class), where
            ``sample_weight`` is ignored), a dictionary from classes to weights (by default 1), or None.
        labels: (instances, labels), the labels' values.
        missing: (instances, labels), True for unknown labels; weights of unknown labels are not used.
        sample_weight: (instances,), multiplied with the weights of the classes.

    Raises:
        ValueError: a setting, class or weight is invalid, or the number of settings is wrong.
    """
    instances, count = labels.shape
    several = isinstance(class_weight, Sequence) and not isinstance(class_weight, str)
    settings = list(class_weight) if several else [class_weight] * count
    if len(settings) != count:
        raise ValueError(
            f"class_weight: expected one setting for each of {count} labels, got {len(settings)} settings"
        )
    if sample_weight is None and all(setting is None for setting in settings):
        return None
    weights = np.ones((instances, count)) if sample_weight is None else np.tile(sample_weight, (count, 1)).T
    for label, setting in enumerate(settings):
        if setting is None:
            continue
        known = ~missing[:, label]
        weights[known, label] *= _of_classes(setting, labels[known, label])
    return weights


def _of_classes(setting: Any, values: np.ndarray) -> np.ndarray:
    if isinstance(setting, Mapping):
        numbers = [*setting.values()]
        if not all(isinstance(w, int | float | np.number) and 0 <= w < np.inf for w in numbers):
            raise ValueError(f"class_weight: expected finite weights of at least 0, got {numbers}")
        found = set(values.tolist())
        unknown = [each for each in setting if each not in {0, 1} | found]
        # Allow weights of absent classes if all present classes have weights, as scikit-learn does for folds.
        if unknown and not found <= setting.keys():
            known = sorted({0, 1} | found, key=str)
            raise ValueError(f"class_weight: expected classes among {known}, got {unknown}")
        return np.array([float(setting.get(value, 1.0)) for value in values.tolist()])
    if setting != "balanced":
        raise ValueError(f"class_weight: expected 'balanced', weights by class or None, got {setting!r}")
    return compute_sample_weight("balanced", values)
