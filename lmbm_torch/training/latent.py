"""Training of models with hidden units, by all methods that belief_propagation_in_crbms_2017 compares."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import Tensor, uint8

from lmbm_torch.checks import check_count
from lmbm_torch.data.batches import Batch, InstanceDataset
from lmbm_torch.energies import BipartiteEnergy
from lmbm_torch.inference.common.results import Status
from lmbm_torch.inference.messages.matching import MatchedInference
from lmbm_torch.losses.contrastive import persistent_contrastive_divergence
from lmbm_torch.losses.latent import METHODS
from lmbm_torch.models import RestrictedBoltzmannMachine
from lmbm_torch.persistence.archives import pack, unpack
from lmbm_torch.prediction.trained import Decoder
from lmbm_torch.training.gradient import GradientModule
from lmbm_torch.training.structured import Penalty, none
from lmbm_torch.verdicts import one_door

LatentLoss = Callable[..., Any]
"""Function called as ``loss(energy, labels, inference=…)`` that returns the losses, ``(batch,)``."""


class LatentModule(GradientModule):
    """A training module for penalty + C Σ_l loss_l of a restricted Boltzmann machine.

    The loss and predictions use the same inference. The share of training instances for which the loss's
    inference converged is logged as ``train/converged``. Checkpoints hold the inference and the number of
    iterations.

    Args:
        model: the model to train, including an encoder, if any.
        loss: a function with an argument ``inference``, which it calls as ``inference(energy, known=None)``,
            for example :func:`~lmbm_torch.losses.bethe_negative_log_likelihood`. Likelihoods and contrastive
            losses treat missing labels (NaN) as hidden units.
        inference: the inference for the loss and for prediction.
        decoder: function of an energy for prediction in place of ``inference``; a :class:`MatchedInference`
            that differs from ``inference`` gives a warning.
        C: the weight of the losses.
        penalty: the penalty of the weights; by default none: early stopping is better (paper, footnote 3).
        kwargs: see :class:`GradientModule`.

    Raises:
        TypeError: the model has no hidden units; in training, the loss has no argument ``inference``.
        ValueError: ``loss`` already has an ``inference``; errors of :class:`GradientModule`.
    """

    def __init__(
        self,
        model: RestrictedBoltzmannMachine,
        loss: LatentLoss,
        *,
        inference: MatchedInference,
        decoder: MatchedInference | Decoder | None = None,
        C: float = 1.0,
        penalty: Penalty = none,
        **kwargs: Any,
    ) -> None:
        if not isinstance(model, RestrictedBoltzmannMachine):
            raise TypeError(f"model: expected a restricted Boltzmann machine, got {type(model).__name__}")
        if isinstance(loss, partial) and "inference" in loss.keywords:
            raise ValueError(
                "loss: expected a function without a fixed inference, since the module passes its own"
            )
        if isinstance(decoder, MatchedInference):
            # If both are equal, use the inference of training, whose number of iterations may change later.
            decoder = None if decoder.check_match(inference) else decoder.decode
        decoder = decoder or inference.decode
        super().__init__(model, loss, C=C, penalty=penalty, decoder=decoder, **kwargs)
        self.inference = inference
        self._last_objective: float | None = None

    def check_labels(self, part: InstanceDataset) -> None:
        """Accept missing labels, which are treated as hidden units."""

    @one_door
    def training_step(self, batch: Batch, batch_idx: int) -> Any:
        """Return the objective as ``loss``, and the ``status`` of the loss's last inference or None."""
        statuses: list[Status] = []

        def inference(energy: BipartiteEnergy, known: Tensor | None = None) -> Any:
            found = self.inference(energy, known)
            statuses.append(found.status)
            return found

        objective = self.objective(self.batch_losses(batch, inference), batch_idx)
        status = statuses[-1] if statuses else None
        if status is not None:
            own, _ = self.share(len(batch.labels), batch_idx)
            counted = status.converged[:own].float()
            self.log_means({"train/converged": counted.mean() if own else counted.sum()}, own)
        return {"loss": objective, "status": status}

    def batch_losses(self, batch: Batch, inference: Callable[..., Any]) -> Tensor:
        """Return the loss of each example, ``(batch,)``."""
        try:
            return self.loss(self.model(batch.features), batch.labels, inference=inference)
        except TypeError as error:
            error.add_note("The loss of a LatentModule is called as loss(energy, labels, inference=…).")
            raise

    def report(self) -> dict[str, float]:
        """Return the mean objective during the last epoch; a further pass over the data would take long."""
        last = self.trainer.callback_metrics.get("train/objective", self._last_objective)
        return {} if last is None else {"fit/objective": float(last)}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the inference and the last objective, which a resumed run without epochs left reports."""
        super().on_save_checkpoint(checkpoint)
        checkpoint["latent"] = pack((self.inference, self.report().get("fit/objective")))

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Load the number of iterations; warn if the checkpoint was trained with another inference."""
        super().on_load_checkpoint(checkpoint)
        trained, self._last_objective = unpack(checkpoint["latent"])
        self.inference.num_iters = trained.num_iters
        self.inference.check_match(trained)


class PersistentModule(LatentModule):
    """A training module for persistent contrastive divergence with a Markov chain for each instance.

    Chains start at the labels (0 for a missing label), continue from batch to batch, and are stored in
    checkpoints. With several processes, each process has a chain for every instance, and moves only the
    chains of the instances that it gets in an epoch; a checkpoint holds the chains of all processes.

    Args:
        num_steps: the number of steps of Gibbs sampling for each batch.
        kwargs: see :class:`LatentModule`, without ``loss``.

    Raises:
        ValueError: errors of :class:`LatentModule`; ``num_steps`` is below 1.
    """

    def __init__(self, model: RestrictedBoltzmannMachine, *, num_steps: int = 1, **kwargs: Any) -> None:
        check_count("num_steps", num_steps)
        super().__init__(model, persistent_contrastive_divergence, **kwargs)
        self.num_steps = num_steps
        self.chains: Tensor | None = None

    def on_fit_start(self) -> None:
        """Start the chains of this process, or resume the chains of a checkpoint."""
        if self.chains is None:
            self.chains = self.first_chains()
        elif self.chains.ndim == 3:
            # If there are more processes than in the checkpoint, some start with equal chains, which soon
            # differ, since processes draw different random numbers.
            self.chains = self.chains[self.global_rank % len(self.chains)]
        assert self.chains is not None
        self.chains = self.chains.to(self.device)

    def first_chains(self) -> Tensor:
        """Return the states from which the chains start, {0, 1} in uint8, a row for each chain."""
        loader: Any = self.trainer.datamodule.train_set  # pyright: ignore[reportAttributeAccessIssue]
        return loader.labels.nan_to_num().to(uint8)

    def batch_losses(self, batch: Batch, inference: Callable[..., Any]) -> Tensor:
        """Return F(v) − F(v⁻) of each example (F: free energy), and move the example's chain to v⁻."""
        assert self.chains is not None
        losses, reached = self.loss(
            self.model(batch.features), batch.labels, self.chains[batch.index], self.num_steps
        )
        self.chains[batch.index] = reached.to(uint8)
        return losses

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the chains of all processes to the checkpoint, ``(processes, instances, visible)``."""
        super().on_save_checkpoint(checkpoint)
        assert self.chains is not None
        chains = self.chains if self.trainer.world_size == 1 else self.all_gather(self.chains)
        checkpoint["chains"] = chains.cpu()  # pyright: ignore[reportAttributeAccessIssue]

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Load the chains of a checkpoint."""
        super().on_load_checkpoint(checkpoint)
        self.chains = checkpoint["chains"]


def by_method(
    model: RestrictedBoltzmannMachine,
    *,
    method: str,
    inference: Mapping[str, Any] | None = None,
    num_steps: int | None = None,
    loss: LatentLoss | None = None,
    **kwargs: Any,
) -> LatentModule:
    """Make the module that trains a model by a method of :data:`~lmbm_torch.losses.latent.METHODS`.

    Args:
        model: the model to train.
        method: the name of the method.
        inference: settings of :class:`~lmbm_torch.inference.messages.matching.MatchedInference` except the
            routine.
        num_steps: the number of steps of Gibbs sampling; by default the number of the method.
        loss: a loss in place of the method's loss, with the same inference.
        kwargs: see :class:`LatentModule`.

    Raises:
        ValueError: the method is unknown, or takes no ``num_steps`` or no ``loss``; errors of
            :class:`LatentModule`.
    """
    if method not in METHODS:
        raise ValueError(f"method: expected one of {[*METHODS]}, got {method!r}")
    chosen = METHODS[method]
    if num_steps is not None and (chosen.num_steps is None or loss is not None):
        raise ValueError(f"num_steps: expected None for {method} with this loss, got {num_steps}")
    steps = chosen.num_steps if num_steps is None else num_steps
    kwargs["inference"] = MatchedInference(chosen.routine, **(inference or {}))
    if chosen.loss is persistent_contrastive_divergence:
        if loss is not None:
            raise ValueError(f"loss: expected None for {method}, which has its own loss, got {loss}")
        assert steps is not None
        return PersistentModule(model, num_steps=steps, **kwargs)
    if loss is None:
        loss = chosen.loss if steps is None else partial(chosen.loss, num_steps=steps)
    return LatentModule(model, loss, **kwargs)
