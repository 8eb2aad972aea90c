"""Cross-validated predictions for sequences of different lengths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.model_selection import GroupKFold, check_cv


def cross_val_predict_sequences(
    estimator: Any,
    X: Sequence[Any],
    y: Sequence[Any],
    *,
    groups: Any = None,
    cv: Any = 5,
    method: str = "predict",
    sample_weight: Any = None,
) -> list[np.ndarray]:
    """Predict each sequence by a classifier trained without the fold that holds the sequence.

    Unlike scikit-learn's ``cross_val_predict``, the function accepts sequences of different lengths.

    Args:
        estimator: a classifier of sequences, copied for each fold.
        X, y: sequences and classes of positions, in the form for the estimator's ``fit``.
        groups: (sequences,), group of each sequence, such as a document; a group is never split.
        cv: the number of folds, or a splitter of scikit-learn that holds out each sequence exactly once.
        method: name of the method to call, such as ``"predict"`` or ``"predict_marginals"``. The result of
            ``"predict_proba"`` has a column for each class of ``y``, sorted; 0 for classes not trained.
        sample_weight: (sequences,), weights in training.

    Raises:
        ValueError: the numbers of sequences and of labels, groups or weights differ; the splitter holds out a
            sequence never or twice; or the estimator refuses the data.

    Examples:
        >>> import numpy as np
        >>> from lmbm_torch.estimators import ChainCRF, cross_val_predict_sequences
        >>> X = [np.array([[0.0], [3.0]]), np.array([[3.0]]), np.array([[0.0], [3.0], [0.0]])]
        >>> cross_val_predict_sequences(ChainCRF(), X, [[0, 1], [1], [0, 1, 0]], cv=3)
        [array([0, 1]), array([1]), array([0, 1, 0])]
    """
    count = len(X)
    for name, given in {"y": y, "groups": groups, "sample_weight": sample_weight}.items():
        if given is not None and len(given) != count:
            raise ValueError(f"{name}: expected {count}, one for each sequence, got {len(given)}")
    weights = None if sample_weight is None else np.asarray(sample_weight)
    is_count = isinstance(cv, int | np.integer)
    splitter: Any = GroupKFold(int(cv)) if groups is not None and is_count else check_cv(cv)
    found: list[Any] = [None] * count
    classes = np.unique(np.concatenate([*map(np.asarray, y)])) if method == "predict_proba" else None
    for train, test in splitter.split(np.zeros(count), groups=groups):
        more = {} if weights is None else {"sample_weight": weights[train]}
        fitted: Any = clone(estimator)
        fitted.fit([X[each] for each in train], [y[each] for each in train], **more)
        values = getattr(fitted, method)([X[each] for each in test])
        for each, value in zip(test, values, strict=True):
            if found[each] is not None:
                raise ValueError(f"cv: expected each sequence in one test part, got sequence {each} in two")
            if classes is None:
                found[each] = value
                continue
            found[each] = np.zeros((len(value), len(classes)))
            found[each][:, np.searchsorted(classes, fitted.classes_)] = value
    if missing := [each for each, value in enumerate(found) if value is None]:
        raise ValueError(f"cv: expected each sequence in one test part, got none with {missing[0]}")
    return found
