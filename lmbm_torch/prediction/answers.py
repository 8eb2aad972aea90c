"""Predictions for rows and for sequences, with probabilities and quality."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lmbm_torch.checks import check_shape
from lmbm_torch.constraints import Constraints
from lmbm_torch.data import MultilabelData
from lmbm_torch.data.features import Features
from lmbm_torch.data.sequences.records import SequenceData
from lmbm_torch.energies import DirectedEnergy, PairwiseEnergy
from lmbm_torch.energies.chain import PADDING
from lmbm_torch.extras import naming_extras
from lmbm_torch.inference import marginals
from lmbm_torch.inference.common.results import BipartiteMarginals, Decoding
from lmbm_torch.inference.graphs.elimination import is_narrow
from lmbm_torch.inference.messages.matching import MatchedInference
from lmbm_torch.inference.trees import chain_dp
from lmbm_torch.prediction.predictor import Predictor
from lmbm_torch.prediction.reading import known_labels
from lmbm_torch.shapes import Float, Int
from lmbm_torch.solvers.networks.problems import canonical

# Numbers of rows and of sequences in a batch for decoding.
BATCH_SIZE, NUM_SEQUENCES = 1024, 64
Decoder = Callable[[Any], Decoding] | MatchedInference


@dataclass(frozen=True)
class Probabilities:
    """Marginal probabilities of labels.

    Args:
        labels: P(y_i = 1); for sequences P(tag) at each position.
        log_partition: log Σ_y exp(score(y)); NaN if only an approximation is known.
        method: the name of the routine.
    """

    labels: Float[Tensor, "batch labels"]
    log_partition: Float[Tensor, " batch"]
    method: str


@torch.no_grad()
def probabilities(energy: Any, inference: MatchedInference | None = None, seed: int = 0) -> Probabilities:
    """Return marginal probabilities by :func:`lmbm_torch.inference.marginals`, and the log partition.

    The log partition is NaN if only an approximation is known.

    Args:
        energy: the energy of a batch.
        inference: for a model with hidden units, the inference of the training.
        seed: seed of the samples, which are drawn for directed models with many labels.

    Raises:
        TypeError: there is no routine for the kind of energy.
        ValueError: cliques have three or more labels, and there are too many labels to enumerate.
    """
    generator = torch.Generator(energy.device).manual_seed(seed)
    found = marginals(energy, matched=inference, generator=generator)
    labels = found.visible if isinstance(found, BipartiteMarginals) else found.labels
    # The log partition of a directed model is always 0, even if marginals are approximate.
    is_known = found.status.exact | isinstance(energy, DirectedEnergy)
    return Probabilities(labels, found.log_partition.where(is_known, torch.nan), found.method)


def is_dense_network(energy: Any) -> bool:
    """Return whether an energy is a directed model whose exact sums need an enumeration."""
    return isinstance(energy, DirectedEnergy) and not is_narrow(energy)


def is_machine(energy: Any) -> bool:
    """Return whether an energy is a pairwise undirected model."""
    return isinstance(energy, PairwiseEnergy)


def mixture_probabilities(
    energies: Sequence[Any], inference: MatchedInference | None = None
) -> Probabilities:
    """Return marginal probabilities by a mixture of equally weighted normalised models, or by one model.

    Args:
        energies: the energies of the members.
        inference: see :func:`probabilities`.
    """
    members = [probabilities(energy, inference) for energy in energies]
    labels = torch.stack([member.labels for member in members]).mean(0)
    # All members are normalised, so they have the same log partition.
    return Probabilities(labels, members[0].log_partition, members[0].method)


@torch.no_grad()
def allowed_probabilities(energies: Sequence[Any], rules: Constraints) -> Probabilities:
    """Return marginal probabilities given all rules; NaN if they cannot be computed exactly."""
    # Imported here, because answers without rules do not need this module.
    from lmbm_torch.estimators.common.decoders.distributions import AllowedDistribution

    try:
        found = AllowedDistribution(energies, rules).marginals()
    except ValueError as refused:
        unknown = torch.full_like(energies[0].unary, torch.nan)
        return Probabilities(unknown, unknown[:, 0], f"not known under these rules: {refused}")
    return Probabilities(found.labels, found.log_partition, found.method)


@torch.no_grad()
def mixture_log_prob(
    energies: Sequence[Any],
    labels: Int[Tensor, "*samples batch labels"],
    log_partition: Float[Tensor, " batch"],
) -> Float[Tensor, "*samples batch"]:
    """Return log P(y) of labellings by a mixture of equally weighted models; NaN without log partition."""
    members = torch.stack([energy.score(labels) - log_partition for energy in energies])
    return members.logsumexp(0) - math.log(len(energies))


with naming_extras():
    from scipy.sparse import issparse


@dataclass(frozen=True)
class Prediction:
    """A decoded batch with the probabilities of the labels.

    Args:
        decoding: one or several labellings of each instance. For sequences, labels are indices of tags, and
            ``PADDING`` after the end of a sequence.
        probabilities: the probability of each label, or of each tag at each position given the whole
            sequence; None for a model that is no distribution.
        log_prob: log P of each labelling; NaN if it is not known.
        lengths: the lengths of sequences; None for label vectors.
    """

    decoding: Decoding
    probabilities: Probabilities | None
    log_prob: Float[Tensor, " batch"] | Float[Tensor, "batch top_k"]
    lengths: Int[Tensor, " batch"] | None = None

    def labellings(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield labels ``(batch, labels)``, objectives and log-probabilities ``(batch,)``, best first."""
        found = self.decoding
        if found.objective.ndim == 1:
            yield found.labels, found.objective, self.log_prob
        else:
            yield from zip(
                found.labels.unbind(1), found.objective.unbind(1), self.log_prob.unbind(1), strict=True
            )


@torch.no_grad()
def answers(
    saved: Predictor, features: Features | Sequence[Features], decoder: Decoder | None = None
) -> Iterator[tuple[list[Any], Decoding]]:
    """Yield energies and decoding of each batch of raw rows; an ensemble has several energies.

    Args:
        saved: the predictor.
        features: dense, or sparse of any format; for sequences a list of arrays (length, features).
        decoder: function from an energy to a decoding; by default the predictor's decoder. A
            :class:`~lmbm_torch.inference.messages.matching.MatchedInference` that differs from that of the
            training leads to a warning.

    Raises:
        ValueError: the number of features differs from training, or an ensemble gets a decoder.
    """
    if isinstance(features, Sequence):
        count, size = len(features), NUM_SEQUENCES
    else:
        if issparse(features):
            features = canonical(features)
        check_shape("features", features, None, saved.num_inputs)
        count, size = features.shape[0], BATCH_SIZE
    if isinstance(decoder, MatchedInference):
        if saved.inference is not None:
            decoder.check_match(saved.inference)
        decoder = decoder.decode
    for start in range(0, count, size):
        rows: Any = features[start : start + size]
        if decoder is None:
            yield saved.answer(rows)
            continue
        energies = saved.energies(rows)
        if len(energies) > 1:
            raise ValueError("decoder: expected None, because an ensemble has its own decoder, got a decoder")
        yield energies, decoder(energies[0])


def decode(
    saved: Predictor, features: Features | Sequence[Features], decoder: Decoder | None = None
) -> Iterator[Decoding]:
    """Yield the decoding of each batch of raw rows; for arguments and errors see :func:`answers`."""
    return (found for _, found in answers(saved, features, decoder))


def binding(
    saved: Predictor, features: Features, rules: Constraints, decoder: Decoder | None = None
) -> Iterator[list[str]]:
    """Yield, for each row, the rules (as texts) that the answer without rules breaks.

    Args:
        saved: a predictor without rules.
        features: see :func:`answers`.
        rules: rules to check.
        decoder: a decoder without rules; see :func:`answers`.
    """
    for found in decode(saved, features, decoder):
        yield from rules.broken(found.labels.cpu().numpy())


@torch.no_grad()
def predict(
    saved: Predictor, features: Features | Sequence[Features], decoder: Decoder | None = None
) -> Iterator[Prediction]:
    """Yield decodings and probabilities of each batch of raw rows or sequences.

    Under rules, probabilities are conditional on the rules, and NaN if no exact computation is possible.

    Args:
        saved: the predictor.
        features: see :func:`answers`.
        decoder: see :func:`answers`; ``saved.deciding(top_k=3)`` gives several labellings.

    Raises:
        ValueError: see :func:`answers`.
    """
    for energies, found in answers(saved, features, decoder):
        lengths = energies[0].lengths if saved.capabilities.of_sequences else None
        if not saved.has_probabilities:
            yield Prediction(found, None, torch.full_like(found.objective, torch.nan), lengths)
            continue
        if lengths is not None:
            known = chain_dp.marginals(energies[0])
            total = known.log_partition if found.objective.ndim == 1 else known.log_partition[:, None]
            likely = Probabilities(known.states, known.log_partition, "dynamic programming")
            yield Prediction(found, likely, found.objective - total, lengths)
            continue
        distributions = saved.calibrated(energies)
        if saved.rules is None:
            members = mixture_probabilities(distributions, saved.inference)
        else:
            members = allowed_probabilities(distributions, saved.rules)
        # Energies expect several labellings of an instance in the first axis.
        samples = found.labels if found.labels.ndim == 2 else found.labels.transpose(0, 1)
        log_probability = mixture_log_prob(distributions, samples, members.log_partition)
        yield Prediction(found, members, log_probability.movedim(-1, 0))


def evaluate(
    saved: Predictor, data: MultilabelData | SequenceData, rows: np.ndarray, decoder: Decoder | None = None
) -> dict[str, float]:
    """Return all metrics, the share of answers proven optimal, and the mean number of search nodes.

    Args:
        saved: the predictor.
        data: label vectors with the predictor's labels, or sequences whose first tags are the predictor's.
        rows: numbers of the rows to measure; for sequences, numbers or a mask.
        decoder: see :func:`answers`.

    Raises:
        ValueError: the labels differ from the predictor's, or labels are missing.
    """
    if isinstance(data, SequenceData):
        return _evaluate_sequences(saved, data, rows)
    # Imported here, because predictions do not need torchmetrics, whose import is as slow as that of torch.
    from lmbm_torch.metrics import multilabel_metrics

    labels = known_labels(saved, data, rows)
    metrics = multilabel_metrics(len(saved.label_names))
    exact, nodes = [], []
    decodings = decode(saved, data.features_at(rows), decoder)
    for decoding, known in zip(decodings, labels.split(BATCH_SIZE), strict=True):
        # The true labels and the metrics are on the CPU.
        metrics.update(decoding.labels.cpu(), known)
        exact.append(decoding.status.exact.cpu())
        if decoding.nodes is not None:
            nodes.append(decoding.nodes.cpu())
    scores = {name: float(value) for name, value in metrics.compute().items()}
    scores["proven_optimal"] = float(torch.cat(exact).double().mean())
    if nodes:
        scores["mean_nodes"] = float(torch.cat(nodes).double().mean())
    return scores


def _evaluate_sequences(saved: Predictor, data: SequenceData, chosen: np.ndarray) -> dict[str, float]:
    """Return the shares of correct tokens and sequences, and F1 of chunks if all tags are tags of chunks."""
    from lmbm_torch.metrics.sequences import ChunkF1, SequenceAccuracy

    sequences = data.select(chosen)
    right, tokens, proven = 0, 0, 0
    of_sequences = SequenceAccuracy()
    of_chunks = ChunkF1(data.label_names) if _are_chunks(data.label_names) else None
    first = 0
    for found in decode(saved, sequences.features):
        labels = found.labels.cpu()
        truth = _padded(sequences.labels[first : first + len(labels)])
        first += len(labels)
        right += int(((labels == truth) & (truth != PADDING)).sum())
        tokens += int((truth != PADDING).sum())
        proven += int(found.status.exact.sum())
        of_sequences.update(labels, truth)
        if of_chunks is not None:
            of_chunks.update(labels, truth)
    scores = {"token_accuracy": right / tokens, "sequence_accuracy": float(of_sequences.compute())}
    if of_chunks is not None:
        scores["chunk_f1"] = float(of_chunks.compute())
    return {**scores, "proven_optimal": proven / first}


def _are_chunks(names: Sequence[str]) -> bool:
    """Return whether all tags are tags of chunks, such as ``B-NP`` and ``O``."""
    from lmbm_torch.metrics.sequences import is_chunk_tag

    return all(map(is_chunk_tag, names)) and {*names} != {"O"}


def _padded(labels: Sequence[np.ndarray]) -> Int[Tensor, "batch length"]:
    """Stack sequences of labels, with ``PADDING`` after the end of shorter ones."""
    tensors = [torch.from_numpy(each) for each in labels]
    return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=PADDING)
