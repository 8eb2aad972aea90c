"""Labelled sequences in batches, for training by gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from lmbm_torch.data.sequences.records import SequenceData
from lmbm_torch.data.tensors import to_tensor
from lmbm_torch.energies.chain import PADDING
from lmbm_torch.shapes import Float, Int


class SequenceBatch(NamedTuple):
    """Some sequences of one part of a data set.

    Args:
        features: their positions one after another, dense or in CSR layout.
        lengths: positions of each.
        labels: class indices, ``PADDING`` (−1) beyond a sequence's end.
        index: the sequences' numbers in that part, the same in every epoch and order.
    """

    features: Float[Tensor, "positions features"]
    lengths: Int[Tensor, " batch"]
    labels: Int[Tensor, "batch length"]
    index: Int[Tensor, " batch"]


class SequenceDataset(Dataset[SequenceBatch]):
    """Some folds of a set of sequences; a whole batch is fetched at once.

    For :func:`~lmbm_torch.data.batches.shuffled` and :func:`~lmbm_torch.data.batches.in_order`.

    Args:
        data: the sequences.
        folds: those that are served.

    Raises:
        ValueError: folds without a sequence.
    """

    def __init__(self, data: SequenceData, folds: Sequence[int]) -> None:
        self.data = data
        self.chosen = np.flatnonzero(np.isin(data.fold, folds))
        if not len(self.chosen):
            raise ValueError(f"folds: expected some of the {data.num_folds}, got {list(folds)}")

    def __len__(self) -> int:
        return len(self.chosen)

    def __getitem__(self, number: int) -> SequenceBatch:
        return self.__getitems__([number])

    def __getitems__(self, numbers: Sequence[int]) -> SequenceBatch:
        start, chosen = self.data.start, self.chosen[list(numbers)]
        lengths = torch.from_numpy(np.diff(start)[chosen])
        places = np.concatenate([np.arange(*start[each : each + 2]) for each in chosen])
        inside = torch.arange(int(lengths.max()), device="cpu") < lengths[:, None]
        labels = torch.full(inside.shape, PADDING, device="cpu")
        labels[inside] = torch.from_numpy(self.data.labels[places])
        return SequenceBatch(
            to_tensor(self.data.features[places]), lengths, labels, torch.tensor(numbers, device="cpu")
        )
