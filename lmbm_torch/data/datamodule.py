"""Multi-label data sets in batches, for Lightning."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import fields
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
from lmbm_torch.data.dataset import MultilabelData
from lmbm_torch.data.features import Features
from lmbm_torch.data.formats.svmlight import read_svmlight
from lmbm_torch.data.formats.table import groups_of, open_table, read_table
from lmbm_torch.data.mapped import MappedData
from lmbm_torch.data.scaling import Scaling, unscaled
from lmbm_torch.data.splits import Splitter, held_out, stratified_split
from lmbm_torch.data.tables.encoding import TableOptions
from lmbm_torch.data.tensors import to_features, to_tensor
from lmbm_torch.extras import naming_extras
from lmbm_torch.persistence.archives import pack, unpack
from lmbm_torch.shapes import Float, Int

with naming_extras():
    from lightning.pytorch import LightningDataModule


class MultilabelDataModule(LightningDataModule):
    """A Lightning data module that scales a data set, holds out a validation part and serves batches.

    All data are in memory and ready after construction: sizes and scaling are known before a model is made.
    Sparse features stay sparse. A checkpoint holds the scaling; training with another scaling is refused.
    Batches are :class:`lmbm_torch.data.batches.Batch`.

    Args:
        data: the data set.
        scaling: None (the default) for unchanged features, because most models scale features themselves;
            ``usual``, ``standardise`` (dense features only) or ``unit_norm`` of
            :mod:`lmbm_torch.data.scaling`, fitted to the training part without the validation part; or a
            fitted scaling, for example of a checkpoint.
        validation_fraction: share of the completely labelled training rows to hold out. Must be 0 if the data
            set already has a validation part.
        splitter: ``stratified_split``, ``iterative_split`` or ``random_split`` of
            :mod:`lmbm_torch.data.splits`.
        groups: (training rows,), the group of each row; rows of a group are held out together, see
            :func:`~lmbm_torch.data.splits.held_out`.
        evaluation_batch_size: batch size for validation and test; ``batch_size`` by default.
        seed: seed of the validation split and of the order of the training batches.
        dtype: dtype of features and labels, float32 or float64.
        num_workers: number of processes that fetch batches during training; 0 is best for data in memory.
        pin_memory: whether batches are in pinned memory, from which a GPU copies directly.
        on_device: whether dense parts are kept on the trainer's device, which needs enough memory.

    Attributes:
        scaling: the fitted :class:`Scaling`.
        train_rows, validation_rows: rows of ``data`` in each part, into which ``Batch.index`` points.
        train_set, validation_set, test_set: the scaled parts; the last two may be empty.

    Raises:
        ValueError: a batch size is below 1; ``num_workers`` is negative; ``on_device`` is combined with
            workers, pinned memory or sparse features; ``validation_fraction`` is outside [0, 1), or above 0
            although the data set has a validation part or too few completely labelled rows; ``dtype`` is not
            float32 or float64; or the scaling does not fit the features.
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
                    f"validation_fraction: expected 0, because {data.name} has a validation part, got "
                    f"{validation_fraction}"
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

        The first asks for more workers, which would only copy data in memory. The second is about an empty
        list of validation loaders, which is intended here.
        """
        for warning in (".*does not have many workers", "Total length of `list` across ranks is zero"):
            warnings.filterwarnings("ignore", message=warning, category=UserWarning)

    def train_dataloader(self) -> DataLoader:
        """Return training batches, shuffled in every epoch; each of several processes gets an equal share."""
        trainer = self.trainer
        share = () if trainer is None else (trainer.world_size, trainer.global_rank)
        return shuffled(self._served(self.train_set), self.batch_size, self.seed, *share, **self.loading)

    def val_dataloader(self) -> DataLoader | list[DataLoader]:
        """Return validation batches in order, or an empty list if there is no validation part."""
        return self._in_order(self.validation_set) if len(self.validation_set) else []

    def test_dataloader(self) -> DataLoader:
        """Return test batches in order.

        Raises:
            ValueError: the data set has no test part.
        """
        if len(self.test_set) == 0:
            raise ValueError(f"data: expected a test part, got none in {self.data.name}; see with_split()")
        return self._in_order(self.test_set)

    def predict_dataloader(self) -> DataLoader:
        """Return test batches in order."""
        return self.test_dataloader()

    def state_dict(self) -> dict[str, Any]:
        """Return the scaling and, for tables, the schema, which a checkpoint stores."""
        return pack({"scaling": self.scaling, "schema": self.data.schema})

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Compare the scaling and the schema with a checkpoint; nothing is changed.

        Raises:
            ValueError: the scaling or the schema differs, because the checkpoint belongs to other data,
                another split or another scaling.
        """
        saved = unpack(state_dict)
        if not self.scaling.agrees(saved["scaling"]):
            raise ValueError(
                f"scaling: expected the scaling of the checkpoint, got another one for {self.data.name}; "
                "for other data pass scaling=load(checkpoint).scaling"
            )
        if saved["schema"] not in (None, self.data.schema):
            raise ValueError(f"schema: expected the checkpoint's schema, got another for {self.data.name}")

    def _in_order(self, part: InstanceDataset) -> DataLoader:
        return in_order(self._served(part), self.evaluation_batch_size, **self.loading)

    def _served(self, part: InstanceDataset) -> Dataset[Batch]:
        """Return the part; with ``on_device``, return the only copy of the part on the trainer's device."""
        if not self.on_device or self.trainer is None:
            return part
        if id(part) not in self._parts_on_device:
            device = self.trainer.strategy.root_device
            self._parts_on_device[id(part)] = DeviceDataset(part, device)
        return self._parts_on_device[id(part)]

    def _rows_to_fit(self) -> Features:
        return self.data.features[self.train_rows]

    def _part(self, rows: Int[np.ndarray, " rows"]) -> InstanceDataset:
        labels: Float[Tensor, "instances labels"] = torch.tensor(
            self.data.labels[rows], dtype=self.dtype, device="cpu"
        )
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
    """Read svmlight files by :func:`~lmbm_torch.data.formats.svmlight.read_svmlight`; return a data module.

    Args:
        labels: the numbers of the labels; by default the numbers in ``train``.
        test: a file with the same labels and features.
        test_fraction, seed, options: as in :func:`serve_table`.

    Raises:
        TypeError: neither the reader nor the data module has an option of the name.
        ValueError: the reader or the data module refuses an argument.
    """
    of_reading = {name: options.pop(name) for name in ("num_features", "zero_based") if name in options}
    data = read_svmlight(train, labels, **of_reading)
    if test is not None:
        of_reading["num_features"] = data.num_features
        data = data.with_test(read_svmlight(test, [int(name) for name in data.label_names], **of_reading))
    return serve(data, test_fraction=test_fraction, seed=seed, **options)


def serve(
    data: MultilabelData, *, test_fraction: float = 0.0, seed: int = 0, **options: Any
) -> MultilabelDataModule:
    """Return a data module of a data set; if there is no test part, some rows are held out for testing.

    Args:
        test_fraction: share of the completely labelled rows to hold out; ignored if there is a test part.
        seed: seed of the rows held out and of :class:`MultilabelDataModule`.
        options: other arguments of :class:`MultilabelDataModule`.

    Raises:
        TypeError: the data module has no option of the name.
        ValueError: the data module refuses an argument, or too few rows are completely labelled.
    """
    if test_fraction and not len(data.test):
        kept, tested = held_out(
            data.train_labels, test_fraction, seed, stratified_split, argument="test_fraction"
        )
        data = data.with_split(data.train[kept], data.train[tested])
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
    """Read a table by :func:`~lmbm_torch.data.formats.table.read_table`; return a data module.

    Args:
        test_fraction: ignored if there is a ``test`` table.
        seed: seed of the rows held out for testing and validation, and of the order of the training batches.
        options: other arguments of :func:`~lmbm_torch.data.formats.table.read_table` and of
            :class:`MultilabelDataModule`. With ``groups``, the validation part has whole groups (no
            ``splitter``).

    Raises:
        TypeError: neither the reader nor the data module has an option of the name.
        ValueError: the reader or the data module refuses an argument.
    """
    names = [*signature(read_table).parameters, *(field.name for field in fields(TableOptions))]
    of_reading = {name: options.pop(name) for name in names if name in options}
    fraction = 0.0 if test is not None else test_fraction
    data = read_table(train, labels, test=test, test_fraction=fraction, seed=seed, **of_reading)
    if groups := of_reading.get("groups"):
        together = groups_of(open_table(train, of_reading.get("delimiter")), groups)[data.train]
        options["groups"] = together
    return MultilabelDataModule(data, seed=seed, **options)


class MappedDataset(InstanceDataset):
    """A part of a data set on disk; each batch is read and scaled at the time of the call.

    Args:
        data: the data set.
        rows: rows of the part.
        scaling: scaling of the features.
        dtype: dtype of features and labels.
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
        """Return all labels of the part; every call reads the file again."""
        return torch.from_numpy(self.data.labels[self.rows]).to(self.dtype)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitems__(self, rows: Sequence[int]) -> Batch:
        places = self.rows[rows]
        features = self.scaling.transform(to_tensor(self.data.features[places]))
        labels = torch.from_numpy(self.data.labels[places])
        return Batch(features.to(self.dtype), labels.to(self.dtype), torch.tensor(rows, device="cpu"))


class MappedDataModule(MultilabelDataModule):
    """A data module for data sets larger than memory, for training by gradients.

    Batches are equal to the batches of :class:`MultilabelDataModule` for the same rows. Methods that need all
    features in memory, such as some orderings of labels, refuse this data module.

    Args:
        data: a data set from :func:`~lmbm_torch.data.mapped.open_mapped`.
        scaling_rows: largest number of training rows, drawn by the seed, to which the scaling is fitted.
        serving: arguments of :class:`MultilabelDataModule`.

    Raises:
        ValueError: :class:`MultilabelDataModule` refuses an argument, or no row is left for the scaling.
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
