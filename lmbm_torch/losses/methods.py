"""The methods of belief_propagation_in_crbms_2017 to train conditional RBMs: a loss and a routine each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from torch import Tensor

from lmbm_torch.inference.messages import matrix_bp, mean_field
from lmbm_torch.inference.messages.matching import Routine
from lmbm_torch.losses import contrastive, latent


@dataclass(frozen=True)
class Method:
    """A loss, with the routine for inference in training and prediction.

    Args:
        loss: called as ``loss(energy, labels, inference=…)``, except for persistent contrastive divergence,
            whose caller keeps the Markov chains.
        routine: for :class:`~lmbm_torch.inference.messages.matching.MatchedInference`; with a sampling loss,
            only prediction uses the routine.
        num_steps: the default number of steps of Gibbs sampling; None for a loss without sampling.
    """

    loss: Callable[..., Tensor] | Callable[..., tuple[Tensor, Tensor]]
    routine: Routine
    num_steps: int | None = None


METHODS: Mapping[str, Method] = MappingProxyType(
    {
        "mle_bp": Method(latent.bethe_negative_log_likelihood, matrix_bp.marginals),
        "mle_mf": Method(latent.mean_field_negative_log_likelihood, mean_field.marginals),
        "lssvm": Method(latent.joint_structured_hinge, matrix_bp.max_marginals),
        "mssvm": Method(latent.marginal_structured_hinge, matrix_bp.marginal_map),
        "cd": Method(contrastive.contrastive_divergence, mean_field.marginals, num_steps=1),
        "pcd": Method(contrastive.persistent_contrastive_divergence, mean_field.marginals, num_steps=10),
        "cd_percloss": Method(contrastive.contrastive_perceptron, mean_field.marginals, 10),
    }
)
"""The methods by the names of the paper: maximum likelihood by belief propagation and by mean field, the
latent and the marginal structural SVM, contrastive divergence, persistent contrastive divergence and
CD-PercLoss."""
