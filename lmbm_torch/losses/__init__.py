"""Losses, functions of an energy and labels that return a number for each example; and error bounds."""

from lmbm_torch.losses.bounds import (
    error_bound,
    generalisation_bound,
    log_loss_bound,
    undirected_log_loss_bound,
)
from lmbm_torch.losses.contrastive import contrastive_divergence, contrastive_perceptron
from lmbm_torch.losses.latent import (
    bethe_negative_log_likelihood,
    joint_structured_hinge,
    marginal_structured_hinge,
    mean_field_negative_log_likelihood,
)
from lmbm_torch.losses.likelihood import (
    exact_negative_log_likelihood,
    negative_log_likelihood,
    negative_pseudo_likelihood,
)
from lmbm_torch.losses.structured import (
    chain_negative_log_likelihood,
    chain_structured_hinge,
    local_hinge,
    structured_hinge,
)

__all__ = [
    "bethe_negative_log_likelihood",
    "chain_negative_log_likelihood",
    "chain_structured_hinge",
    "contrastive_divergence",
    "contrastive_perceptron",
    "error_bound",
    "exact_negative_log_likelihood",
    "generalisation_bound",
    "joint_structured_hinge",
    "local_hinge",
    "log_loss_bound",
    "marginal_structured_hinge",
    "mean_field_negative_log_likelihood",
    "negative_log_likelihood",
    "negative_pseudo_likelihood",
    "structured_hinge",
    "undirected_log_loss_bound",
]
