"""Gradients of restricted Boltzmann machines in centred coordinates: units minus means.

Units and inputs with a mean besides 0 correlate the gradients of weights and biases: a step in weights
undoes a part of a step in biases. In x − E x, v − E v and h − E h the same model is far better conditioned
(Montavon and Müller, "Deep Boltzmann machines and the centering trick", 2012).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from lmbm_torch.checks import check_finite, check_shape
from lmbm_torch.data.batches import Batch
from lmbm_torch.energies import BipartiteEnergy
from lmbm_torch.extras import naming_extras
from lmbm_torch.models import ConditionalRBM, RestrictedBoltzmannMachine
from lmbm_torch.shapes import Float
from lmbm_torch.training.latent import LatentModule

with naming_extras():
    from lightning.pytorch import Callback, LightningModule, Trainer


# Number of training instances whose features are summed at once.
INSTANCES_AT_ONCE = 1000


class CentredGradients(Callback):
    """A callback that changes gradients so that descent makes the steps of centred parameters.

    The centred biases are b′ = visible_bias + visible_weight · E x + coupling · E h and c′ = hidden_bias +
    hidden_weight · E x + couplingᵀ · E v. Model, objective and stationary points stay the same. While E h
    is constant, stochastic gradient descent, with or without momentum, takes these steps exactly; optimizers
    that rescale single gradients rescale the centred gradients.

    E h is the running mean of P(h = 1 | v, x) over the batches, starting at 0. Checkpoints hold E h. If the
    training step returns ``hidden_mean`` of the batch, this callback saves a matrix product.

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
        # By a hook: another forward pass would change encoders with dropout or batch normalisation.
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
        # The mean over the processes, which have different examples and must make the same step.
        self.hidden_mean.lerp_(trainer.strategy.reduce(hidden, reduce_op="mean"), self.hidden_rate)

    def state_dict(self) -> dict[str, Any]:
        """Return the running mean E h, and E x, which a trained encoder would not give again."""
        return {"hidden_mean": self.hidden_mean, "feature_mean": self.feature_mean}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load E h of a checkpoint, and E x if no mean of features is given."""
        self.hidden_mean = state_dict["hidden_mean"]
        if self.feature_mean is None:
            self.feature_mean = state_dict.get("feature_mean")


def _centre(*trades: tuple[Tensor | None, Tensor | None, Tensor]) -> None:
    """Centre gradients of biases (units,) and of weights (units, inputs), given the means of inputs.

    If the biases or the weights are frozen, the gradient of the others stays unchanged.
    """
    traded = [
        (by_bias, by_weight, mean)
        for by_bias, by_weight, mean in trades
        if by_bias is not None and by_weight is not None
    ]
    for by_bias, by_weight, mean in traded:
        by_weight.addr_(by_bias, mean, alpha=-1)
    # Biases are changed after all weights, since visible and hidden units share the coupling.
    for by_bias, by_weight, mean in traded:
        by_bias.addmv_(by_weight, mean, alpha=-1)


@torch.no_grad()
def _feature_mean(trainer: Trainer, model: ConditionalRBM) -> Float[Tensor, " features"]:
    """Return the mean of the model's inputs over the training part, in double precision."""
    part: Any = trainer.datamodule.train_set  # pyright: ignore[reportAttributeAccessIssue]
    total, mode = torch.zeros((), dtype=torch.float64, device="cpu"), model.training
    # In evaluation mode, for dropout and batch normalisation.
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
