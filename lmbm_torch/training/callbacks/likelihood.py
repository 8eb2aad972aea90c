"""Callbacks for restricted Boltzmann machines without input: bounds of log-likelihoods, and samples."""

from __future__ import annotations

from typing import Any

import torch

from lmbm_torch.checks import check_counts
from lmbm_torch.extras import naming_extras
from lmbm_torch.inference.common.results import LogLikelihoodBounds
from lmbm_torch.inference.sampling import log_likelihood
from lmbm_torch.inference.sampling.gibbs import draw
from lmbm_torch.models import ConditionalRBM, RestrictedBoltzmannMachine
from lmbm_torch.training.callbacks.display import log_figure
from lmbm_torch.training.callbacks.latent import ImageFigure
from lmbm_torch.training.parallel_chains import ParallelChainsModule
from lmbm_torch.viz import image_grid

with naming_extras():
    from lightning.pytorch import Callback, LightningModule, Trainer


class LogLikelihood(Callback):
    """A callback that logs the mean log-likelihood of the validation part, else of the training part.

    After the first epoch and then at intervals, it logs ``val/log_likelihood_upper`` by forward annealing and
    ``val/log_likelihood_lower`` by reverse annealing, in nats, each with a standard error (``…_upper_error``,
    ``…_lower_error``) and an effective number of samples (``…_upper_size``, ``…_lower_size``). The random
    numbers are the same each time. Chains start at the frequencies of the training labels.

    Args:
        every: the interval in epochs.
        seed: the seed of the estimates.
        settings: arguments of :func:`~lmbm_torch.inference.sampling.log_likelihood.bounds`, like
            ``num_temperatures``.

    Raises:
        ValueError: ``every`` is below 1; in training, the model has input.
    """

    # Values that are logged even without a validation part.
    logged = "val/log_likelihood_upper", "val/log_likelihood_lower"

    def __init__(self, every: int = 10, seed: int = 0, **settings: Any) -> None:
        check_counts(every=every)
        self.every = every
        self.seed = seed
        self.settings = settings

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.current_epoch == 0 or (trainer.current_epoch + 1) % self.every == 0:
            found = self.bounds(trainer, pl_module)
            for name, estimate in zip(self.logged, (found.upper, found.lower), strict=True):
                pl_module.log(name, estimate.value, sync_dist=True)
                pl_module.log(f"{name}_error", estimate.standard_error, sync_dist=True)
                pl_module.log(f"{name}_size", estimate.effective_size, sync_dist=True)

    def bounds(self, trainer: Trainer, pl_module: LightningModule) -> LogLikelihoodBounds:
        """Compute both bounds for the present model."""
        model = _without_input(pl_module)
        data: Any = trainer.datamodule  # pyright: ignore[reportAttributeAccessIssue]
        part = data.validation_set if len(data.validation_set) else data.train_set
        labels: Any = data.train_set.labels
        frequencies = (labels.nansum(0, keepdim=True) + 1) / (len(labels) + 2)
        bias = model.visible_bias
        return log_likelihood.bounds(
            model(bias.new_zeros(1, 0)),
            part.labels.to(bias),
            base=frequencies.logit().to(bias),
            generator=torch.Generator(bias.device).manual_seed(self.seed),
            **self.settings,
        )


class SampledImages(ImageFigure):
    """A callback that logs ``train/samples``: images of P(v = 1 | h) at the model's temperature.

    The figure is logged after the first epoch and then at intervals. Brighter pixels are more probable.

    Args:
        height, width: of the images.
        count: the number of chains.
        every: the interval in epochs.

    Raises:
        ValueError: a number below 1.
    """

    def __init__(self, height: int = 28, width: int = 28, count: int = 64, every: int = 10) -> None:
        super().__init__(height, width, count)
        check_counts(every=every)
        self.every = every

    @torch.no_grad()
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.current_epoch and (trainer.current_epoch + 1) % self.every:
            return
        model = _without_input(pl_module)
        assert isinstance(pl_module, ParallelChainsModule)
        assert pl_module.chains is not None
        energy = model(model.visible_bias.new_zeros(1, 0))
        chains = pl_module.chains[-pl_module.num_chains :][: self.count].to(energy.dtype)
        generator = torch.Generator(chains.device).manual_seed(trainer.current_epoch)
        hidden = draw(energy.hidden_given_visible(chains), generator)
        images = energy.visible_given_hidden(hidden).unflatten(1, self.shape)
        log_figure(trainer, "train/samples", trainer.current_epoch, image_grid, images)


def _without_input(module: LightningModule) -> RestrictedBoltzmannMachine:
    model = module.model
    if isinstance(model, ConditionalRBM) or not isinstance(model, RestrictedBoltzmannMachine):
        raise ValueError(f"model: expected a machine without input, got {type(model).__name__}")
    return model
