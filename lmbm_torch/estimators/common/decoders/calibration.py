"""Calibration of an estimator's probabilities on instances held out in five folds.

``calibrate="labels"`` fits a scale and a shift for each label's field, ``"scale"`` one scale for all fields;
``"joint"`` adds two scales in equal mixture, so joint confidences match the share of right answers; see
:mod:`lmbm_torch.calibration.scales`. ``True`` means ``"joint"`` if label sets can be summed and an instance
has all labels, otherwise ``"labels"``. Instances count by sample weight, for Boltzmann machines also by the
number of known labels. Calibration costs five further fits; sums over label sets of 18 to 22 labels take some
seconds more.
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
    """Return the calibration of a fitted classifier, from fits with the same parameters; None without.

    Args:
        kind: the parameter ``calibrate``.
        settings: parameters that differ from the classifier's.
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
    """Yield for each split the energy of the held-out instances, by a model of the others, and their labels.

    Args:
        model: an estimator, left unchanged.
        splits: pairs of training rows and held-out rows.
    """
    of_kernel = get_tags(model).input_tags.pairwise
    for train, held_out in splits:
        weight = None if sample_weight is None else sample_weight[train]
        rows, others = (X[np.ix_(some, train)] if of_kernel else X[some] for some in (train, held_out))  # pyright: ignore[reportOptionalSubscript]
        energy = unfitted(model).fit(rows, labels[train], weight).energy(others)
        yield energy, label_tensor("y", labels[held_out], energy, allow_missing=True)
