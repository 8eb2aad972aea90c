"""Batches of instances, with row numbers by which solvers and samplers keep a state for each instance."""

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
    """A batch of instances from a part of a data set, for example the training part.

    Args:
        features: dense, or in CSR layout if the data set is sparse.
        labels: 0, 1, or NaN for an unknown label.
        index: row number of each instance within the part; shuffling does not change the number.
    """

    features: Float[Tensor, "batch features"]
    labels: Float[Tensor, "batch labels"]
    index: Int[Tensor, " batch"]


class InstanceDataset(Dataset[Batch]):
    """A part of a data set in memory, with scaled features, which returns whole batches.

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
    """A part of a data set on a device such as a GPU, where batches are selected without copies from the CPU.

    Args:
        part: dense; all instances are copied to the device.
        device: a device with enough memory for the part.

    Raises:
        ValueError: features are CSR; torch cannot select rows of CSR tensors on a device.
    """

    def __init__(self, part: InstanceDataset, device: torch.device) -> None:
        if issparse(part.features):
            raise ValueError("on_device: expected dense features, got CSR features")
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
    """Return batches in an order that depends only on seed and epoch; a resumed run gets the same batches.

    Lightning sets the epoch; in your own loop call ``loader.sampler.set_epoch(epoch)``. Each of n processes
    gets every n-th row of the order. If the rows cannot be divided equally, rows from the beginning of the
    order are used twice.

    Args:
        loading: see :func:`in_order`.
    """
    sampler = DistributedSampler(dataset, num_replicas=num_processes, rank=process, seed=seed)
    return DataLoader(dataset, batch_size=batch_size, sampler=sampler, collate_fn=_as_fetched, **loading)


def _as_fetched(batch: Any) -> Any:
    """Return the batch unchanged, because ``__getitems__`` already makes a whole batch."""
    return batch
