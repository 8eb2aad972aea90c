"""The base class of training modules for label vectors: metrics of decoding, report of a fit, saved model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from lmbm_torch.calibration.scales import Calibration
from lmbm_torch.checks import check_positive
from lmbm_torch.data.batches import Batch, InstanceDataset
from lmbm_torch.data.datamodule import MultilabelDataModule
from lmbm_torch.data.features import numbered
from lmbm_torch.energies import DirectedEnergy, MarginEnergy
from lmbm_torch.extras import naming_extras
from lmbm_torch.inference import decode_hinge
from lmbm_torch.inference.common.results import Decoding
from lmbm_torch.losses import error_bound, least_threshold, local_hinge
from lmbm_torch.metrics import multilabel_metrics
from lmbm_torch.models import Model
from lmbm_torch.persistence.checkpoints import RECORD, record
from lmbm_torch.prediction.decoders import Decoder
from lmbm_torch.prediction.predictor import Predictor
from lmbm_torch.training.base import Loss, TrainingModule

with naming_extras():
    from torchmetrics import MetricCollection


class StructuredModule(TrainingModule):
    """A model trained on penalty + C Σ_l loss_l, by default with the penalty ½‖w‖² of the head's weights.

    Subclasses minimise the objective. Validation and test decode every instance and log the metrics, the
    share of answers proven optimal and the mean number of search nodes. After a fit :attr:`fit_report` holds,
    and the loggers have received:

    * ``fit/objective``, at the final weights, comparable between all kinds of training;
    * if labels have local margins, ``fit/mean_hinge`` of the training instances, and ``fit/threshold`` T;
    * ``fit/error_bound`` = mean hinge / T, an upper bound on the training error of exact hinge decoding; left
      out with missing labels, whose part of the hinge is unknown (in an undirected model, also the part of
      known labels).

    Args:
        model, loss: see :class:`~lmbm_torch.training.base.TrainingModule`.
        margin: γ of the reported hinge losses, and of the decoder.
        decoder: energy → :class:`~lmbm_torch.inference.common.results.Decoding`; exact hinge decoding by
            default. A function of :mod:`lmbm_torch.inference`, or a partial function with plain settings, is
            saved with the model.
        label_names: for figures and predictions; label_0, label_1, … by default.
        kwargs: ``C`` and ``penalty`` of :class:`~lmbm_torch.training.base.TrainingModule`.

    Raises:
        TypeError: no :class:`~lmbm_torch.models.Model`, or a model with an argument that no checkpoint can
            hold.
        ValueError: ``C`` or ``margin`` not above zero, or another number of names.
    """

    def __init__(
        self,
        model: Model,
        loss: Loss,
        *,
        margin: float = 1.0,
        decoder: Decoder | None = None,
        label_names: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> None:
        if not isinstance(model, Model):
            raise TypeError(f"model: expected an lmbm_torch.models.Model, got {type(model).__name__}")
        check_positive("margin", margin)
        names = numbered("label", model.num_labels) if label_names is None else tuple(label_names)
        if len(names) != model.num_labels:
            raise ValueError(f"label_names: expected {model.num_labels} names, got {len(names)}")
        super().__init__(model, loss, **kwargs)
        self.margin = margin
        self.decoder = decoder or partial(decode_hinge, margin=margin)
        self.label_names = names
        self.val_metrics = multilabel_metrics(model.num_labels, prefix="val/")
        self.test_metrics = multilabel_metrics(model.num_labels, prefix="test/")
        self._had_stopped = False
        # Calibration of probabilities, set by a training that fits scales.
        self.calibration: Calibration | None = None
        # Refuse now, not at the first checkpoint.
        record(self.trained())

    def check_processes(self, count: int) -> None:
        """Raise ValueError for more processes than can share the training; by default never."""

    def check_labels(self, part: InstanceDataset) -> None:
        """Raise ValueError if the training cannot take the missing labels of a part."""

    def forward(self, x: Tensor) -> Any:
        """Return the energy of a batch."""
        return self.model(x)

    def trained(self) -> Predictor:
        """Return the model with everything for predictions, scaling and schema from the trainer's data."""
        data = self._data()
        return Predictor.of_model(
            self.model,
            self.label_names,
            self.margin,
            None if data is None else data.scaling,
            self.decoder,
            # Models with hidden units have an inference.
            getattr(self, "inference", None),
            None if data is None else data.data.schema,
            self.calibration,
        )

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the record for :func:`lmbm_torch.load` to the checkpoint."""
        checkpoint[RECORD] = record(self.trained())
        checkpoint["has_stopped"] = self.trainer.should_stop

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore whether training had met its stopping rule, which Lightning does not save."""
        self._had_stopped = checkpoint["has_stopped"]

    def on_train_start(self) -> None:
        """Stop a resumed run that had ended early from training for a further epoch."""
        self.trainer.should_stop = self._had_stopped
        self._had_stopped = False

    def _data(self) -> MultilabelDataModule | None:
        """Return the data module of the trainer, or None without a trainer or with a foreign data module."""
        data = getattr(self._trainer, "datamodule", None)
        return data if isinstance(data, MultilabelDataModule) else None

    def evaluate(self, batch: Batch, metrics: MetricCollection) -> Decoding:
        """Return the decoding of a batch; update and log metrics and certificates."""
        decoding = super().evaluate(batch, metrics)
        certificates = {f"{metrics.prefix}proven_optimal": decoding.status.exact.float().mean()}
        if decoding.nodes is not None:
            certificates[f"{metrics.prefix}mean_nodes"] = decoding.nodes.float().mean()
        self.log_means(certificates, len(batch.labels))
        return decoding

    @torch.no_grad()
    def report(self) -> dict[str, float]:
        """Return the numbers ``fit/…`` of the class's description, in a pass over the training part."""
        sums = torch.zeros(4, dtype=torch.float64, device=self.device)
        threshold = torch.full((), math.inf, dtype=torch.float64, device=self.device)
        for features, labels, _ in self.training_batches():
            energy = self.model(features)
            missing = labels.isnan().sum()
            loss, hinge = self.loss(energy, labels).sum(), self._hinge(energy, labels, missing)
            sums += sums.new_tensor([float(part) for part in (loss, hinge, missing, len(labels))])
            if isinstance(energy, MarginEnergy):
                threshold = torch.minimum(threshold, least_threshold(energy, self.margin).double())
        reduce = self.trainer.strategy.reduce
        loss, hinge, missing, count = reduce(sums, reduce_op="sum").tolist()
        report = {"fit/objective": float(self.penalty(self.model)) + self.C * loss}
        if not math.isnan(hinge):
            report["fit/mean_hinge"] = hinge / count
            report["fit/threshold"] = float(reduce(threshold, reduce_op="min"))
            if not missing:
                report["fit/error_bound"] = error_bound(hinge / count, report["fit/threshold"])
        return report

    def _hinge(self, energy: Any, labels: Tensor, missing: Tensor) -> Tensor:
        """Return the sum over a batch; NaN if undefined."""
        if isinstance(energy, DirectedEnergy) or (isinstance(energy, MarginEnergy) and not missing):
            return local_hinge(energy, labels, self.margin).sum()
        return labels.new_tensor(math.nan)
