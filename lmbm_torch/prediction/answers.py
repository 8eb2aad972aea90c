"""Predictions of a trained model for rows, and their quality."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lmbm_torch.checks import check_shape
from lmbm_torch.constraints import Constraints
from lmbm_torch.data import MultilabelData
from lmbm_torch.data.features import Features
from lmbm_torch.data.mapped.arrays import features_at
from lmbm_torch.extras import naming_extras
from lmbm_torch.inference.messages.matching import MatchedInference
from lmbm_torch.inference.results import Decoding
from lmbm_torch.metrics import multilabel_metrics
from lmbm_torch.prediction.loading import Predictor
from lmbm_torch.prediction.probabilities import (
    Probabilities,
    allowed_probabilities,
    mixture_log_prob,
    mixture_probabilities,
)
from lmbm_torch.prediction.reading import known_labels
from lmbm_torch.shapes import Float, Int
from lmbm_torch.solvers.networks.problems import canonical

with naming_extras():
    from scipy.sparse import issparse

BATCH_SIZE = 1024

Decoder = Callable[[Any], Decoding] | MatchedInference


@dataclass(frozen=True)
class Prediction:
    """A batch decoded, with the probabilities of its labels.

    Args:
        decoding: one labelling an instance, or several.
        probabilities: of each label, whatever was decoded; None for a model that is no distribution.
        log_prob: log P of each labelling; NaN where it is not known.
    """

    decoding: Decoding
    probabilities: Probabilities | None
    log_prob: Float[Tensor, " batch"] | Float[Tensor, "batch top_k"]

    def labellings(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Labels ``(batch, labels)``, objectives and log-probabilities ``(batch,)``, best first."""
        found = self.decoding
        if found.labels.ndim == 2:
            yield found.labels, found.objective, self.log_prob
        else:
            yield from zip(
                found.labels.unbind(1), found.objective.unbind(1), self.log_prob.unbind(1), strict=True
            )


@torch.no_grad()
def answers(
    saved: Predictor, features: Features, decoder: Decoder | None = None
) -> Iterator[tuple[list[Any], Decoding]]:
    """Energies of raw rows (several of an ensemble) and their decodings, a batch at a time.

    Args:
        features: dense, or sparse of any format.
        decoder: energy → decoding; by default the model's own, which is that of its training, or what an
            estimator predicts. A :class:`~lmbm_torch.inference.messages.matching.MatchedInference` that
            differs from the training's warns.

    Raises:
        ValueError: another number of features than the model was trained with; a decoder for an ensemble.
    """
    if issparse(features):
        features = canonical(features)
    check_shape("features", features, None, saved.num_inputs)
    if isinstance(decoder, MatchedInference):
        if saved.inference is not None:
            decoder.check_match(saved.inference)
        decoder = decoder.decode
    for start in range(0, features.shape[0], BATCH_SIZE):
        rows = features[start : start + BATCH_SIZE]
        if decoder is None:
            yield saved.answer(rows)
            continue
        energies = saved.energies(rows)
        if len(energies) > 1:
            raise ValueError("decoder: expected none for an ensemble, which has one labelling for each row")
        yield energies, decoder(energies[0])


def decode(saved: Predictor, features: Features, decoder: Decoder | None = None) -> Iterator[Decoding]:
    """Decodings of raw rows, a batch at a time; for arguments and errors see :func:`answers`."""
    return (found for _, found in answers(saved, features, decoder))


def binding(
    saved: Predictor, features: Features, rules: Constraints, decoder: Decoder | None = None
) -> Iterator[list[str]]:
    """The rules, as text, that the answer to each row would break without them.

    Args:
        decoder: see :func:`answers`; without the rules.
    """
    for found in decode(saved, features, decoder):
        yield from rules.broken(found.labels.cpu().numpy())


@torch.no_grad()
def predict(saved: Predictor, features: Features, decoder: Decoder | None = None) -> Iterator[Prediction]:
    """Decodings of raw rows and their probabilities, a batch at a time.

    Under the model's rules probabilities are those of what is allowed, NaN where no way to them is exact.

    Args:
        decoder: see :func:`answers`; ``saved.deciding(top_k=3)`` gives several labellings.

    Raises:
        ValueError: see :func:`answers`.
    """
    for energies, found in answers(saved, features, decoder):
        if not saved.has_probabilities:
            yield Prediction(found, None, torch.full_like(found.objective, torch.nan))
            continue
        distributions = saved.calibrated(energies)
        if saved.rules is None:
            members = mixture_probabilities(distributions, saved.inference)
        else:
            members = allowed_probabilities(distributions, saved.rules)
        # Several labellings of an instance are samples to an energy, whose axis comes first.
        samples = found.labels if found.labels.ndim == 2 else found.labels.transpose(0, 1)
        log_probability = mixture_log_prob(distributions, samples, members.log_partition)
        yield Prediction(found, members, log_probability.movedim(-1, 0))


def evaluate(
    saved: Predictor,
    data: MultilabelData,
    rows: Int[np.ndarray, " rows"],
    decoder: Decoder | None = None,
) -> dict[str, float]:
    """Every metric, the share of answers proven optimal and, of a search, its mean number of nodes.

    Args:
        decoder: see :func:`answers`.

    Raises:
        ValueError: other labels than the model's, or missing ones.
    """
    labels = known_labels(saved, data, rows)
    metrics = multilabel_metrics(len(saved.label_names))
    exact, nodes = [], []
    decodings = decode(saved, features_at(data, rows), decoder)
    for decoding, known in zip(decodings, labels.split(BATCH_SIZE), strict=True):
        # The labels are the data set's, on the host; so are the measures.
        metrics.update(decoding.labels.cpu(), known)
        exact.append(decoding.status.exact.cpu())
        if decoding.nodes is not None:
            nodes.append(decoding.nodes.cpu())
    scores = {name: float(value) for name, value in metrics.compute().items()}
    scores["proven_optimal"] = float(torch.cat(exact).double().mean())
    if nodes:
        scores["mean_nodes"] = float(torch.cat(nodes).double().mean())
    return scores
