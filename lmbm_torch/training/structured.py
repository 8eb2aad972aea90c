"""The base class of training modules: metrics of decoding, the report after a fit, and the saved model.

Also penalties: functions of a model that return the part of the objective without data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, DistributedSampler

from lmbm_torch.calibration.scales import Calibration
from lmbm_torch.checks import check_positive
from lmbm_torch.data.batches import Batch, InstanceDataset
from lmbm_torch.data.datamodule import MultilabelDataModule
from lmbm_torch.data.features import numbered
from lmbm_torch.energies import DirectedEnergy
from lmbm_torch.energies.base import MarginEnergy
from lmbm_torch.extras import naming_extras
from lmbm_torch.inference import decode_hinge
from lmbm_torch.inference.common.results import Decoding
from lmbm_torch.losses import error_bound, local_hinge
from lmbm_torch.losses.bounds import least_threshold
from lmbm_torch.metrics import multilabel_metrics
from lmbm_torch.models import ConditionalRBM, Model, RestrictedBoltzmannMachine
from lmbm_torch.persistence.files import RECORD, record
from lmbm_torch.prediction.predictor import Predictor
from lmbm_torch.prediction.trained import Decoder
from lmbm_torch.shapes import Float

# Function of an energy and labels that returns the losses (batch,).
Loss = Callable[[Any, Tensor], Tensor]
Penalty = Callable[[Any], Tensor]


def quadratic(model: Model, coupling_penalty: float = 1.0) -> Float[Tensor, ""]:
    """Return the penalty ½ Σ_j η_j w_j² over the weights of the model's head (without the encoder).

    η_j is ``coupling_penalty`` for the weight of a clique of two or more labels, and 1 for all other weights
    (large_margin_boltzmann_machines_2009, section 5, where the factor is η_0).

    Raises:
        ValueError: ``coupling_penalty`` is not a finite number above 0.
    """
    check_positive("coupling_penalty", coupling_penalty)
    weights = model.weights()
    if coupling_penalty == 1:
        return 0.5 * weights @ weights
    strength = 1 + (coupling_penalty - 1) * model.couples().to(weights.dtype)
    return 0.5 * (strength * weights) @ weights


def none(model: nn.Module) -> Float[Tensor, ""]:
    """Return the penalty 0, for training without a penalty."""
    return next(model.parameters()).new_zeros(())


def frobenius(model: RestrictedBoltzmannMachine, strength: float) -> Float[Tensor, ""]:
    """Return the penalty ½ · strength · Σ W² on the couplings and, if there are any, the features' weights.

    Biases are not penalised. Early stopping is better (belief_propagation_in_crbms_2017, footnote 3).

    Raises:
        ValueError: ``strength`` is not a finite number above 0.
    """
    check_positive("strength", strength)
    matrices = [model.coupling]
    if isinstance(model, ConditionalRBM):
        matrices += [model.visible_weight, model.hidden_weight]
    # Use inner products: sums of squares would store the squares first, and take twice as long.
    return 0.5 * strength * torch.stack([matrix.flatten() @ matrix.flatten() for matrix in matrices]).sum()


with naming_extras():
    from lightning.pytorch import LightningModule
    from torchmetrics import MetricCollection


class StructuredModule(LightningModule):
    """A model trained on penalty + C Σ_l loss_l, by default with the penalty ½‖w‖² of the head's weights.

    Subclasses minimise the objective. Validation and test decode every instance, and log the metrics, the
    share of decodings proven optimal, and the mean number of search nodes. After a fit, :attr:`fit_report`
    and the loggers have these values:

    * ``fit/objective``: the objective at the final weights, comparable between all kinds of training;
    * ``fit/mean_hinge``, if labels have local margins: the mean hinge loss of the training instances;
    * ``fit/threshold``: T, the least hinge loss of a wrongly decoded instance;
    * ``fit/error_bound``: mean hinge / T, an upper bound on the training error of exact hinge decoding.
      Missing if labels are missing, whose losses are unknown.

    Args:
        model: the model to train.
        loss: function from energy and labels to losses, ``(batch,)``.
        C: the weight of the losses, the same for every instance.
        penalty: function from the model to the part of the objective without data, for example
            :func:`~lmbm_torch.training.structured.quadratic`.
        margin: γ of the reported hinge losses, and of the decoder.
        decoder: function from an energy to a :class:`~lmbm_torch.inference.common.results.Decoding`; by
            default exact hinge decoding. A function of :mod:`lmbm_torch.inference`, or a partial function
            with plain settings, is saved with the model.
        label_names: the names for figures and predictions; by default label_0, label_1, ….

    Raises:
        TypeError: ``model`` is no :class:`~lmbm_torch.models.Model`, or has an argument that checkpoints
            cannot hold.
        ValueError: ``C`` or ``margin`` is not above zero, or there are not as many names as labels.
    """

    def __init__(
        self,
        model: Model,
        loss: Loss,
        *,
        C: float,
        penalty: Penalty = quadratic,
        margin: float = 1.0,
        decoder: Decoder | None = None,
        label_names: Sequence[str] | None = None,
    ) -> None:
        if not isinstance(model, Model):
            raise TypeError(f"model: expected an lmbm_torch.models.Model, got {type(model).__name__}")
        check_positive("margin", margin)
        names = numbered("label", model.num_labels) if label_names is None else tuple(label_names)
        if len(names) != model.num_labels:
            raise ValueError(f"label_names: expected {model.num_labels} names, got {len(names)}")
        super().__init__()
        check_positive("C", C)
        self.model: Any = model
        # Annotate further arguments, since some subclasses pass more than energy and labels.
        self.loss: Callable[..., Any] = loss
        self.C = C
        self.penalty = penalty
        self.fit_report: dict[str, float] = {}
        self.margin = margin
        self.decoder = decoder or partial(decode_hinge, margin=margin)
        self.label_names = names
        self.val_metrics = multilabel_metrics(model.num_labels, prefix="val/")
        self.test_metrics = multilabel_metrics(model.num_labels, prefix="test/")
        self._had_stopped = False
        # Calibration of probabilities; stays None unless the training fits scales.
        self.calibration: Calibration | None = None
        # Record the model once, so that an argument that cannot be stored raises an error before training.
        record(self.trained())

    def check_processes(self, count: int) -> None:
        """Raise ValueError if the training cannot run on ``count`` processes; by default, any number can."""

    def check_labels(self, part: InstanceDataset) -> None:
        """Raise ValueError if ``part`` has missing labels that the training cannot use."""

    def forward(self, x: Tensor) -> Any:
        """Return the model's energy for a batch of inputs."""
        return self.model(x)

    def trained(self) -> Predictor:
        """Return the trained model with all that predictions need, such as the scaling of features."""
        data = self._data()
        return Predictor.of_model(
            self.model,
            self.label_names,
            self.margin,
            None if data is None else data.scaling,
            self.decoder,
            # Only training modules of models with hidden units have the attribute ``inference``.
            getattr(self, "inference", None),
            None if data is None else data.data.schema,
            self.calibration,
        )

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the record for :func:`lmbm_torch.load` to the checkpoint."""
        checkpoint[RECORD] = record(self.trained())
        checkpoint["has_stopped"] = self.trainer.should_stop

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore whether early stopping had ended the training, because Lightning does not save this."""
        self._had_stopped = checkpoint["has_stopped"]

    def on_train_start(self) -> None:
        """Stop a resumed run before a further epoch if early stopping had already ended the training."""
        self.trainer.should_stop = self._had_stopped
        self._had_stopped = False

    @property
    def num_instances(self) -> int:
        """Return N, the size of the trainer's training set, over all processes."""
        loader: Any = self.trainer.train_dataloader
        return len(loader.dataset)

    def training_batches(self) -> Iterator[Any]:
        """Yield this process's share of the training part, on the module's device, for :meth:`report`.

        Meanwhile the module is in evaluation mode. Batches always have the order of epoch 0, so sums over the
        batches are exactly equal after a resumed run and after an uninterrupted run.
        """
        loader: Any = self.trainer.train_dataloader
        if self.trainer.world_size > 1:
            # Divide the rows anew: the data loader pads its rows, so some instances would enter a sum twice.
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

    def _data(self) -> MultilabelDataModule | None:
        """Return the data module of the trainer; None without a trainer or with another kind of data."""
        data = getattr(self._trainer, "datamodule", None)
        return data if isinstance(data, MultilabelDataModule) else None

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        """Decode a validation batch, and log metrics."""
        return self.evaluate(batch, self.val_metrics)

    def test_step(self, batch: Any, batch_idx: int) -> Any:
        """Decode a test batch, and log metrics."""
        return self.evaluate(batch, self.test_metrics)

    def evaluate(self, batch: Batch, metrics: MetricCollection) -> Decoding:
        """Decode a batch; log metrics, the share proven optimal, and the mean number of search nodes."""
        decoding = self.decoder(self.model(batch.features))
        metrics.update(decoding.labels, batch.labels)
        self.log_means(dict(metrics.items()), len(batch.labels))
        certificates = {f"{metrics.prefix}proven_optimal": decoding.status.exact.float().mean()}
        if decoding.nodes is not None:
            certificates[f"{metrics.prefix}mean_nodes"] = decoding.nodes.float().mean()
        self.log_means(certificates, len(batch.labels))
        return decoding

    def predict_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Return the decoded labels of a batch, for ``Trainer.predict``."""
        return self.decoder(self.model(batch.features)).labels

    def on_fit_end(self) -> None:
        """Compute and log the report of the fit, even if a resumed run had no epochs left."""
        # Move the module back to the device, since Lightning has already moved the module to the CPU.
        self.to(self.trainer.strategy.root_device)
        self.fit_report = self.report()
        for logger in self.loggers:
            logger.log_metrics(self.fit_report, self.trainer.global_step)

    def log_means(self, values: Mapping[str, Any], batch_size: int, prog_bar: bool = False) -> None:
        """Log the means of values over an epoch and over all processes."""
        # Multiply by the number of processes: Lightning divides by the rounded mean of rows in a process.
        weight = batch_size * self.trainer.world_size
        self.log_dict(
            values, on_step=False, on_epoch=True, prog_bar=prog_bar, batch_size=weight, sync_dist=True
        )

    @torch.no_grad()
    def report(self) -> dict[str, float]:
        """Compute the values ``fit/…`` that the class describes, in a pass over the training part."""
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
        """Return the sum of a batch's hinge losses, or NaN if hinge losses are not defined for the batch."""
        if isinstance(energy, DirectedEnergy) or (isinstance(energy, MarginEnergy) and not missing):
            return local_hinge(energy, labels, self.margin).sum()
        return labels.new_tensor(math.nan)
