"""The base class of training modules for label vectors and sequences: evaluation, logging, reports."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor, nn
from torch.utils.data import DataLoader, DistributedSampler

from lmbm_torch.checks import check_positive
from lmbm_torch.extras import naming_extras
from lmbm_torch.training.penalties import quadratic

with naming_extras():
    from lightning.pytorch import LightningModule
    from torchmetrics import MetricCollection

# Losses take energies of any kind.
Loss = Callable[[Any, Tensor], Tensor]
Penalty = Callable[[Any], Tensor]


class TrainingModule(LightningModule, ABC):
    """The training of a model by minimisation of penalty(weights) + C · Σ losses of all instances.

    Validation and test decode every instance by :attr:`decoder` and log the metrics. After a fit
    :attr:`fit_report` holds the numbers of :meth:`report`, also sent to the loggers.

    Args:
        model: the model to train.
        loss: (energy, labels) → ``(batch,)``.
        C: the weight of the losses, the same for every instance.
        penalty: model → the part of the objective in the weights alone, such as
            :func:`~lmbm_torch.training.penalties.quadratic`.

    Raises:
        ValueError: ``C`` not above zero.
    """

    decoder: Callable[[Any], Any]
    val_metrics: MetricCollection
    test_metrics: MetricCollection

    def __init__(self, model: nn.Module, loss: Loss, *, C: float, penalty: Penalty = quadratic) -> None:
        super().__init__()
        check_positive("C", C)
        self.model: Any = model
        # Some subclasses pass further arguments after energy and labels.
        self.loss: Callable[..., Any] = loss
        self.C = C
        self.penalty = penalty
        self.fit_report: dict[str, float] = {}

    @property
    def num_instances(self) -> int:
        """Return N, the size of the trainer's training set, over all processes."""
        loader: Any = self.trainer.train_dataloader
        return len(loader.dataset)

    def training_batches(self) -> Iterator[Any]:
        """Yield this process's share of the training part, on the module's device, for :meth:`report`.

        Meanwhile the module is in evaluation mode. The order is the order of epoch 0, after any number of
        epochs and interruptions: sums over the batches are the same to the last digit after a resumed run and
        an uninterrupted run.
        """
        loader: Any = self.trainer.train_dataloader
        if self.trainer.world_size > 1:
            # The process's own share is padded: some instances would count twice.
            rows = range(self.trainer.global_rank, len(loader.dataset), self.trainer.world_size)
            options = {"batch_size": loader.batch_size, "collate_fn": loader.collate_fn}
            loader = DataLoader(loader.dataset, sampler=rows, **options)
        elif isinstance(loader.sampler, DistributedSampler):
            loader.sampler.set_epoch(0)
        was_training = self.training
        self.eval()
        try:
            for batch in loader:
                yield self.transfer_batch_to_device(batch, self.device, 0)
        finally:
            self.train(was_training)

    def energy(self, batch: Any) -> Any:
        """Return the model's energy for a batch of data."""
        return self.model(batch.features)

    @abstractmethod
    def report(self) -> dict[str, float]:
        """Return the numbers ``fit/…`` of the final weights."""

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        """Decode a batch and log its metrics."""
        return self.evaluate(batch, self.val_metrics)

    def test_step(self, batch: Any, batch_idx: int) -> Any:
        """Decode a batch and log its metrics."""
        return self.evaluate(batch, self.test_metrics)

    def evaluate(self, batch: Any, metrics: MetricCollection) -> Any:
        """Return the decoding of a batch; update and log the metrics."""
        decoding = self.decoder(self.energy(batch))
        metrics.update(decoding.labels, batch.labels)
        self.log_means(dict(metrics.items()), len(batch.labels))
        return decoding

    def predict_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Return the decoded labels of a batch, for ``Trainer.predict``."""
        return self.decoder(self.energy(batch)).labels

    def on_fit_end(self) -> None:
        """Report the fit, also for a resumed run without epochs left."""
        # Lightning has moved the module to the CPU by now.
        self.to(self.trainer.strategy.root_device)
        self.fit_report = self.report()
        for logger in self.loggers:
            logger.log_metrics(self.fit_report, self.trainer.global_step)

    def log_means(self, values: Mapping[str, Any], batch_size: int, prog_bar: bool = False) -> None:
        """Log the means of values over an epoch and over all processes."""
        # Lightning divides by the processes' mean number of rows, rounded down.
        weight = batch_size * self.trainer.world_size
        self.log_dict(
            values, on_step=False, on_epoch=True, prog_bar=prog_bar, batch_size=weight, sync_dist=True
        )
