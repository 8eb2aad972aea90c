"""Calibration of an estimator's probabilities on instances held out in five folds.

``calibrate="labels"`` fits a scale and a shift for each label's field, ``"scale"`` a common scale for all
fields. ``"joint"`` adds an equally weighted mixture of two scales, so the probability of the predicted label
set matches the share of right label sets (:mod:`lmbm_torch.calibration.scales`). ``True`` means ``"joint"``
if sums over label sets are possible and an instance has all labels, otherwise ``"labels"``. Instances have
their sample weight, for Boltzmann machines times the number of known labels. Calibration costs five further
fits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from sklearn.utils import get_tags
from torch import Tensor

from lmbm_torch.calibration.scales import Calibration, fitted_scales
from lmbm_torch.estimators.common.base import unfitted
from lmbm_torch.estimators.common.decoders.decoding import DecodingClassifier
from lmbm_torch.estimators.common.targets import label_tensor
from lmbm_torch.fitting.recipe import calibration_folds
from lmbm_torch.solvers.networks.problems import Features


def learned_calibration(
    classifier: DecodingClassifier[Any],
    kind: bool | str,
    X: Features,
    labels: np.ndarray,
    sample_weight: np.ndarray | None,
    **settings: Any,
) -> Calibration | None:
    """Return the calibration of a fitted classifier, from further fits; None if ``kind`` is False.

    Args:
        kind: the classifier's parameter ``calibrate``.
        settings: parameters of the further fits, if different from the classifier's.
    """
    if kind is False or labels.shape[0] < 2:
        return None
    seed = classifier._seed()
    folds = [*calibration_folds(labels.shape[0], seed)]
    model = unfitted(classifier)
    model.set_params(calibrate=False, constraints=classifier._nameless_rules(), **settings)
    held_out = list(held_out_energies(model, X, labels, sample_weight, folds))
    weights = (
        None
        if sample_weight is None
        else [torch.as_tensor(sample_weight[rows], device="cpu") for _, rows in folds]
    )
    return fitted_scales(kind, held_out, lambda energy: classifier._decode_energy(energy).labels, weights)


def held_out_energies(
    model: DecodingClassifier[Any],
    X: Features,
    labels: np.ndarray,
    sample_weight: np.ndarray | None,
    splits: Iterable[tuple[np.ndarray, np.ndarray]],
) -> Iterator[tuple[Any, Tensor]]:
    """Train without each fold, and yield the energy and the labels of the held-out instances.

    Args:
        model: estimator whose copies are trained.
        splits: for each fold the training rows and the held-out rows.
    """
    of_kernel = get_tags(model).input_tags.pairwise
    for train, held_out in splits:
        weight = None if sample_weight is None else sample_weight[train]
        rows, others = (X[np.ix_(some, train)] if of_kernel else X[some] for some in (train, held_out))  # pyright: ignore[reportOptionalSubscript]
        energy = unfitted(model).fit(rows, labels[train], weight).energy(others)
        yield energy, label_tensor("y", labels[held_out], energy, allow_missing=True)
