"""Batches of instances, with the places where dual variables or chain states are kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from scipy.sparse import issparse
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from lmbm_torch.data.features import Features
from lmbm_torch.data.tensors import to_tensor
from lmbm_torch.shapes import Float, Int


class Batch(NamedTuple):
    """A batch of instances from one part of a data set, such as the training part.

    Args:
        features: dense, or in CSR layout where the data set is sparse.
        labels: 0, 1, or NaN where a label is not known.
        index: row number of each instance within the part; shuffling does not change the number.
    """

    features: Float[Tensor, "batch features"]
    labels: Float[Tensor, "batch labels"]
    index: Int[Tensor, " batch"]


class InstanceDataset(Dataset[Batch]):
    """A part of a data set in memory, with scaled features; a whole batch is fetched at once.

    Args:
        features: ``(instances, features)``, a dense array or a CSR array.
        labels: on the CPU, in the dtype of the features.
    """

    def __init__(self, features: Features, labels: Float[Tensor, "instances labels"]) -> None:
        self.features = features
        self.labels = labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, row: int) -> Batch:
        return self.__getitems__([row])

    def __getitems__(self, rows: Sequence[int]) -> Batch:
        index = torch.tensor(rows, device="cpu")
        return Batch(to_tensor(self.features[rows]), self.labels[index], index)


class DeviceDataset(InstanceDataset):
    """A part of a data set on a device, where batches are put together.

    Args:
        part: dense; all instances are copied to the device.
        device: with enough memory for the part.

    Raises:
        ValueError: CSR features, whose rows torch cannot pick on a device.
    """

    def __init__(self, part: InstanceDataset, device: torch.device) -> None:
        if issparse(part.features):
            raise ValueError("on_device: expected dense features, got CSR")
        whole = part.__getitems__(range(len(part)))
        super().__init__(whole.features.to(device), whole.labels.to(device))

    def __getitems__(self, rows: Sequence[int]) -> Batch:
        index = torch.tensor(rows, device=self.labels.device)
        return Batch(self.features[index], self.labels[index], index)


def in_order(dataset: Dataset[Any], batch_size: int, **loading: Any) -> DataLoader:
    """Return batches in the order of the rows.

    Args:
        loading: ``num_workers`` and ``pin_memory`` of torch's loader.
    """
    return DataLoader(dataset, batch_size=batch_size, collate_fn=_as_fetched, **loading)


def shuffled(
    dataset: Dataset[Any],
    batch_size: int,
    seed: int,
    num_processes: int = 1,
    process: int = 0,
    **loading: Any,
) -> DataLoader:
    """Return batches in an order by seed and epoch; a resumed run sees the same batches.

    Lightning sets the epoch; in your own loop call ``loader.sampler.set_epoch(epoch)``. With several
    processes, each process gets every n-th row of the order. Shares are padded to equal lengths by rows from
    the beginning of the order, at the end.

    Args:
        loading: see :func:`in_order`.
    """
    sampler = DistributedSampler(dataset, num_replicas=num_processes, rank=process, seed=seed)
    return DataLoader(dataset, batch_size=batch_size, sampler=sampler, collate_fn=_as_fetched, **loading)


def _as_fetched(batch: Any) -> Any:
    """Return a batch as made by ``__getitems__``, with nothing to collate."""
    return batch
