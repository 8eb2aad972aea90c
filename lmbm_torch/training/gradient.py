"""Training by stochastic gradients, for any loss, encoder, device and number of processes."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DistributedSampler

from lmbm_torch.data.batches import InstanceDataset
from lmbm_torch.training.structured import Loss, StructuredModule
from lmbm_torch.verdicts import one_door


class GradientModule(StructuredModule):
    """A training module that minimises penalty + C Σ_l loss_l by stochastic gradients, encoder included.

    A step takes the gradient of penalty + C·N·mean(loss of the batch), divided by the number N of instances,
    for a learning rate independent of the number of instances.

    The loss decides about missing labels (NaN): :func:`~lmbm_torch.losses.local_hinge` of a belief
    network ignores missing labels, :func:`~lmbm_torch.losses.exact_negative_log_likelihood` of any model sums
    over missing labels, and other losses refuse missing labels.

    Args:
        model: the model to train, including an encoder, if any.
        loss: function from energy and labels to losses, ``(batch,)``.
        optimizer: function from parameter groups to an optimizer, such as ``partial(torch.optim.Adam,
            lr=0.01)``. Weight decay applies only to the encoder, since the objective regularises the head.
        scheduler: function from the optimizer to a learning rate scheduler, stepped each epoch.
        kwargs: ``C``, ``penalty``, ``margin``, ``decoder`` and ``label_names`` of
            :class:`~lmbm_torch.training.structured.StructuredModule`.
    """

    def __init__(
        self,
        model: Any,
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
        """Make the optimizer and the scheduler; weight decay applies only to parameters of the encoder."""
        groups: list[dict[str, Any]] = [{"params": [], "weight_decay": 0.0}, {"params": []}]
        for name, value in self.model.named_parameters():
            if value.requires_grad:
                groups["encoder" in name.split(".")[:-1]]["params"].append(value)
        made = self.optimizer([group for group in groups if group["params"]])
        return made if self.scheduler is None else ([made], [self.scheduler(made)])

    @one_door
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """Return an unbiased estimate of the objective divided by N, the number of instances."""
        return self.objective(self.loss(self.model(batch.features), batch.labels), batch_idx)

    def objective(self, losses: Tensor, batch_idx: int) -> Tensor:
        """Estimate the objective divided by N from the losses of a batch, log the objective, and return it.

        In the mean over several processes, each row of the batch has the same weight.
        """
        own, divisor = self.share(len(losses), batch_idx)
        # Sum the losses: the gradient of a sum is one number for all examples, which is faster in matrix_bp.
        total = (losses if own == len(losses) else losses[:own]).sum()
        penalty = self.penalty(self.model) / self.num_instances
        objective, mean = penalty + self.C * (total / divisor), total.detach() / max(own, 1)
        alone = objective.detach() if own == divisor else penalty.detach() + self.C * mean
        values = {"train/objective": self.num_instances * alone, "train/loss": mean}
        self.log_means(values, own, prog_bar=True)
        return objective

    def share(self, count: int, batch_idx: int) -> tuple[int, float]:
        """Return how many rows of a batch enter the loss, from the start, and the divisor of their sum.

        With several processes, the rows of each process are padded to the same number by rows of other
        processes. The padding comes last, and does not enter the loss. The divisor is the mean number of rows
        in a process.
        """
        loader: Any = self.trainer.train_dataloader
        sampler = getattr(loader, "sampler", None)
        if not isinstance(sampler, DistributedSampler) or sampler.num_replicas == 1:
            return count, count
        processes, rows, first = sampler.num_replicas, len(loader.dataset), batch_idx * loader.batch_size
        mine = -(-(rows - sampler.rank) // processes)
        together = min(processes * count, rows - processes * first)
        return min(count, max(mine - first, 0)), together / processes

    @torch.no_grad()
    def check_labels(self, part: InstanceDataset) -> None:
        """Check that the loss accepts missing labels, by the first row with missing labels.

        Raises:
            ValueError: the loss refuses the row, but accepts the row with complete labels.
        """
        lacking = part.labels.isnan()
        rows = lacking.any(1).nonzero()
        if not len(rows):
            return
        batch = part[int(rows[0])]
        was_training = self.training
        self.eval()
        try:
            energy = self.model(batch.features)
            refused = _refused(lambda: self.loss(energy, batch.labels))
            # If complete labels are refused, too, the missing labels are not the reason: raise nothing here.
            if refused is None or _refused(lambda: self.loss(energy, batch.labels.nan_to_num())) is not None:
                return
        finally:
            self.train(was_training)
        function = self.loss.func if isinstance(self.loss, partial) else self.loss
        name = getattr(function, "__name__", function)
        raise ValueError(
            "loss: expected one that takes missing labels, since the training part misses "
            f"{int(lacking.sum())}, got {name} for {type(self.model).__name__} ({refused}): "
            "loss=log_likelihood takes them for any model of few labels, loss=hinge and loss=log for belief "
            "networks, and training=dual for Boltzmann machines"
        ) from refused


def _refused(call: Callable[[], Any]) -> ValueError | None:
    """Call a function, and return the ValueError raised, or None; restore the random number generator."""
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            call()
        except ValueError as error:
            return error
    return None
