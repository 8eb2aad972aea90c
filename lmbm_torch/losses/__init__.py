"""(energy, labels) → one number per example, and what such a number proves."""

from lmbm_torch.losses.bounds import directed_threshold, error_bound, log_loss_bound
from lmbm_torch.losses.hinge import local_hinge
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
    "directed_threshold",
    "error_bound",
    "exact_negative_log_likelihood",
    "local_hinge",
    "log_loss_bound",
    "loss_augment",
    "negative_log_likelihood",
    "negative_pseudo_likelihood",
    "relaxed_hamming",
    "relaxed_squared_error",
    "relaxed_structured_hinge",
    "sparse_map_loss",
    "structured_hinge",
]
