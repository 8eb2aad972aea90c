"""Training by stochastic gradients: any loss, any encoder, any device, any number of processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from lmbm_torch.data.batches import Batch
from lmbm_torch.models import Model
from lmbm_torch.training.structured import Loss, StructuredModule


class GradientModule(StructuredModule):
    """Minimises penalty + C Σ_l loss_l over the weights of the model's head, and over its encoder's.

    A step takes the gradient of penalty + C·N·mean(loss of the batch), divided by N so that a learning rate
    means the same for few and for many instances. How missing labels (NaN) count is up to the loss: those of
    the library leave them out.

    Args:
        model: the model to train, with its encoder if it has one.
        loss: (energy, labels) → ``(batch,)``, such as :func:`~lmbm_torch.losses.local_hinge`.
        optimizer: groups of parameters → optimizer, such as ``partial(torch.optim.Adam, lr=0.01)``. Its
            weight decay applies to the encoder alone: the head is regularised by the objective.
        scheduler: optimizer → learning rate scheduler, stepped once an epoch.
        kwargs: ``C``, ``penalty``, ``margin``, ``decoder`` and ``label_names`` of :class:`StructuredModule`.
    """

    def __init__(
        self,
        model: Model,
        loss: Loss,
        *,
        optimizer: Callable[[list[dict[str, Any]]], torch.optim.Optimizer],
        scheduler: Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(model, loss, **kwargs)
        self.optimizer = optimizer
        self.scheduler = scheduler

    def configure_optimizers(self) -> Any:
        """One group of parameters for the head, without weight decay, and one for an encoder that has any."""
        return optimizer_of(self.model, self.optimizer, self.scheduler)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """An unbiased estimate of the objective divided by N."""
        return self.objective(self.loss(self.model(batch.features), batch.labels))

    def objective(self, losses: Tensor) -> Tensor:
        """The objective divided by N, estimated from the losses of a batch, and logged."""
        objective = self.penalty(self.model) / self.num_instances + self.C * losses.mean()
        self.log_dict(
            {
                "train/objective": self.num_instances * objective.detach(),
                "train/loss": losses.detach().mean(),
            },
            on_step=False,
            on_epoch=True,
            prog_bar=True,
            batch_size=len(losses),
            sync_dist=True,
        )
        return objective


def optimizer_of(
    model: nn.Module,
    optimizer: Callable[[list[dict[str, Any]]], torch.optim.Optimizer],
    scheduler: Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler] | None,
) -> Any:
    """Lightning's optimizer and scheduler; weight decay applies to the encoder's parameters alone."""
    groups: list[dict[str, Any]] = [{"params": [], "weight_decay": 0.0}, {"params": []}]
    for name, value in model.named_parameters():
        if value.requires_grad:
            groups["encoder" in name.split(".")[:-1]]["params"].append(value)
    made = optimizer([group for group in groups if group["params"]])
    return made if scheduler is None else ([made], [scheduler(made)])
