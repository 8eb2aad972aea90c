"""Estimators whose probabilities are calibrated on training instances that were held out, in five folds.

With ``calibrate="labels"`` every label's field gets a scale and a shift, with ``"scale"`` all fields get one
scale; see :mod:`lmbm_torch.calibration.scales`. With ``"joint"`` there are two scales more, in equal
mixture, so that joint confidences agree with the share of right answers; see
:mod:`lmbm_torch.calibration.joint`. ``True`` is ``"joint"`` where labellings can be summed and some
instance has all of its labels, else ``"labels"``. Instances count by their sample weights, and of machines by
the labels that they know. Five more fits are made; of machines of 18 to 22 labels sums over labellings take
some seconds more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from sklearn.utils import get_tags
from torch import Tensor

from lmbm_torch.calibration.joint import fitted_scales
from lmbm_torch.calibration.scales import Calibration
from lmbm_torch.estimators.common.base import unfitted
from lmbm_torch.estimators.common.targets import label_tensor
from lmbm_torch.estimators.decoders.decoding import DecodingClassifier
from lmbm_torch.fitting.recipe import calibration_folds
from lmbm_torch.solvers.networks.problems import Features


def calibrated(calibration: Calibration | None, energies: Sequence[Any]) -> list[Any]:
    """Return the energies whose equal mixture gives the probabilities, two of each of a joint calibration."""
    if calibration is None:
        return list(energies)
    return [member for energy in energies for member in calibration.apply_all(energy)]


def learned_calibration(
    classifier: DecodingClassifier[Any],
    kind: bool | str,
    X: Features,
    labels: np.ndarray,
    sample_weight: np.ndarray | None,
    **settings: Any,
) -> Calibration | None:
    """Return the calibration of a fitted classifier, by ones with the same parameters; None without.

    Args:
        kind: the parameter ``calibrate``.
        settings: other parameters than those of the classifier.
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
    """For each split the energy of the instances held out, by a model of the others, and their labels.

    Args:
        model: an estimator, which is not changed.
        splits: pairs of the training rows and those held out.
    """
    of_kernel = get_tags(model).input_tags.pairwise
    for train, held_out in splits:
        weight = None if sample_weight is None else sample_weight[train]
        rows, others = (X[np.ix_(some, train)] if of_kernel else X[some] for some in (train, held_out))  # pyright: ignore[reportOptionalSubscript]
        energy = unfitted(model).fit(rows, labels[train], weight).energy(others)
        yield energy, label_tensor("y", labels[held_out], energy, allow_missing=True)
