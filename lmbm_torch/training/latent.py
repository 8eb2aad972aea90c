"""Training of models with hidden units, by every method that belief_propagation_in_crbms_2017 compares."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import Tensor, uint8

from lmbm_torch.checks import check_count
from lmbm_torch.data.batches import Batch, InstanceDataset
from lmbm_torch.energies import BipartiteEnergy
from lmbm_torch.inference.messages.matching import MatchedInference
from lmbm_torch.inference.results import Status
from lmbm_torch.losses.contrastive import persistent_contrastive_divergence
from lmbm_torch.losses.methods import METHODS
from lmbm_torch.models import RestrictedBoltzmannMachine
from lmbm_torch.persistence.archives import pack, unpack
from lmbm_torch.prediction.decoders import Decoder
from lmbm_torch.training.base import Penalty
from lmbm_torch.training.gradient import GradientModule
from lmbm_torch.training.penalties import none
from lmbm_torch.verdicts import one_door

LatentLoss = Callable[..., Any]
"""(energy, labels, inference=…) → ``(batch,)``."""


class LatentModule(GradientModule):
    """Minimises penalty + C Σ_l loss_l of a restricted Boltzmann machine, with one inference for all.

    Every loss is called as ``loss(energy, labels, inference=…)``, and predictions are made by the same
    inference. The share of training instances on which the loss's inference converged is logged as
    ``train/converged``. Checkpoints hold the inference and its number of iterations.

    Args:
        model: the model to train, with its encoder if it has one.
        loss: takes ``inference``, which is called as ``inference(energy, known=None)``, such as
            :func:`~lmbm_torch.losses.bethe_negative_log_likelihood`. How missing labels (NaN) count is up to
            the loss: likelihoods and contrastive losses treat them as hidden units.
        inference: for the loss and for prediction.
        decoder: energy → decoding, in the place of ``inference``. A :class:`MatchedInference` that differs
            from ``inference`` warns.
        C: the weight of the losses.
        penalty: by default none, since early stopping serves better (paper, footnote 3).
        kwargs: see :class:`GradientModule`.

    Raises:
        TypeError: a model without hidden units; when trained, a loss that takes no ``inference``.
        ValueError: a loss with an inference bound to it; what :class:`GradientModule` refuses.
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
            raise ValueError("loss: expected one without an inference bound to it, which this module passes")
        if isinstance(decoder, MatchedInference):
            # The training's own follows its number of iterations.
            decoder = None if decoder.check_match(inference) else decoder.decode
        decoder = decoder or inference.decode
        super().__init__(model, loss, C=C, penalty=penalty, decoder=decoder, **kwargs)
        self.inference = inference
        self._last_objective: float | None = None

    def check_labels(self, part: InstanceDataset) -> None:
        """Take all: missing ones are further hidden units."""

    @one_door
    def training_step(self, batch: Batch, batch_idx: int) -> Any:
        """The objective as ``loss``, and the ``status`` of the inference's last call, None without one."""
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
        """The loss of each example, ``(batch,)``."""
        try:
            return self.loss(self.model(batch.features), batch.labels, inference=inference)
        except TypeError as error:
            error.add_note("The loss of a LatentModule is called as loss(energy, labels, inference=…).")
            raise

    def report(self) -> dict[str, float]:
        """The last epoch's objective, averaged while training: another pass would cost as much again."""
        last = self.trainer.callback_metrics.get("train/objective", self._last_objective)
        return {} if last is None else {"fit/objective": float(last)}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the inference and the last epoch's objective, which a run that was complete reports again."""
        super().on_save_checkpoint(checkpoint)
        checkpoint["latent"] = pack((self.inference, self.report().get("fit/objective")))

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take over the checkpoint's number of iterations; warn if its inference is another one."""
        super().on_load_checkpoint(checkpoint)
        trained, self._last_objective = unpack(checkpoint["latent"])
        self.inference.num_iters = trained.num_iters
        self.inference.check_match(trained)


class PersistentModule(LatentModule):
    """Persistent contrastive divergence: the chain of each training instance continues from its last state.

    Chains start at the labels (0 for a missing one), are kept on the model's device by the index of their
    instance, and are part of the checkpoint. Each of several processes has chains of its own, one for every
    instance, and moves those of the instances that an epoch gives it; a checkpoint holds all processes'.

    Args:
        num_steps: steps of Gibbs sampling for each batch.
        kwargs: see :class:`LatentModule`, without ``loss``.

    Raises:
        ValueError: what :class:`LatentModule` refuses; no step.
    """

    def __init__(self, model: RestrictedBoltzmannMachine, *, num_steps: int = 1, **kwargs: Any) -> None:
        check_count("num_steps", num_steps)
        super().__init__(model, persistent_contrastive_divergence, **kwargs)
        self.num_steps = num_steps
        self.chains: Tensor | None = None

    def on_fit_start(self) -> None:
        """Start this process's chains, or go on from those of a checkpoint."""
        if self.chains is None:
            self.chains = self.first_chains()
        elif self.chains.ndim == 3:
            # Further processes than the checkpoint's share its chains, and then part from each other.
            self.chains = self.chains[self.global_rank % len(self.chains)]
        assert self.chains is not None
        self.chains = self.chains.to(self.device)

    def first_chains(self) -> Tensor:
        """Where the chains start: {0, 1} in uint8, one row for each."""
        loader: Any = self.trainer.datamodule.train_set  # pyright: ignore[reportAttributeAccessIssue]
        return loader.labels.nan_to_num().to(uint8)

    def batch_losses(self, batch: Batch, inference: Callable[..., Any]) -> Tensor:
        """F(v) − F(v⁻) of each example; its chain moves to v⁻."""
        assert self.chains is not None
        losses, reached = self.loss(
            self.model(batch.features), batch.labels, self.chains[batch.index], self.num_steps
        )
        self.chains[batch.index] = reached.to(uint8)
        return losses

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the chains, of several processes ``(processes, instances, visible)``."""
        super().on_save_checkpoint(checkpoint)
        assert self.chains is not None
        chains = self.chains if self.trainer.world_size == 1 else self.all_gather(self.chains)
        checkpoint["chains"] = chains.cpu()  # pyright: ignore[reportAttributeAccessIssue]

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take over the checkpoint's chains."""
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
    """The module that trains a model by one of :data:`~lmbm_torch.losses.methods.METHODS`.

    Args:
        model: the model to train.
        method: its name.
        inference: settings of :class:`~lmbm_torch.inference.messages.matching.MatchedInference` but its
            routine.
        num_steps: steps of Gibbs sampling; by default the method's.
        loss: in the place of the method's loss, with the same inference.
        kwargs: see :class:`LatentModule`.

    Raises:
        ValueError: no such method; ``num_steps`` or ``loss`` for a method that takes none; what
            :class:`LatentModule` refuses.
    """
    if method not in METHODS:
        raise ValueError(f"method: expected one of {[*METHODS]}, got {method!r}")
    chosen = METHODS[method]
    if num_steps is not None and (chosen.num_steps is None or loss is not None):
        raise ValueError(f"num_steps: expected none, since {method} with this loss has none, got {num_steps}")
    steps = chosen.num_steps if num_steps is None else num_steps
    kwargs["inference"] = MatchedInference(chosen.routine, **(inference or {}))
    if chosen.loss is persistent_contrastive_divergence:
        if loss is not None:
            raise ValueError(f"loss: expected none for {method}, which has its own, got {loss}")
        assert steps is not None
        return PersistentModule(model, num_steps=steps, **kwargs)
    if loss is None:
        loss = chosen.loss if steps is None else partial(chosen.loss, num_steps=steps)
    return LatentModule(model, loss, **kwargs)
