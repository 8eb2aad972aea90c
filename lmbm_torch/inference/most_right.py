"""Labellings of which most labels are right on average, by marginals: the best one under rules, or several.

The expected number of right labels is Σ_i P(y_i = ŷ_i), linear in ŷ however the labels depend on each other.
It compares labellings as long as the marginals stay what they are: a search that holds a label does not
condition them on it.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from lmbm_torch.constraints import Constraints
from lmbm_torch.energies import DirectedEnergy
from lmbm_torch.inference import routes
from lmbm_torch.inference.results import BipartiteMarginals, Decoding, Marginals, Status
from lmbm_torch.shapes import Known

__all__ = ["decode"]


@torch.no_grad()
def decode(
    marginals: Marginals | BipartiteMarginals,
    *,
    known: Known | None = None,
    top_k: int = 1,
    constraints: Constraints | None = None,
) -> Decoding:
    """argmax_ŷ Σ_i P(y_i = ŷ_i) over the labellings that obey all rules, or the ``top_k`` best.

    Args:
        marginals: of the labels, {0, 1}, given whatever they are to be given.
        known: {0, 1, NaN}, labels that are held, NaN for those to decode.
        top_k: how many labellings, best first.
        constraints: rules over the labels.

    Returns:
        Labels whose objective is the expected number of right ones under these marginals, with the bound of
        the search; ``status.exact`` where both the marginals and the search are, ``num_iters`` of the former.

    Raises:
        ValueError: ``known`` of another shape or with other values; constraints of another number of labels,
            or that contradict what is known; ``top_k`` below 1, or above an example's labellings.
    """
    probability = marginals.labels.double()
    batch_size, num_labels = probability.shape
    # Log-odds are twice the fields: the log-probability is Σ_i ŷ_i (2 P(y_i = 1) − 1) and a constant.
    fields = probability - 0.5
    no_parents = torch.zeros(num_labels, num_labels, dtype=fields.dtype, device=fields.device)
    independent = DirectedEnergy(fields, no_parents, torch.arange(num_labels, device=fields.device))
    given = None if known is None else known.to(fields.dtype)
    found = routes.decode(independent, known=given, top_k=top_k, constraints=constraints)
    labels = found.labels.reshape(batch_size, top_k, num_labels)
    objective = _expected_right(probability, labels)
    last = found.objective.reshape(batch_size, top_k)[:, -1]
    bound = objective[:, -1] + (found.bound - last)
    status, search = marginals.status, found.status
    return replace(
        found,
        objective=objective.reshape(found.objective.shape).to(marginals.labels),
        bound=bound.to(marginals.labels),
        status=Status(
            exact=status.exact & search.exact,
            converged=status.converged & search.converged,
            num_iters=status.num_iters,
            residual=torch.where(search.exact, status.residual, search.residual.to(status.residual)),
        ),
    )


def _expected_right(probability: Tensor, labels: Tensor) -> Tensor:
    """Σ_i P(y_i = ŷ_i) of labellings (batch, labellings, labels), (batch, labellings)."""
    return torch.where(labels == 1, probability[:, None], 1 - probability[:, None]).sum(-1)
