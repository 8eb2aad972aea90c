"""What all routes of training share: decoding and its metrics, the report of a fit, and what is saved."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor
from torchmetrics import MetricCollection

from lmbm_torch.checks import check_positive
from lmbm_torch.data.batches import Batch
from lmbm_torch.data.dataset import numbered
from lmbm_torch.data.scaling import Scaling
from lmbm_torch.energies import DirectedEnergy
from lmbm_torch.inference import branch_and_bound
from lmbm_torch.inference.results import Decoding
from lmbm_torch.losses import directed_threshold, error_bound, local_hinge
from lmbm_torch.metrics import multilabel_metrics
from lmbm_torch.models import SigmoidBeliefNetwork
from lmbm_torch.training.checkpoints import RECORD, record

Loss = Callable[[DirectedEnergy, Tensor], Tensor]
Decoder = Callable[[DirectedEnergy], Decoding]


class StructuredModule(LightningModule):
    """A model under ½‖w‖² + C Σ_l loss_l, w the weights of its head; a subclass says how that is minimised.

    Validation and test decode every instance and log the metrics, the share of answers proven optimal and the
    mean number of search nodes. After a fit :attr:`fit_report` holds, and the loggers have received:

    * ``fit/objective``, at the final weights, comparable between all routes;
    * ``fit/mean_hinge`` of the training instances, and ``fit/threshold`` T;
    * ``fit/error_bound`` = mean hinge / T, no less than the share of training instances that exact hinge
      decoding gets wrong; left out where labels are missing, since their part of the hinge is not known.

    Args:
        model: what is trained.
        loss: (energy, labels) → ``(batch,)``.
        C: the weight of the losses, the same for every instance.
        margin: γ of the hinge losses that are reported, and of the decoder.
        decoder: energy → :class:`~lmbm_torch.inference.results.Decoding`; exact hinge decoding by default.
        label_names: for figures and predictions; label_0, label_1, … by default.
        scaling: what the features went through before they reached the model, for the checkpoint.

    Raises:
        ValueError: ``C`` or ``margin`` not above zero, or another number of names.
    """

    def __init__(
        self,
        model: SigmoidBeliefNetwork,
        loss: Loss,
        *,
        C: float,
        margin: float = 1.0,
        decoder: Decoder | None = None,
        label_names: Sequence[str] | None = None,
        scaling: Scaling | None = None,
    ) -> None:
        super().__init__()
        check_positive("C", C)
        check_positive("margin", margin)
        names = numbered("label", model.num_labels) if label_names is None else tuple(label_names)
        if len(names) != model.num_labels:
            raise ValueError(f"label_names: expected {model.num_labels} names, got {len(names)}")
        self.model = model
        self.loss = loss
        self.C = C
        self.margin = margin
        self.decoder = decoder or partial(branch_and_bound.decode_hinge, margin=margin)
        self.label_names = names
        self.scaling = scaling
        self.val_metrics = multilabel_metrics(model.num_labels, prefix="val/")
        self.test_metrics = multilabel_metrics(model.num_labels, prefix="test/")
        self.fit_report: dict[str, float] = {}
        self._had_stopped = False

    @property
    def num_instances(self) -> int:
        """N, of the training set that the trainer serves."""
        loader: Any = self.trainer.train_dataloader
        return len(loader.dataset)

    def forward(self, x: Tensor) -> DirectedEnergy:
        return self.model(x)

    def validation_step(self, batch: Batch, batch_idx: int) -> Decoding:
        """Decode a batch and log what it is worth."""
        return self._evaluate(batch, self.val_metrics)

    def test_step(self, batch: Batch, batch_idx: int) -> Decoding:
        """Decode a batch and log what it is worth."""
        return self._evaluate(batch, self.test_metrics)

    def on_fit_end(self) -> None:
        """Report the fit: also where a resumed run finds that it had been complete."""
        # Lightning has moved the module to the CPU by now.
        self.to(self.trainer.strategy.root_device)
        self.fit_report = self._report()
        for logger in self.loggers:
            logger.log_metrics(self.fit_report, self.trainer.global_step)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add what :func:`~lmbm_torch.training.checkpoints.load_model` needs."""
        checkpoint[RECORD] = record(self.model, self.label_names, self.margin, self.scaling)
        checkpoint["has_stopped"] = self.trainer.should_stop

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Remember whether training had ended by its own rule, which Lightning forgets."""
        self._had_stopped = checkpoint["has_stopped"]

    def on_train_start(self) -> None:
        """Keep a run that had ended early from going on for one more epoch when it is resumed."""
        self.trainer.should_stop = self._had_stopped
        self._had_stopped = False

    def _evaluate(self, batch: Batch, metrics: MetricCollection) -> Decoding:
        decoding = self.decoder(self.model(batch.features))
        metrics.update(decoding.labels, batch.labels)
        scores: dict[str, Any] = dict(metrics.items())
        scores[f"{metrics.prefix}proven_optimal"] = decoding.status.exact.float().mean()
        if decoding.nodes is not None:
            scores[f"{metrics.prefix}mean_nodes"] = decoding.nodes.float().mean()
        self.log_dict(scores, on_step=False, on_epoch=True, batch_size=len(batch.labels), sync_dist=True)
        return decoding

    @torch.no_grad()
    def _report(self) -> dict[str, float]:
        was_training = self.training
        self.eval()
        totals = torch.zeros(4, dtype=torch.float64, device=self.device)
        for batch in self.trainer.train_dataloader:  # pyright: ignore[reportGeneralTypeIssues, reportOptionalIterable]
            features, labels, _ = self.transfer_batch_to_device(batch, self.device, 0)
            energy = self.model(features)
            hinge = local_hinge(energy, labels, self.margin)
            loss = self.loss(energy, labels)
            parts = (loss.sum(), hinge.sum(), labels.isnan().sum(), labels.new_tensor(len(labels)))
            totals += torch.stack([part.double() for part in parts])
        self.train(was_training)
        loss, hinge, missing, count = self.trainer.strategy.reduce(totals, reduce_op="sum").tolist()
        weights = self.model.weights().double()
        threshold = directed_threshold(self.margin)
        report = {
            "fit/objective": float(0.5 * weights @ weights) + self.C * loss,
            "fit/mean_hinge": hinge / count,
            "fit/threshold": threshold,
        }
        if not missing:
            report["fit/error_bound"] = error_bound(hinge / count, threshold)
        return report
