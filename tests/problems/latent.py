"""Small machines with hidden units, trained by every way of learning them."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from lmbm_torch.inference import matrix_bp, mean_field
from lmbm_torch.inference.matching import MatchedInference
from lmbm_torch.losses import (
    bethe_negative_log_likelihood,
    contrastive_divergence,
    contrastive_perceptron,
    joint_structured_hinge,
    marginal_structured_hinge,
    mean_field_negative_log_likelihood,
)
from lmbm_torch.models import ConditionalRBM
from lmbm_torch.training.latent import LatentModule, PersistentModule
from problems.small import NUM_FEATURES, NUM_LABELS

OBJECTIVES = {
    "MLE-BP": (bethe_negative_log_likelihood, matrix_bp.marginals),
    "MLE-MF": (mean_field_negative_log_likelihood, mean_field.marginals),
    "LSSVM": (joint_structured_hinge, matrix_bp.max_marginals),
    "MSSVM": (marginal_structured_hinge, matrix_bp.marginal_map),
    "CD-1": (contrastive_divergence, mean_field.marginals),
    "CD-PercLoss": (partial(contrastive_perceptron, num_steps=10), mean_field.marginals),
}


def conditional_machine(encoder: torch.nn.Module | None = None, seed: int = 0) -> ConditionalRBM:
    generator = torch.Generator().manual_seed(seed)
    width = NUM_FEATURES if encoder is None else encoder(torch.zeros(1, NUM_FEATURES)).shape[1]
    model = ConditionalRBM(width, NUM_LABELS, 3, encoder=encoder, init_std=0.3, generator=generator)
    return model.double()


def latent_module(objective: str = "MLE-BP", **options: Any) -> LatentModule:
    loss, routine = OBJECTIVES[objective]
    defaults: dict[str, Any] = {
        "model": conditional_machine(),
        "inference": MatchedInference(routine, num_iters=10),
        "optimizer": partial(torch.optim.SGD, lr=0.5),
    }
    return LatentModule(loss=loss, **{**defaults, **options})


def persistent_module(**options: Any) -> PersistentModule:
    defaults: dict[str, Any] = {
        "model": conditional_machine(),
        "inference": MatchedInference(mean_field.marginals),
        "optimizer": partial(torch.optim.SGD, lr=0.5),
    }
    return PersistentModule(**{**defaults, **options})
