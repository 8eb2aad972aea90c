"""Callbacks for restricted Boltzmann machines: schedules, metrics, figures, likelihoods and centring.

If units and inputs have means other than 0, the gradients of weights and biases are correlated: a step in
weights undoes a part of a step in biases. In centred coordinates x − E x, v − E v and h − E h the same model
is far better conditioned (Montavon and Müller, "Deep Boltzmann machines and the centering trick", 2012).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from lmbm_torch.checks import check_counts, check_finite, check_shape
from lmbm_torch.data.batches import Batch
from lmbm_torch.energies import BipartiteEnergy
from lmbm_torch.extras import naming_extras
from lmbm_torch.inference.common.results import Decoding, LogLikelihoodBounds
from lmbm_torch.inference.sampling import log_likelihood
from lmbm_torch.inference.sampling.gibbs import draw
from lmbm_torch.metrics.classes import ChangedPixelError
from lmbm_torch.models import ConditionalRBM, RestrictedBoltzmannMachine
from lmbm_torch.shapes import Float
from lmbm_torch.training.callbacks.display import EvaluationCallback, log_figure, writers
from lmbm_torch.training.latent import LatentModule
from lmbm_torch.training.parallel_chains import ParallelChainsModule
from lmbm_torch.viz.images import image_grid, image_rows, weight_filters

with naming_extras():
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.callbacks import ModelCheckpoint


# Number of training instances whose features are summed at once.
INSTANCES_AT_ONCE = 1000


class IterationSchedule(Callback):
    """A callback that sets the number of inference iterations to ``first`` + epoch, counted from 0.

    Belief propagation takes longer to converge as parameters grow (belief_propagation_in_crbms_2017,
    section 6, with ``first`` = 7).

    Raises:
        ValueError: ``first`` is below 1.
    """

    def __init__(self, first: int = 7) -> None:
        check_counts(first=first)
        self.first = first

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, LatentModule)
        pl_module.inference.num_iters = self.first + trainer.current_epoch


class BestWeights(Callback):
    """A callback to restore the best epoch's weights and number of iterations after a fit.

    So the test uses the weights that early stopping chose. The checkpoint comes from the trainer's first
    ``ModelCheckpoint`` with a ``monitor``; without such a callback, the model keeps the last weights.
    """

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        kept = (each for each in trainer.checkpoint_callbacks if isinstance(each, ModelCheckpoint))
        best = next((each.best_model_path for each in kept if each.monitor is not None), None)
        if best is None:
            return
        checkpoint = torch.load(Path(best), map_location=pl_module.device, weights_only=True)
        pl_module.load_state_dict(checkpoint["state_dict"])
        pl_module.on_load_checkpoint(checkpoint)


class ChangedPixels(EvaluationCallback):
    """A callback that logs the error on pixels whose feature is corrupted, ``…/changed_pixel_error``."""

    def __init__(self) -> None:
        self._error = ChangedPixelError()

    def gather(self, decoding: Decoding, batch: Batch) -> None:
        self._error.update(decoding.labels.cpu(), batch.labels.long().cpu(), batch.features.long().cpu())

    def show(self, trainer: Trainer, pl_module: LightningModule, part: str) -> None:
        pl_module.log(f"{part}/changed_pixel_error", self._error.compute(), sync_dist=True)
        self._error.reset()


class ImageFigure(Callback):
    """The base class of callbacks that show ``count`` images of the same size."""

    def __init__(self, height: int = 28, width: int = 28, count: int = 7) -> None:
        check_counts(height=height, width=width, count=count)
        self.shape = height, width
        self.count = count


class RestoredImages(ImageFigure):
    """A callback that logs clean, corrupted and predicted images as ``val/images`` (paper, Figure 2).

    Args:
        height, width: the size of the images.
        count: the number of images to show, from the start of the validation part.

    Raises:
        ValueError: a number is below 1.
    """

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int, *_: Any
    ) -> None:
        if batch_idx or trainer.sanity_checking:
            return
        rows = {"clean": batch.labels, "corrupted": batch.features, "predicted": outputs.labels}
        shown = {name: images[: self.count].unflatten(1, self.shape) for name, images in rows.items()}
        log_figure(trainer, "val/images", trainer.current_epoch, image_rows, shown)


class WeightFilters(ImageFigure):
    """A callback that logs ``fit/filters`` after a fit: the couplings of each hidden unit with the pixels.

    Args:
        height, width: the size of the images.
        count: the number of hidden units to show; units with the largest weights are chosen.

    Raises:
        ValueError: a number is below 1.
    """

    def __init__(self, height: int = 28, width: int = 28, count: int = 64) -> None:
        super().__init__(height, width, count)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        model = pl_module.model
        assert isinstance(model, RestrictedBoltzmannMachine)
        coupling = model.coupling.detach()
        largest = coupling.square().sum(0).argsort(descending=True)[: self.count]
        filters = coupling[:, largest].T.unflatten(1, self.shape)
        log_figure(trainer, "fit/filters", trainer.current_epoch, weight_filters, filters)


class MessageConvergence(Callback):
    """A callback that logs a histogram of iterations of inference, ``train/iterations``, after each epoch.

    An instance that does not converge is shown with the largest number of iterations; ``train/converged`` is
    the share of instances that converge.
    """

    def __init__(self) -> None:
        self._num_iters: list[Tensor] = []

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, *_: Any) -> None:
        if outputs["status"] is not None:
            self._num_iters.append(outputs["status"].num_iters.cpu())

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._num_iters:
            for writer in writers(trainer):
                writer.add_histogram("train/iterations", torch.cat(self._num_iters), trainer.current_epoch)
        self._num_iters.clear()


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
        settings: arguments of :func:`~lmbm_torch.inference.sampling.log_likelihood.bounds`, for example
            ``num_temperatures``.

    Raises:
        ValueError: ``every`` is below 1; in training, the model has input.
    """

    # Names of the metrics that this callback logs even without a validation part.
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
        """Compute the upper and the lower bound on the log-likelihood of the current model."""
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
        height, width: the size of the images.
        count: the number of chains.
        every: the interval in epochs.

    Raises:
        ValueError: a number is below 1.
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


with naming_extras():
    from lightning.pytorch import Callback, LightningModule, Trainer


class CentredGradients(Callback):
    """A callback that changes gradients, so that steps are steps of descent in centred parameters.

    The centred biases are b′ = visible_bias + visible_weight · E x + coupling · E h and c′ = hidden_bias +
    hidden_weight · E x + couplingᵀ · E v. Model, objective and stationary points stay the same. While E h
    is constant, stochastic gradient descent, with or without momentum, takes exactly the centred steps;
    optimizers that rescale each gradient, such as Adam, rescale the centred gradients.

    E h is the running mean of P(h = 1 | v, x) over the batches, starting at 0. Checkpoints hold E h. If the
    training step returns ``hidden_mean`` of the batch, one matrix product less is needed.

    Args:
        feature_mean: E x over the training data, (features,), or with an encoder the mean of the encoder's
            outputs; by default over the training part, by the encoder at the start of training. None for a
            model without input.
        label_mean: E v, (labels,), also used for missing labels; by default the mean of the training labels.
        hidden_rate: the weight of a batch in the running mean E h; with 0 the hidden units are not centred.

    Raises:
        ValueError: ``hidden_rate`` is outside [0, 1]; at the start of training, a mean has another shape than
            the model's units, or NaN or infinity, or there is a mean of features for a model without input.
    """

    def __init__(
        self,
        feature_mean: Float[Tensor, " features"] | None = None,
        label_mean: Float[Tensor, " labels"] | None = None,
        hidden_rate: float = 0.04,
    ) -> None:
        for name, mean in (("feature_mean", feature_mean), ("label_mean", label_mean)):
            if mean is not None:
                check_finite(name, mean)
        if not 0 <= hidden_rate <= 1:
            raise ValueError(f"hidden_rate: expected a number from 0 to 1, got {hidden_rate}")
        self.feature_mean = feature_mean
        self.label_mean = label_mean
        self.hidden_rate = hidden_rate
        self.hidden_mean: Float[Tensor, " hidden"] | None = None
        self._hook: RemovableHandle | None = None
        self._seen: BipartiteEnergy | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        model = _machine(pl_module)
        if not isinstance(model, ConditionalRBM):
            if self.feature_mean is not None:
                raise ValueError(
                    "feature_mean: expected None for a machine without input, got a mean for a "
                    f"{type(model).__name__}"
                )
        else:
            if self.feature_mean is None:
                self.feature_mean = _feature_mean(trainer, model)
            check_shape("feature_mean", self.feature_mean, model.num_features)
            self.feature_mean = self.feature_mean.to(model.coupling)
        if self.label_mean is None:
            labels: Tensor = trainer.datamodule.train_set.labels  # pyright: ignore[reportAttributeAccessIssue]
            self.label_mean = labels.nanmean(0)
        check_shape("label_mean", self.label_mean, model.num_labels)
        self.label_mean = self.label_mean.to(model.coupling)
        hidden_mean = (
            model.coupling.new_zeros(model.num_hidden) if self.hidden_mean is None else self.hidden_mean
        )
        self.hidden_mean = hidden_mean.to(model.coupling)
        # Read the energy by a hook: a second forward pass would change dropout and batch normalisation.
        self._hook = model.register_forward_hook(self._see)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._forget()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._forget()

    def _forget(self) -> None:
        if self._hook is not None:
            self._hook.remove()
        self._hook = self._seen = None

    def _see(self, model: RestrictedBoltzmannMachine, inputs: Any, energy: BipartiteEnergy) -> None:
        if model.training:
            self._seen = energy

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        assert self.hidden_mean is not None
        model = _machine(pl_module)
        by_coupling = model.coupling.grad
        transposed = None if by_coupling is None else by_coupling.mT
        by_visible, by_hidden = model.visible_bias.grad, model.hidden_bias.grad
        assert self.label_mean is not None
        of_visible = [(by_visible, by_coupling, self.hidden_mean)]
        of_hidden = [(by_hidden, transposed, self.label_mean)]
        if isinstance(model, ConditionalRBM):
            assert self.feature_mean is not None
            of_visible.insert(0, (by_visible, model.visible_weight.grad, self.feature_mean))
            of_hidden.insert(0, (by_hidden, model.hidden_weight.grad, self.feature_mean))
        _centre(*of_visible, *of_hidden)

    @torch.no_grad()
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        assert self.hidden_mean is not None
        if "hidden_mean" in outputs:
            hidden = outputs["hidden_mean"]
        else:
            assert self._seen is not None
            assert self.label_mean is not None
            labels = torch.where(batch.labels.isnan(), self.label_mean, batch.labels)
            hidden = self._seen.hidden_given_visible(labels).mean(0)
        # Average over all processes, which have different examples but must make the same step.
        self.hidden_mean.lerp_(trainer.strategy.reduce(hidden, reduce_op="mean"), self.hidden_rate)

    def state_dict(self) -> dict[str, Any]:
        """Return the running mean E h, and E x, which cannot be computed again after training an encoder."""
        return {"hidden_mean": self.hidden_mean, "feature_mean": self.feature_mean}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load E h of a checkpoint, and E x if no mean of features is given."""
        self.hidden_mean = state_dict["hidden_mean"]
        if self.feature_mean is None:
            self.feature_mean = state_dict.get("feature_mean")


def _centre(*trades: tuple[Tensor | None, Tensor | None, Tensor]) -> None:
    """Centre gradients of biases (units,) and weights (units, inputs) in place, given the inputs' means.

    If biases or weights are frozen (None), the other gradient stays unchanged.
    """
    traded = [
        (by_bias, by_weight, mean)
        for by_bias, by_weight, mean in trades
        if by_bias is not None and by_weight is not None
    ]
    for by_bias, by_weight, mean in traded:
        by_weight.addr_(by_bias, mean, alpha=-1)
    # Change biases after all weights: the gradient of the coupling, used for both, must be centred twice.
    for by_bias, by_weight, mean in traded:
        by_bias.addmv_(by_weight, mean, alpha=-1)


@torch.no_grad()
def _feature_mean(trainer: Trainer, model: ConditionalRBM) -> Float[Tensor, " features"]:
    """Return the mean of the model's inputs over the training part, in double precision."""
    part: Any = trainer.datamodule.train_set  # pyright: ignore[reportAttributeAccessIssue]
    total, mode = torch.zeros((), dtype=torch.float64, device="cpu"), model.training
    # Switch to evaluation mode, without dropout and without updates of batch normalisation.
    model.eval()
    for first in range(0, len(part), INSTANCES_AT_ONCE):
        inputs = part.__getitems__(range(first, min(first + INSTANCES_AT_ONCE, len(part)))).features
        outputs = model.features(inputs.to(model.coupling.device))
        dense = outputs.to_dense() if outputs.layout == torch.sparse_csr else outputs
        total = total + dense.double().sum(0).cpu()
    model.train(mode)
    return total / len(part)


def _machine(module: LightningModule) -> RestrictedBoltzmannMachine:
    assert isinstance(module, LatentModule)
    assert isinstance(module.model, RestrictedBoltzmannMachine)
    return module.model
