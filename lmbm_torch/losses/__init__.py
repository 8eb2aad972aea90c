"""(energy, labels) → one number per example, and what such a number proves."""

from lmbm_torch.losses.bounds import directed_threshold, error_bound, log_loss_bound
from lmbm_torch.losses.hinge import local_hinge
from lmbm_torch.losses.likelihood import negative_log_likelihood, negative_pseudo_likelihood

__all__ = [
    "directed_threshold",
    "error_bound",
    "local_hinge",
    "log_loss_bound",
    "negative_log_likelihood",
    "negative_pseudo_likelihood",
]
