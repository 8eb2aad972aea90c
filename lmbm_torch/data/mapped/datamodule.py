"""A data set on the disk in batches, for Lightning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lmbm_torch.checks import check_count
from lmbm_torch.data.batches import Batch, InstanceDataset
from lmbm_torch.data.datamodule import MultilabelDataModule
from lmbm_torch.data.features import Features
from lmbm_torch.data.mapped.arrays import MappedData
from lmbm_torch.data.scaling import Scaling
from lmbm_torch.data.tensors import to_tensor
from lmbm_torch.shapes import Float, Int


class MappedDataset(InstanceDataset):
    """One part of a data set on the disk; a batch is read, and scaled, when it is asked for.

    Args:
        data: whose rows these are.
        rows: of the part.
        scaling: of the features.
        dtype: of features and labels.
    """

    def __init__(
        self, data: MappedData, rows: Int[np.ndarray, " part"], scaling: Scaling, dtype: torch.dtype
    ) -> None:
        self.data = data
        self.rows = rows
        self.scaling = scaling
        self.dtype = dtype
        self.features = data.features

    @property
    def labels(self) -> Float[Tensor, "instances labels"]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """All of the part's: read, and not kept."""
        return torch.from_numpy(self.data.labels[self.rows]).to(self.dtype)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitems__(self, rows: Sequence[int]) -> Batch:
        places = self.rows[rows]
        features = self.scaling.transform(to_tensor(self.data.features[places]))
        labels = torch.from_numpy(self.data.labels[places])
        return Batch(features.to(self.dtype), labels.to(self.dtype), torch.tensor(rows, device="cpu"))


class MappedDataModule(MultilabelDataModule):
    """Serves a data set that is larger than memory, for training by gradients.

    Batches are those of :class:`~lmbm_torch.data.datamodule.MultilabelDataModule` on the same rows; an
    ordering that needs all features at once refuses them.

    Args:
        data: such as :func:`~lmbm_torch.data.mapped.arrays.open_mapped` gives.
        scaling_rows: the scaling is fitted to at most so many training rows, drawn by the seed.
        serving: of :class:`~lmbm_torch.data.datamodule.MultilabelDataModule`.

    Raises:
        ValueError: the errors of that class, or no row to fit the scaling to.
    """

    data: MappedData

    def __init__(self, data: MappedData, *, scaling_rows: int = 10_000, **serving: Any) -> None:
        check_count("scaling_rows", scaling_rows)
        self.scaling_rows = scaling_rows
        super().__init__(data, **serving)

    def _rows_to_fit(self) -> Features:
        drawn = np.random.default_rng(self.seed).permutation(len(self.train_rows))[: self.scaling_rows]
        return self.data.features[np.sort(self.train_rows[drawn])]

    def _part(self, rows: Int[np.ndarray, " rows"]) -> MappedDataset:
        return MappedDataset(self.data, rows, self.scaling, self.dtype)
