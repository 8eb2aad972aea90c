"""A step of training, validation and prediction of every module, on any device."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lmbm_torch import losses, models
from lmbm_torch.data.batches import Batch
from lmbm_torch.inference.messages import matrix_bp, mean_field
from lmbm_torch.inference.messages.matching import MatchedInference
from lmbm_torch.training import structured as penalties
from lmbm_torch.training.gradient import GradientModule
from lmbm_torch.training.latent import LatentModule, PersistentModule

NUM_FEATURES, NUM_LABELS, BATCH = 5, 6, 3
NAMES = tuple("abcdef")
OPTIMIZER = partial(torch.optim.Adam, lr=0.01)


class Step(NamedTuple):
    """A module and the batch that it is given.

    Args:
        module: () → the module.
        is_random: its value depends on what is drawn.
    """

    module: Callable[[], Any]
    batch: Any
    is_random: bool = False


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def label_batch(missing: bool = False) -> Batch:
    labels = (drawn(BATCH, NUM_LABELS, seed=1) > 0).double()
    if missing:
        labels[0, 2] = torch.nan
    return Batch(drawn(BATCH, NUM_FEATURES), labels, torch.arange(BATCH))


def gradient(model: Callable[[], Any], loss: Any, **options: Any) -> GradientModule:
    return GradientModule(model().double(), loss, C=1.0, optimizer=OPTIMIZER, label_names=NAMES, **options)


def latent(
    module: Callable[..., LatentModule], *loss: Any, routine: Any = matrix_bp.marginals, **options: Any
) -> LatentModule:
    model = models.ConditionalRBM(
        NUM_FEATURES, NUM_LABELS, 4, init_std=0.3, generator=torch.Generator().manual_seed(0)
    ).double()
    inference = MatchedInference(routine)
    made = module(model, *loss, inference=inference, optimizer=OPTIMIZER, label_names=NAMES, **options)
    if isinstance(made, PersistentModule):
        made.chains = label_batch().labels.to(torch.uint8)
    return made


def network(**options: Any) -> Any:
    return partial(models.SigmoidBeliefNetwork, NUM_FEATURES, NUM_LABELS, **options)


def machine(**options: Any) -> Any:
    return partial(models.BoltzmannMachine, NUM_FEATURES, NUM_LABELS, **options)


STEPS = {
    "network, hinge": Step(partial(gradient, network(), losses.local_hinge), label_batch()),
    "network, hinge, labels missing": Step(
        partial(gradient, network(), losses.local_hinge), label_batch(missing=True)
    ),
    "network of triples, likelihood": Step(
        partial(gradient, network(degree=3), losses.negative_log_likelihood), label_batch()
    ),
    "machine, hinge": Step(partial(gradient, machine(), losses.local_hinge), label_batch()),
    "machine, pseudo-likelihood": Step(
        partial(
            gradient,
            machine(),
            losses.negative_pseudo_likelihood,
            penalty=partial(penalties.quadratic, coupling_penalty=0.5),
        ),
        label_batch(),
    ),
    "machine of triples, hinge": Step(
        partial(gradient, machine(cliques=[(0, 1, 2), (2, 3), (4,)]), losses.local_hinge), label_batch()
    ),
    "machine of features in cliques, hinge": Step(
        partial(gradient, machine(cliques=[(0, 1), (2, 3)], clique_features=[0, None]), losses.local_hinge),
        label_batch(),
    ),
    "machine, exact likelihood": Step(
        partial(gradient, machine(), losses.exact_negative_log_likelihood), label_batch()
    ),
    "hidden units, mle_bp": Step(
        partial(latent, LatentModule, losses.bethe_negative_log_likelihood), label_batch()
    ),
    "hidden units, mle_mf": Step(
        partial(
            latent,
            LatentModule,
            losses.mean_field_negative_log_likelihood,
            routine=mean_field.marginals,
        ),
        label_batch(),
    ),
    "hidden units, cd": Step(
        partial(latent, LatentModule, losses.contrastive_divergence), label_batch(), is_random=True
    ),
    "hidden units, pcd": Step(partial(latent, PersistentModule, num_steps=2), label_batch(), is_random=True),
}
"""Every module, with every model that it trains."""


def prepared(step: Step, device: torch.device) -> Any:
    """The module on the device, as Lightning's trainer would have it; nothing is logged."""
    torch.manual_seed(0)
    module = step.module().to(device)
    if isinstance(module, PersistentModule):
        module.chains = module.chains.to(device)
    module.log_dict = lambda *args, **kwargs: None
    module._trainer = SimpleNamespace(train_dataloader=SimpleNamespace(dataset=range(100)), world_size=1)
    return module


def train(module: Any, batch: Any) -> Tensor:
    """A step of the optimizer; returns the loss before it."""
    optimizer = module.configure_optimizers()
    found = module.training_step(batch, 0)
    loss = found["loss"] if isinstance(found, dict) else found
    loss.backward()
    optimizer.step()
    return loss.detach()
