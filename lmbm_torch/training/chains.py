"""Training of chains by stochastic gradients: random fields, max-margin Markov networks, MEMMs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from lmbm_torch.data.batches import SequenceBatch
from lmbm_torch.energies.chain import PADDING, ChainEnergy
from lmbm_torch.extras import naming_extras
from lmbm_torch.inference.trees import chain_dp
from lmbm_torch.metrics.sequences import SequenceAccuracy
from lmbm_torch.models import LinearChain, MaximumEntropyMarkov
from lmbm_torch.training.gradient import GradientSteps

with naming_extras():
    from torchmetrics import Metric, MetricCollection
    from torchmetrics.classification import MulticlassAccuracy


class ChainModule(GradientSteps):
    """A training module that minimises ½‖w‖² + C Σ_l loss_l over the weights of a chain's head and encoder.

    With :func:`~lmbm_torch.losses.chain_negative_log_likelihood` a conditional random field, with
    :func:`~lmbm_torch.losses.chain_structured_hinge` a max-margin Markov network by subgradients: the
    objectives of :class:`~lmbm_torch.estimators.ChainCRF` and :class:`~lmbm_torch.estimators.ChainSVM`.

    Validation and test decode every sequence; ``fit_report`` holds ``fit/objective`` at the final weights.
    Predictions are states, ``(batch, length)``, −1 beyond the end of a sequence.

    Args:
        model: the model to train, including an encoder, if any.
        loss: (energy, labels) → ``(batch,)``.
        metrics: further metrics of (predicted, true) labels, by name, such as
            :class:`~lmbm_torch.metrics.sequences.ChunkF1`.
        kwargs: ``C``, ``optimizer``, … of :class:`~lmbm_torch.training.gradient.GradientSteps`.

    Raises:
        ValueError: ``C`` not above zero.
    """

    def __init__(
        self,
        model: LinearChain | MaximumEntropyMarkov,
        loss: Callable[[ChainEnergy, Tensor], Tensor],
        *,
        metrics: Mapping[str, Metric] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(model, loss, **kwargs)
        self.decoder = chain_dp.decode
        every: dict[str, Any] = {
            "accuracy": MulticlassAccuracy(model.num_states, average="micro", ignore_index=PADDING),
            "sequence_accuracy": SequenceAccuracy(),
            **(metrics or {}),
        }
        self.val_metrics = MetricCollection(every, prefix="val/")
        self.test_metrics = self.val_metrics.clone(prefix="test/")

    def forward(self, batch: SequenceBatch) -> ChainEnergy:
        """Return the energy of a batch."""
        return self.model(batch.features, batch.lengths, batch.labels.shape[1])

    def energy(self, batch: SequenceBatch) -> ChainEnergy:
        """Return the model's energy for a batch of data."""
        return self(batch)

    @torch.no_grad()
    def report(self) -> dict[str, float]:
        """Return the objective at the final weights, over all training sequences."""
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        for batch in self.training_batches():
            total += self.loss(self(batch), batch.labels).sum()
        total = self.trainer.strategy.reduce(total, reduce_op="sum")
        return {"fit/objective": float(self.penalty(self.model) + self.C * total)}
