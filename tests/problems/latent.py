"""Small machines with hidden units, trained by every way of learning them."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from lmbm_torch.inference.messages import mean_field
from lmbm_torch.inference.messages.matching import MatchedInference
from lmbm_torch.losses.latent import METHODS
from lmbm_torch.models import ConditionalRBM
from lmbm_torch.training.latent import LatentModule, PersistentModule, by_method
from problems.small import NUM_FEATURES, NUM_LABELS

SAMPLED = [name for name, method in METHODS.items() if method.num_steps is not None]


def conditional_machine(encoder: torch.nn.Module | None = None, seed: int = 0) -> ConditionalRBM:
    generator = torch.Generator().manual_seed(seed)
    width = NUM_FEATURES if encoder is None else encoder(torch.zeros(1, NUM_FEATURES)).shape[1]
    model = ConditionalRBM(width, NUM_LABELS, 3, encoder=encoder, init_std=0.3, generator=generator)
    return model.double()


def latent_module(method: str = "mle_bp", **options: Any) -> LatentModule:
    """A module for a method; with a ``loss`` or a ``MatchedInference`` of the test's own, built directly."""
    defaults: dict[str, Any] = {
        "model": conditional_machine(),
        "optimizer": partial(torch.optim.SGD, lr=0.5),
    }
    if isinstance(options.get("inference"), MatchedInference):
        return LatentModule(loss=METHODS[method].loss, **{**defaults, **options})
    return by_method(method=method, **{**defaults, **options})


def persistent_module(**options: Any) -> PersistentModule:
    defaults: dict[str, Any] = {
        "model": conditional_machine(),
        "inference": MatchedInference(mean_field.marginals),
        "optimizer": partial(torch.optim.SGD, lr=0.5),
    }
    return PersistentModule(**{**defaults, **options})
