"""Persistent contrastive divergence for models without input; all batches share the Markov chains."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, uint8

from lmbm_torch.checks import check_counts, check_labels
from lmbm_torch.data.batches import Batch, InstanceDataset
from lmbm_torch.energies import BipartiteEnergy
from lmbm_torch.energies.bipartite import softplus
from lmbm_torch.inference.messages import mean_field
from lmbm_torch.inference.messages.matching import MatchedInference
from lmbm_torch.inference.sampling.gibbs import draw
from lmbm_torch.inference.sampling.tempering import Ladder, path_from_base
from lmbm_torch.models import ConditionalRBM, RestrictedBoltzmannMachine
from lmbm_torch.shapes import Float
from lmbm_torch.training.latent import PersistentModule
from lmbm_torch.verdicts import one_door


class ParallelChainsModule(PersistentModule):
    """Persistent contrastive divergence for a model without input, by parallel chains or parallel tempering.

    Each step lowers F(v) − F(v⁻) for the labels v of the batch and the chains v⁻, where F is the free energy;
    then the chains move by Gibbs steps of the model (Tieleman 2008). With replicas, each chain exchanges
    states with chains at higher temperatures, between the model and independent labels (Desjardins et al.
    2010): this is slower, but chains cross between modes. Chains start at training labels. If all visible
    biases are 0, as in a new model, the biases are set to the log-odds of the labels' frequencies, smoothed
    by one more 0 and one more 1.

    For fast training, use centred steps (:class:`~lmbm_torch.training.callbacks.latent.CentredGradients`),
    and a learning rate that falls to 0, so the chains keep up with the model.

    Args:
        model: a model without input.
        num_chains: the number of chains, which all batches share.
        num_steps: the number of steps of Gibbs sampling for each batch.
        num_replicas: the number of temperatures for each chain; 1 for only the temperature of the model.
        inference: the inference for prediction; by default mean field.
        kwargs: see :class:`~lmbm_torch.training.latent.LatentModule`, without ``loss``.

    Raises:
        TypeError: the model has input.
        ValueError: a number is below 1; :class:`~lmbm_torch.training.latent.LatentModule` refuses an
            argument; labels are missing at the start of training.
    """

    def __init__(
        self,
        model: RestrictedBoltzmannMachine,
        *,
        num_chains: int = 500,
        num_steps: int = 1,
        num_replicas: int = 1,
        inference: MatchedInference | None = None,
        **kwargs: Any,
    ) -> None:
        if isinstance(model, ConditionalRBM):
            raise TypeError(
                "model: expected a machine without input, got ConditionalRBM, which PersistentModule trains"
            )
        check_counts(num_chains=num_chains, num_replicas=num_replicas)
        inference = inference or MatchedInference(mean_field.marginals)
        super().__init__(model, num_steps=num_steps, inference=inference, **kwargs)
        self.num_chains = num_chains
        self.num_replicas = num_replicas
        self.base: Float[Tensor, "1 visible"] | None = None

    def check_labels(self, part: InstanceDataset) -> None:
        """Raise ValueError if labels are missing."""
        check_labels("training labels", part.labels)

    def on_fit_start(self) -> None:
        """Set the first states of the chains and the visible biases, or resume from a checkpoint."""
        starts_anew = self.chains is None
        # Check the labels only once: checking every batch would take a tenth of a step's time.
        check_labels("labels", self._training_labels())
        super().on_fit_start()
        labels = self._training_labels()
        frequencies = (labels.sum(0, keepdim=True) + 1) / (len(labels) + 2)
        self.base = frequencies.logit().to(self.model.visible_bias)
        if starts_anew and not self.model.visible_bias.any():
            with torch.no_grad():
                self.model.visible_bias.copy_(self.base[0])

    def first_chains(self) -> Tensor:
        """Draw training instances at random as first states; the first temperature's rows come first."""
        labels = self._training_labels()
        generator = torch.Generator().manual_seed(self.global_rank)
        rows = torch.randint(
            len(labels), (self.num_replicas * self.num_chains,), generator=generator, device="cpu"
        )
        return labels[rows].to(uint8)

    @one_door
    def training_step(self, batch: Batch, batch_idx: int) -> Any:
        """Return the objective as ``loss``, and the batch's mean of P(h = 1 | v) as ``hidden_mean``."""
        assert self.chains is not None
        energy = self.model(batch.features[:1])
        energy.check_values()
        chains = self.chains.to(energy.dtype)
        # Compute one matrix product for both terms of the loss, the chains' next step and centred gradients.
        states = torch.cat([batch.labels, chains[-self.num_chains :]])
        fields = energy.hidden_fields(states)
        free = -(states @ energy.visible[0]) - softplus(fields).sum(-1)
        count = len(batch.labels)
        of_labels, of_chains = torch.sigmoid(fields.detach()).split([count, self.num_chains])
        moved = self._gibbs(energy, of_chains) if self.num_replicas == 1 else self._tempered(energy, chains)
        self.chains = moved.to(uint8)
        losses = free[:count] - free[count:].mean()
        return {"loss": self.objective(losses, batch_idx), "status": None, "hidden_mean": of_labels.mean(0)}

    @torch.no_grad()
    def _gibbs(self, energy: BipartiteEnergy, of_chains: Tensor) -> Tensor:
        chains = draw(energy.visible_given_hidden(draw(of_chains)))
        for _ in range(self.num_steps - 1):
            hidden = draw(energy.hidden_given_visible(chains))
            chains = draw(energy.visible_given_hidden(hidden))
        return chains

    @torch.no_grad()
    def _tempered(self, energy: BipartiteEnergy, chains: Tensor) -> Tensor:
        path = path_from_base(energy, self.num_replicas - 1, self.base)
        ladder = Ladder.of([*path, energy], self.num_chains)
        visible = chains.unflatten(0, (self.num_replicas, self.num_chains))
        fields = ladder.hidden_fields(visible)
        for number in range(self.num_steps):
            visible = ladder.gibbs_step(fields, None)
            fields = ladder.hidden_fields(visible)
            first = (self.global_step * self.num_steps + number) % 2
            visible, fields, _ = ladder.exchange(visible, fields, first, None)
        return visible.flatten(0, 1)

    def _training_labels(self) -> Tensor:
        return self.trainer.datamodule.train_set.labels  # pyright: ignore[reportAttributeAccessIssue]
