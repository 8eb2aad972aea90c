"""Training of chains by stochastic gradients: random fields, max-margin Markov networks, MEMMs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor
from torchmetrics import Metric, MetricCollection
from torchmetrics.classification import MulticlassAccuracy

from lmbm_torch.checks import check_positive
from lmbm_torch.data.sequences.batches import SequenceBatch
from lmbm_torch.energies.chain import PADDING, ChainEnergy
from lmbm_torch.inference import chain_dp
from lmbm_torch.metrics import SequenceAccuracy
from lmbm_torch.models import LinearChain, MaximumEntropyMarkov
from lmbm_torch.shapes import Float
from lmbm_torch.training.gradient import optimizer_of
from lmbm_torch.training.training_set import num_instances, training_batches


class ChainModule(LightningModule):
    """Minimises ½‖w‖² + C Σ_l loss_l over the weights of a chain's head, and over its encoder's.

    With :func:`~lmbm_torch.losses.chain_negative_log_likelihood` a conditional random field, with
    :func:`~lmbm_torch.losses.chain_structured_hinge` a max-margin Markov network by subgradients: the
    objectives of :class:`~lmbm_torch.estimators.ChainCRF` and :class:`~lmbm_torch.estimators.ChainSVM`.
    A step takes the gradient of ½‖w‖² + C·N·mean(loss of the batch), divided by N so that a learning rate
    means the same for few and for many sequences.

    Validation and test decode every sequence; ``fit_report`` holds ``fit/objective`` at the final weights.

    Args:
        model: what is trained; an encoder in it is trained along.
        loss: (energy, labels) → ``(batch,)``.
        C: the weight of the losses.
        optimizer: groups of parameters → optimizer, such as ``partial(torch.optim.Adam, lr=0.01)``. Its
            weight decay applies to the encoder alone.
        scheduler: optimizer → learning rate scheduler, stepped once an epoch.
        metrics: further ones of (predicted, true) labels, by name, such as
            :class:`~lmbm_torch.metrics.ChunkF1`.

    Raises:
        ValueError: ``C`` not above zero.
    """

    def __init__(
        self,
        model: LinearChain | MaximumEntropyMarkov,
        loss: Callable[[ChainEnergy, Tensor], Tensor],
        *,
        C: float,
        optimizer: Callable[[list[dict[str, Any]]], torch.optim.Optimizer],
        scheduler: Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler] | None = None,
        metrics: Mapping[str, Metric] | None = None,
    ) -> None:
        super().__init__()
        check_positive("C", C)
        self.model = model
        self.loss = loss
        self.C = C
        self.optimizer = optimizer
        self.scheduler = scheduler
        every: dict[str, Any] = {
            "accuracy": MulticlassAccuracy(model.num_states, average="micro", ignore_index=PADDING),
            "sequence_accuracy": SequenceAccuracy(),
            **(metrics or {}),
        }
        self.val_metrics = MetricCollection(every, prefix="val/")
        self.test_metrics = self.val_metrics.clone(prefix="test/")
        self.fit_report: dict[str, float] = {}

    @property
    def num_instances(self) -> int:
        """N, of the training set that the trainer serves."""
        return num_instances(self)

    def forward(self, batch: SequenceBatch) -> ChainEnergy:
        """The energy of a batch."""
        return self.model(batch.features, batch.lengths)

    def configure_optimizers(self) -> Any:
        """One group of parameters for the head, without weight decay, and one for an encoder that has any."""
        return optimizer_of(self.model, self.optimizer, self.scheduler)

    def penalty(self) -> Float[Tensor, ""]:
        """½‖w‖² of the head."""
        weights = self.model.weights()
        return 0.5 * weights @ weights

    def training_step(self, batch: SequenceBatch, batch_idx: int) -> Tensor:
        """An unbiased estimate of the objective divided by N."""
        loss = self.loss(self(batch), batch.labels).mean()
        objective = self.penalty() / self.num_instances + self.C * loss
        values = {"train/objective": self.num_instances * objective.detach(), "train/loss": loss.detach()}
        self.log_dict(
            values,
            on_step=False,
            on_epoch=True,
            prog_bar=True,
            batch_size=len(batch.lengths),
            sync_dist=True,
        )
        return objective

    def validation_step(self, batch: SequenceBatch, batch_idx: int) -> None:
        """Decode a batch and log what it is worth."""
        self._evaluate(batch, self.val_metrics)

    def test_step(self, batch: SequenceBatch, batch_idx: int) -> None:
        """Decode a batch and log what it is worth."""
        self._evaluate(batch, self.test_metrics)

    def predict_step(self, batch: SequenceBatch, batch_idx: int) -> Tensor:
        """The states of a batch, (batch, length), −1 beyond an end, as ``Trainer.predict`` collects them."""
        return chain_dp.decode(self(batch)).labels

    @torch.no_grad()
    def on_fit_end(self) -> None:
        """Report the objective at the final weights, of all training sequences."""
        # Lightning has moved the module to the CPU by now.
        self.to(self.trainer.strategy.root_device)
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        for batch in training_batches(self):
            total += self.loss(self(batch), batch.labels).sum()
        total = self.trainer.strategy.reduce(total, reduce_op="sum")
        self.fit_report = {"fit/objective": float(self.penalty() + self.C * total)}
        for logger in self.loggers:
            logger.log_metrics(self.fit_report, self.trainer.global_step)

    def _evaluate(self, batch: SequenceBatch, metrics: MetricCollection) -> None:
        metrics.update(chain_dp.decode(self(batch)).labels, batch.labels)
        self.log_dict(dict(metrics.items()), on_step=False, on_epoch=True, batch_size=len(batch.lengths))
