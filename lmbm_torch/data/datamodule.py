"""A multi-label data set in batches, for Lightning."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from inspect import signature
from os import PathLike
from typing import Any

import numpy as np
import torch
from scipy.sparse import issparse
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from lmbm_torch.checks import check_count
from lmbm_torch.data.batches import Batch, DeviceDataset, InstanceDataset, in_order, shuffled
from lmbm_torch.data.dataset import MultilabelData, join
from lmbm_torch.data.features import Features
from lmbm_torch.data.formats.svmlight import read_svmlight
from lmbm_torch.data.scaling import Scaling, unscaled
from lmbm_torch.data.splits import Splitter, held_out, stratified_split
from lmbm_torch.data.tables.reading import groups_of, read_table
from lmbm_torch.data.tables.sources import open_table
from lmbm_torch.data.tensors import to_features, to_tensor
from lmbm_torch.extras import naming_extras
from lmbm_torch.persistence.archives import pack, unpack
from lmbm_torch.shapes import Float, Int

with naming_extras():
    from lightning.pytorch import LightningDataModule


class MultilabelDataModule(LightningDataModule):
    """Scales a data set, holds out a validation part and serves :class:`lmbm_torch.data.batches.Batch`.

    Everything is in memory and ready after construction: sizes and scaling are known before a model is made.
    Sparse features stay sparse. A checkpoint carries the scaling, and refuses to go on with another one.

    Args:
        data: the data set to serve.
        scaling: by default none, for what is trained in units of its own; ``usual``, ``standardise`` (dense
            features only) or ``unit_norm`` of :mod:`lmbm_torch.data.scaling`, fitted here on the training
            part without the validation part; or a fitted one, such as a checkpoint's.
        validation_fraction: the share of the training part's rows of complete labels that is held out; 0 for
            none, or where the data come with a validation part, which is then served.
        splitter: ``stratified_split``, ``iterative_split`` or ``random_split`` of
            :mod:`lmbm_torch.data.splits`.
        groups: (training rows,), of rows that are held out together: see
            :func:`~lmbm_torch.data.splits.held_out`.
        evaluation_batch_size: of validation and test, limited by memory alone; ``batch_size`` by default.
        seed: of the validation split and of the order of the training batches.
        dtype: of features and labels, float32 or float64.
        num_workers: processes that fetch batches beside the training; 0 serves data in memory best.
        pin_memory: batches come in memory that a GPU copies from by itself.
        on_device: keep dense parts on the trainer's device, where batches are then put together: for what
            fits there.

    Attributes:
        scaling: the fitted :class:`Scaling`; its ``mean`` and ``scale`` are plain tensors.
        train_rows, validation_rows: rows of ``data`` in each part; ``Batch.index`` counts within the part.
        train_set, validation_set, test_set: the scaled parts; the last two may be empty.

    Raises:
        ValueError: a batch size below 1, a negative number of workers, workers or pinned memory for data on
            the device, which must be dense, a fraction outside [0, 1) or above 0 beside a validation part of
            the data's own or with too few rows of complete labels, another dtype, or a scaling that does not
            fit the features.
    """

    def __init__(
        self,
        data: MultilabelData,
        *,
        scaling: Scaling | Callable[[Features], Scaling] = unscaled,
        validation_fraction: float = 0.0,
        splitter: Splitter = stratified_split,
        groups: np.ndarray | None = None,
        batch_size: int = 64,
        evaluation_batch_size: int | None = None,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
        num_workers: int = 0,
        pin_memory: bool = False,
        on_device: bool = False,
    ) -> None:
        super().__init__()
        check_count("batch_size", batch_size)
        if not 0 <= validation_fraction < 1:
            raise ValueError(
                f"validation_fraction: expected 0 or more and less than 1, got {validation_fraction}"
            )
        if dtype not in (torch.float32, torch.float64):
            raise ValueError(f"dtype: expected torch.float32 or torch.float64, got {dtype}")
        if num_workers < 0:
            raise ValueError(f"num_workers: expected at least 0, got {num_workers}")
        if on_device and (num_workers or pin_memory or issparse(data.features)):
            raise ValueError(
                "on_device: expected dense features, no workers and no pinned memory, got "
                f"num_workers={num_workers}, pin_memory={pin_memory} and "
                f"{'CSR' if issparse(data.features) else 'dense'} features"
            )
        self.on_device = on_device
        self.loading = {"num_workers": num_workers, "pin_memory": pin_memory}
        self._parts_on_device: dict[int, DeviceDataset] = {}
        self.data = data
        self.num_features, self.num_labels = data.num_features, data.num_labels
        self.label_names = data.label_names
        self.batch_size = batch_size
        self.evaluation_batch_size = batch_size if evaluation_batch_size is None else evaluation_batch_size
        check_count("evaluation_batch_size", self.evaluation_batch_size)
        self.seed = seed
        self.dtype = dtype
        self.train_rows, self.validation_rows = data.train, data.validation
        if validation_fraction > 0:
            if len(data.validation):
                raise ValueError(
                    f"validation_fraction: expected 0, got {validation_fraction}: "
                    f"{data.name} comes with a validation part"
                )
            kept, held = held_out(
                data.train_labels, validation_fraction, seed, splitter, groups, argument="validation_fraction"
            )
            self.train_rows, self.validation_rows = data.train[kept], data.train[held]
        self.scaling = scaling if isinstance(scaling, Scaling) else scaling(self._rows_to_fit())
        self.train_set = self._part(self.train_rows)
        self.validation_set = self._part(self.validation_rows)
        self.test_set = self._part(data.test)

    def setup(self, stage: str) -> None:
        """Silence two warnings of Lightning.

        More workers would only copy data that are in memory; an empty list of validation loaders is intended.
        """
        for warning in (".*does not have many workers", "Total length of `list` across ranks is zero"):
            warnings.filterwarnings("ignore", message=warning, category=UserWarning)

    def train_dataloader(self) -> DataLoader:
        """Shuffled anew in every epoch; each process of a distributed run gets its share."""
        trainer = self.trainer
        share = () if trainer is None else (trainer.world_size, trainer.global_rank)
        return shuffled(self._served(self.train_set), self.batch_size, self.seed, *share, **self.loading)

    def val_dataloader(self) -> DataLoader | list[DataLoader]:
        """In order; without a validation part an empty list, which Lightning takes for none."""
        return self._in_order(self.validation_set) if len(self.validation_set) else []

    def test_dataloader(self) -> DataLoader:
        """In order.

        Raises:
            ValueError: the data set has no test part.
        """
        if len(self.test_set) == 0:
            raise ValueError(f"data: expected a test part, but {self.data.name} has none; see with_split()")
        return self._in_order(self.test_set)

    def predict_dataloader(self) -> DataLoader:
        """The test part."""
        return self.test_dataloader()

    def state_dict(self) -> dict[str, Any]:
        """The scaling and the schema of a table, for the checkpoint."""
        return pack({"scaling": self.scaling, "schema": self.data.schema})

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Compare the checkpoint's scaling and schema with these.

        Raises:
            ValueError: they differ, so the weights belong to other data, another split or another scaling.
        """
        saved = unpack(state_dict)
        if not self.scaling.agrees(saved["scaling"]):
            raise ValueError(
                f"scaling: expected the checkpoint's, got another one from {self.data.name}; "
                "scaling=load(checkpoint).scaling serves other data to the same weights"
            )
        if saved["schema"] not in (None, self.data.schema):
            raise ValueError(f"schema: expected the checkpoint's, got another one from {self.data.name}")

    def _in_order(self, part: InstanceDataset) -> DataLoader:
        return in_order(self._served(part), self.evaluation_batch_size, **self.loading)

    def _served(self, part: InstanceDataset) -> Dataset[Batch]:
        """The part, or its copy on the trainer's device, which is made once."""
        if not self.on_device or self.trainer is None:
            return part
        if id(part) not in self._parts_on_device:
            device = self.trainer.strategy.root_device
            self._parts_on_device[id(part)] = DeviceDataset(part, device)
        return self._parts_on_device[id(part)]

    def _rows_to_fit(self) -> Features:
        """The rows that the scaling is fitted to."""
        return self.data.features[self.train_rows]

    def _part(self, rows: Int[np.ndarray, " rows"]) -> InstanceDataset:
        labels: Float[Tensor, "instances labels"] = torch.tensor(self.data.labels[rows], dtype=self.dtype)
        scaled = self.scaling.transform(to_tensor(self.data.features[rows]))
        return InstanceDataset(to_features(scaled.to(self.dtype)), labels)


def serve_svmlight(
    train: str | PathLike,
    labels: Sequence[int] | None = None,
    *,
    test: str | PathLike | None = None,
    test_fraction: float = 0.0,
    seed: int = 0,
    **options: Any,
) -> MultilabelDataModule:
    """The user's own svmlight files, read by :func:`~lmbm_torch.data.formats.svmlight.read_svmlight`, served.

    Args:
        labels: the numbers of the labels; by default those that occur in ``train``.
        test: with the same labels and features.
        test_fraction, seed, options: as in :func:`serve_table`.

    Raises:
        TypeError: an option of neither.
        ValueError: the errors of both.
    """
    of_reading = {name: options.pop(name) for name in ("num_features", "zero_based") if name in options}
    data = read_svmlight(train, labels, **of_reading)
    if test is not None:
        of_reading["num_features"] = data.num_features
        data = join(data, read_svmlight(test, [int(name) for name in data.label_names], **of_reading))
    elif test_fraction:
        data = data.with_split(*stratified_split(data.labels, test_fraction, seed))
    return MultilabelDataModule(data, seed=seed, **options)


def serve_table(
    train: str | PathLike,
    labels: str | Sequence[str],
    *,
    test: str | PathLike | None = None,
    test_fraction: float = 0.0,
    seed: int = 0,
    **options: Any,
) -> MultilabelDataModule:
    """The user's own table, read by :func:`~lmbm_torch.data.tables.reading.read_table` and served.

    Args:
        test_fraction: ignored where there is a ``test`` table.
        seed: of the rows held out for testing and for validation, and of the order of the training batches.
        options: other arguments of :func:`~lmbm_torch.data.tables.reading.read_table` and of
            :class:`MultilabelDataModule`. With ``groups`` the validation part has whole groups as well,
            whatever the ``splitter``.

    Raises:
        TypeError: an option of neither.
        ValueError: the errors of both.
    """
    of_reading = {name: options.pop(name) for name in signature(read_table).parameters if name in options}
    fraction = 0.0 if test is not None else test_fraction
    data = read_table(train, labels, test=test, test_fraction=fraction, seed=seed, **of_reading)
    if groups := of_reading.get("groups"):
        together = groups_of(open_table(train, of_reading.get("delimiter")), groups)[data.train]
        options["groups"] = together
    return MultilabelDataModule(data, seed=seed, **options)
