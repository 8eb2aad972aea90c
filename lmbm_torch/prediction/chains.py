"""Fitted estimators of sequences with the columns of their files: saved, read back, and applied."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lmbm_torch.data.features import Features
from lmbm_torch.data.sequences.conll import ColumnSchema
from lmbm_torch.data.sequences.records import SequenceData
from lmbm_torch.energies.chain import PADDING
from lmbm_torch.extras import naming_extras
from lmbm_torch.inference.results import Decoding
from lmbm_torch.inference.trees import chain_dp
from lmbm_torch.persistence.stored import Stored
from lmbm_torch.shapes import Float, Int

with naming_extras():
    from lmbm_torch.metrics import ChunkF1, SequenceAccuracy

BATCH_SIZE = 64


class Tagging(NamedTuple):
    """Some sequences decoded.

    Args:
        decoding: labels are indices into the tags, ``PADDING`` beyond a sequence's end.
        lengths: of the sequences.
        probabilities: of each tag at each position, given the whole sequence; None for a model that is no
            distribution.
        log_prob: of each labelling; NaN for a model that is no distribution.
    """

    decoding: Decoding
    lengths: Int[Tensor, " batch"]
    probabilities: Float[Tensor, "batch length tags"] | None
    log_prob: Float[Tensor, " batch"] | Float[Tensor, "batch top_k"]


@dataclass(frozen=True)
class FittedChain(Stored):
    """An estimator of sequences and how a file's columns become its features.

    Args:
        estimator: from :mod:`lmbm_torch.estimators`, fitted to indices of the schema's tags.
        schema: of the files.
    """

    estimator: Any
    schema: ColumnSchema

    def check_stored(self) -> None:
        """Raise an exception if no file holds the estimator; see :func:`lmbm_torch.save`."""
        self.estimator.check_stored()

    @classmethod
    def fit(cls, estimator: Any, data: SequenceData, fold: int) -> FittedChain:
        """Fit an estimator to one fold of sequences from a file.

        Raises:
            ValueError: an estimator of something else, or sequences that do not come from a file of columns;
                what the estimator refuses.
        """
        # Prediction never needs them otherwise.
        from lmbm_torch.estimators.chains.base import SequenceClassifier

        if not isinstance(estimator, SequenceClassifier):
            raise ValueError(
                f"estimator: expected one of sequences, such as estimator=crf, got {type(estimator).__name__}"
            )
        if data.schema is None:
            raise ValueError(f"data: expected sequences of a file of columns, got {data.name}")
        fitted: Any = estimator
        fitted.fit(*data.within(fold))
        return cls(fitted, data.schema)

    @property
    def kind(self) -> str:
        """The name of its class, for readers."""
        return type(self.estimator).__name__

    @property
    def has_probabilities(self) -> bool:
        """Whether the energies are those of a distribution that was learned."""
        return hasattr(self.estimator, "predict_proba")

    @torch.no_grad()
    def answers(self, sequences: Sequence[Features], top_k: int = 1) -> Iterator[Tagging]:
        """Decodings of sequences (length, features) and their probabilities, a batch at a time."""
        for first in range(0, len(sequences), BATCH_SIZE):
            energy = self.estimator.energy(list(sequences[first : first + BATCH_SIZE]))
            found = chain_dp.decode(energy, top_k=top_k)
            if not self.has_probabilities:
                yield Tagging(found, energy.lengths, None, torch.full_like(found.objective, torch.nan))
                continue
            marginals = chain_dp.marginals(energy)
            total = marginals.log_partition if top_k == 1 else marginals.log_partition[:, None]
            yield Tagging(found, energy.lengths, marginals.nodes, found.objective - total)


def evaluate(saved: FittedChain, data: SequenceData, chosen: np.ndarray) -> dict[str, float]:
    """Shares of tokens and of whole sequences that are right, and F1 of chunks where the tags are of such.

    Args:
        data: with the model's tags first among its ``label_names``.
        chosen: the sequences to measure, a mask or numbers.
    """
    sequences = data.select(chosen)
    right, tokens, proven = 0, 0, 0
    of_sequences = SequenceAccuracy()
    of_chunks = ChunkF1(data.label_names) if are_chunks(data.label_names) else None
    first = 0
    for found in saved.answers(sequences.features):
        count = len(found.lengths)
        truth = padded(sequences.labels[first : first + count])
        first += count
        labels = found.decoding.labels.cpu()
        right += int(((labels == truth) & (truth != PADDING)).sum())
        tokens += int(found.lengths.sum())
        proven += int(found.decoding.status.exact.sum())
        of_sequences.update(labels, truth)
        if of_chunks is not None:
            of_chunks.update(labels, truth)
    scores = {"token_accuracy": right / tokens, "sequence_accuracy": float(of_sequences.compute())}
    if of_chunks is not None:
        scores["chunk_f1"] = float(of_chunks.compute())
    return {**scores, "proven_optimal": proven / first}


def are_chunks(names: Sequence[str]) -> bool:
    """Whether tags are those of chunks, ``O``, ``B-type`` and ``I-type``."""
    return all(name == "O" or name[:2] in ("B-", "I-") for name in names) and {*names} != {"O"}


def padded(labels: Sequence[np.ndarray]) -> Int[Tensor, "batch length"]:
    """Sequences of labels beside each other, ``PADDING`` beyond their ends."""
    tensors = [torch.from_numpy(each) for each in labels]
    return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=PADDING)
