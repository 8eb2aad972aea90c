"""Training of models with hidden units, by every way that belief_propagation_in_crbms_2017 compares."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from lmbm_torch.checks import check_count
from lmbm_torch.data.batches import Batch
from lmbm_torch.inference.matching import MatchedInference
from lmbm_torch.losses import contrastive_divergence, persistent_contrastive_divergence
from lmbm_torch.models import RestrictedBoltzmannMachine
from lmbm_torch.prediction.saved import RECORD
from lmbm_torch.training.gradient import GradientModule
from lmbm_torch.training.penalties import none
from lmbm_torch.training.structured import Decoder, Penalty

# What losses call the inference that they are given.
_ASKED = ("marginals", "max_marginals", "decoder")


class LatentModule(GradientModule):
    """Minimises penalty + C Σ_l loss_l of a restricted Boltzmann machine, with one inference in all.

    A loss that asks for ``marginals``, ``max_marginals`` or ``decoder`` is given ``inference``, unless it
    comes with one of its own, and predictions are made by it. The share of training instances on which the
    loss's inference converged is logged as ``train/converged``. Checkpoints carry the inference and its
    iterations.

    Args:
        model: what is trained; an encoder in it is trained along.
        loss: (energy, labels) → ``(batch,)``, such as
            :func:`~lmbm_torch.losses.bethe_negative_log_likelihood`. Missing labels (NaN) are its affair:
            likelihoods and contrastive losses treat them as hidden.
        inference: for the loss and for prediction.
        decoder: energy → decoding, instead of ``inference``'s. A :class:`MatchedInference` that differs from
            ``inference`` warns.
        C: the weight of the losses.
        penalty: by default none, since early stopping serves better (paper, footnote 3).
        kwargs: of :class:`GradientModule`.

    Raises:
        TypeError: a model without hidden units.
        ValueError: as :class:`GradientModule`.
    """

    def __init__(
        self,
        model: RestrictedBoltzmannMachine,
        loss: Callable[..., Tensor],
        *,
        inference: MatchedInference,
        decoder: MatchedInference | Decoder | None = None,
        C: float = 1.0,
        penalty: Penalty = none,
        **kwargs: Any,
    ) -> None:
        if not isinstance(model, RestrictedBoltzmannMachine):
            raise TypeError(f"model: expected a restricted Boltzmann machine, got {type(model).__name__}")
        if isinstance(decoder, MatchedInference):
            # The same one follows the training's count of iterations.
            decoder = None if decoder.check_match(inference.record()) else decoder.decode
        own = loss.keywords if isinstance(loss, partial) else {}
        asked = [name for name in _ASKED if name in inspect.signature(loss).parameters and name not in own]
        super().__init__(
            model,
            partial(loss, **dict.fromkeys(asked, inference)),
            C=C,
            penalty=penalty,
            decoder=decoder or inference.decode,
            **kwargs,
        )
        self.inference = inference

    def training_step(self, batch: Batch, batch_idx: int) -> Any:
        """As :class:`GradientModule`; what the loss's inference says of itself is returned as ``status``."""
        self.inference.status = None
        objective = super().training_step(batch, batch_idx)
        status = self.inference.status
        if status is not None:
            converged = status.converged.float().mean()
            self.log(
                "train/converged",
                converged,
                on_step=False,
                on_epoch=True,
                batch_size=len(batch.labels),
                sync_dist=True,
            )
        return {"loss": objective, "status": status}

    def _report(self) -> dict[str, float]:
        """The last epoch's objective, taken while learning: another pass would cost as much as an epoch."""
        last = self.trainer.callback_metrics.get("train/objective")
        return {} if last is None else {"fit/objective": float(last)}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the inference."""
        super().on_save_checkpoint(checkpoint)
        checkpoint[RECORD]["inference"] = self.inference.record()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take the checkpoint's count of iterations; warn where the inference is another one."""
        super().on_load_checkpoint(checkpoint)
        trained = checkpoint[RECORD]["inference"]
        self.inference.num_iters = trained["num_iters"]
        self.inference.check_match(trained)


class PersistentModule(LatentModule):
    """Persistent contrastive divergence: each training instance's chains go on where they were last left.

    Chains start at the labels (0 for a missing one), are kept by the instances' index, and are in the
    checkpoint.

    Args:
        num_steps: of Gibbs sampling, for each batch.
        kwargs: of :class:`LatentModule` but ``loss``.

    Raises:
        ValueError: as :class:`LatentModule`, no step; when fitted, more than one process.
    """

    def __init__(self, model: RestrictedBoltzmannMachine, *, num_steps: int = 1, **kwargs: Any) -> None:
        check_count("num_steps", num_steps)
        super().__init__(model, partial(contrastive_divergence, num_steps=num_steps), **kwargs)
        self.num_steps = num_steps
        self.chains: Tensor | None = None

    def on_fit_start(self) -> None:
        """Start the chains, unless a checkpoint brought them.

        Raises:
            ValueError: more than one process, among which an instance's chain would get lost.
        """
        if self.trainer.world_size > 1:
            raise ValueError(
                f"devices: expected one process, got {self.trainer.world_size}: chains persist within one"
            )
        if self.chains is None:
            loader: Any = self.trainer.datamodule.train_set  # pyright: ignore[reportAttributeAccessIssue]
            self.chains = loader.labels.nan_to_num().to(torch.uint8)

    def batch_losses(self, batch: Batch) -> Tensor:
        """F(v) − F(v⁻) of each example; its chain moves on to v⁻."""
        assert self.chains is not None
        rows = batch.index.to(self.chains.device)
        losses, reached = persistent_contrastive_divergence(
            self.model(batch.features),
            batch.labels,
            self.chains[rows].to(batch.labels.device),
            self.num_steps,
        )
        self.chains[rows] = reached.to(self.chains)
        return losses

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the chains."""
        super().on_save_checkpoint(checkpoint)
        checkpoint["chains"] = self.chains

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take up the checkpoint's chains."""
        super().on_load_checkpoint(checkpoint)
        self.chains = checkpoint["chains"]
