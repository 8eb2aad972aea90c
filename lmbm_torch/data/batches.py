"""Instances in batches, each with the place where its dual variables or its chain's state are kept."""

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
    """Some instances of one part of a data set.

    Args:
        features: dense, or in CSR layout where the data set is sparse.
        labels: 0, 1, or NaN where the label is not known.
        index: the instances' rows in that part, the same in every epoch and order.
    """

    features: Float[Tensor, "batch features"]
    labels: Float[Tensor, "batch labels"]
    index: Int[Tensor, " batch"]


class InstanceDataset(Dataset[Batch]):
    """One part of a data set in memory, scaled; a whole batch is fetched at once.

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


class DeviceDataset(Dataset[Batch]):
    """One part of a data set on a device, where its batches are put together; the same ones.

    Args:
        part: dense; all of it is copied.
        device: with room for it.

    Raises:
        ValueError: CSR features, whose rows torch does not pick on a device.
    """

    def __init__(self, part: InstanceDataset, device: torch.device) -> None:
        if issparse(part.features):
            raise ValueError("on_device: expected dense features, got CSR")
        whole = part.__getitems__(range(len(part)))
        self.features, self.labels = whole.features.to(device), whole.labels.to(device)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, row: int) -> Batch:
        return self.__getitems__([row])

    def __getitems__(self, rows: Sequence[int]) -> Batch:
        index = torch.tensor(rows, device=self.labels.device)
        return Batch(self.features[index], self.labels[index], index)


def in_order(dataset: Dataset[Any], batch_size: int, **loading: Any) -> DataLoader:
    """Batches in the order of the rows.

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
    """Batches in an order that the seed and the epoch fix, so that a resumed run sees the same ones.

    Lightning sets the epoch; in a loop of your own call ``loader.sampler.set_epoch(epoch)``. Several
    processes each get their share, every so manieth row of the order, padded to equal lengths by rows of its
    beginning, which come last.

    Args:
        loading: see :func:`in_order`.
    """
    sampler = DistributedSampler(dataset, num_replicas=num_processes, rank=process, seed=seed)
    return DataLoader(dataset, batch_size=batch_size, sampler=sampler, collate_fn=_as_fetched, **loading)


def _as_fetched(batch: Any) -> Any:
    """A batch comes whole from ``__getitems__``: there is nothing to collate."""
    return batch
