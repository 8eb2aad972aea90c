"""Losses, (energy, labels) → one number per example, and bounds that follow from losses."""

from lmbm_torch.losses.bounds import (
    GeneralisationBound,
    directed_threshold,
    error_bound,
    generalisation_bound,
    least_threshold,
    log_loss_bound,
    undirected_log_loss_bound,
    undirected_threshold,
)
from lmbm_torch.losses.chains import chain_negative_log_likelihood, chain_structured_hinge
from lmbm_torch.losses.contrastive import (
    contrastive_divergence,
    contrastive_perceptron,
    persistent_contrastive_divergence,
)
from lmbm_torch.losses.hinge import local_hinge
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
from lmbm_torch.losses.relaxed import (
    relaxed_hamming,
    relaxed_squared_error,
    relaxed_structured_hinge,
    sparse_map_loss,
)
from lmbm_torch.losses.structured import loss_augment, structured_hinge

__all__ = [
    "GeneralisationBound",
    "bethe_negative_log_likelihood",
    "chain_negative_log_likelihood",
    "chain_structured_hinge",
    "contrastive_divergence",
    "contrastive_perceptron",
    "directed_threshold",
    "error_bound",
    "exact_negative_log_likelihood",
    "generalisation_bound",
    "joint_structured_hinge",
    "least_threshold",
    "local_hinge",
    "log_loss_bound",
    "loss_augment",
    "marginal_structured_hinge",
    "mean_field_negative_log_likelihood",
    "negative_log_likelihood",
    "negative_pseudo_likelihood",
    "persistent_contrastive_divergence",
    "relaxed_hamming",
    "relaxed_squared_error",
    "relaxed_structured_hinge",
    "sparse_map_loss",
    "structured_hinge",
    "undirected_log_loss_bound",
    "undirected_threshold",
]
