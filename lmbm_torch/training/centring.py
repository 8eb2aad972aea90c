"""Gradients of restricted Boltzmann machines whose inputs are seen as deviations from their means.

Inputs whose mean is not 0 tie weights to biases: a step in one undoes what the other has learned. Written in
x − E x and v − E v the same machine is far better conditioned (Montavon and Müller, "Deep Boltzmann machines
and the centering trick", 2012).
"""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from lmbm_torch.checks import check_finite, check_shape
from lmbm_torch.models import ConditionalRBM
from lmbm_torch.shapes import Float
from lmbm_torch.training.latent import LatentModule


class CentredGradients(Callback):
    """Descent takes the steps that it would take in the parameters of the centred machine.

    With biases b′ = visible_bias + visible_weight · E x and c′ = hidden_bias + hidden_weight · E x +
    couplingᵀ · E v in the place of the machine's own. Model and objective stay what they are, and so do the
    places where the gradient is 0. Plain stochastic gradients, with or without momentum, take these steps
    exactly; optimizers that rescale single gradients are given the same gradients, to their own ends.

    Args:
        feature_mean: E x over the training data, (features,); with an encoder, of what it gives.
        label_mean: E v, (labels,).

    Raises:
        ValueError: means of another shape than the model's, when training starts; NaN or infinity in them.
    """

    def __init__(
        self, feature_mean: Float[Tensor, " features"], label_mean: Float[Tensor, " labels"]
    ) -> None:
        check_finite("feature_mean", feature_mean)
        check_finite("label_mean", label_mean)
        self.feature_mean = feature_mean
        self.label_mean = label_mean

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        model = _machine(pl_module)
        check_shape("feature_mean", self.feature_mean, model.num_features)
        check_shape("label_mean", self.label_mean, model.num_visible)
        self.feature_mean = self.feature_mean.to(model.coupling)
        self.label_mean = self.label_mean.to(model.coupling)

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        model = _machine(pl_module)
        _centre(model.visible_bias.grad, (model.visible_weight.grad, self.feature_mean))
        by_coupling = None if model.coupling.grad is None else model.coupling.grad.mT
        by_features = model.hidden_weight.grad, self.feature_mean
        _centre(model.hidden_bias.grad, by_features, (by_coupling, self.label_mean))


def _centre(by_bias: Tensor | None, *weighted: tuple[Tensor | None, Tensor]) -> None:
    """Change the gradients by biases (units,) and by weights (units, inputs), given the inputs' means.

    Where either is held fixed there is nothing to trade, and its gradient stays.
    """
    if by_bias is None:
        return
    given = by_bias.clone()
    for by_weight, mean in weighted:
        if by_weight is not None:
            by_weight.addr_(given, mean, alpha=-1)
            by_bias.addmv_(by_weight, mean, alpha=-1)


def _machine(module: LightningModule) -> ConditionalRBM:
    assert isinstance(module, LatentModule)
    assert isinstance(module.model, ConditionalRBM)
    return module.model
