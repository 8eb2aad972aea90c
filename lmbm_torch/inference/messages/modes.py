"""Labels from marginals: the likelier value of each visible unit, or the labelling with the most expected
right labels under rules.

The expected number of right labels is Σ_i P(y_i = ŷ_i), a linear function of ŷ even if labels depend on each
other. Marginals stay the same if a search fixes other labels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from lmbm_torch.constraints import Constraints
from lmbm_torch.energies import DirectedEnergy
from lmbm_torch.energies.bipartite import BipartiteEnergy
from lmbm_torch.inference.common.results import BipartiteMarginals, Decoding, Marginals, Status
from lmbm_torch.inference.messages import matrix_bp
from lmbm_torch.inference.routes import quantities
from lmbm_torch.shapes import Known

__all__ = []


@torch.no_grad()
def marginal_modes(
    energy: BipartiteEnergy,
    *,
    marginals: Callable[[BipartiteEnergy], BipartiteMarginals] = matrix_bp.marginals,
) -> Decoding:
    """Return v_i = [P(v_i = 1) > ½], right for the most labels on average (section 3.3 of the 2017 paper).

    Args:
        energy: a bipartite energy.
        marginals: :func:`matrix_bp.marginals <lmbm_torch.inference.messages.matrix_bp.marginals>` or
            :func:`mean_field.marginals <lmbm_torch.inference.messages.mean_field.marginals>` with settings.

    Returns:
        Labels whose objective is the largest expected number of right labels under these marginals; the
        ``status`` is that of the marginals.
    """
    found = marginals(energy)
    expected = torch.maximum(found.visible, 1 - found.visible).sum(-1)
    return Decoding((found.visible > 0.5).long(), expected, expected, found.status)


@torch.no_grad()
def joint_modes(
    energy: BipartiteEnergy,
    *,
    max_marginals: Callable[[BipartiteEnergy], BipartiteMarginals] = matrix_bp.max_marginals,
) -> Decoding:
    """Return v_i = [max-marginal of v_i = 1 is above ½], part of the joint MAP if propagation is exact.

    Args:
        energy: a bipartite energy.
        max_marginals: :func:`matrix_bp.max_marginals <lmbm_torch.inference.messages.matrix_bp.max_marginals>`
            with settings.

    Returns:
        Labels, the best states of the ``hidden`` units given the labels, and the score; the bound is infinite
        if propagation is not exact.
    """
    found = max_marginals(energy)
    labels = (found.visible > 0.5).long()
    hidden = (energy.hidden_fields(labels) > 0).long()
    score = energy.score(labels, hidden)
    # Compare the score, with a tolerance for rounding: at ties, the units' choices may not fit together.
    least = found.log_partition - 1e3 * torch.finfo(score.dtype).eps * (1 + found.log_partition.abs())
    exact = found.status.exact & (score >= least)
    bound = torch.where(exact, score, torch.inf)
    status = Status(exact, found.status.converged, found.status.num_iters, found.status.residual)
    return Decoding(labels, score, bound, status, hidden=hidden)


@torch.no_grad()
def decode(
    marginals: Marginals | BipartiteMarginals,
    *,
    known: Known | None = None,
    top_k: int = 1,
    constraints: Constraints | None = None,
) -> Decoding:
    """Return argmax_ŷ Σ_i P(y_i = ŷ_i) over the labellings that obey all rules, or the ``top_k`` best.

    Args:
        marginals: the marginals of binary labels, conditional on what is known.
        known: {0, 1, NaN}, the values of known labels, NaN for a label to decode.
        top_k: the number of labellings to return, best first.
        constraints: rules over the labels.

    Returns:
        Labels whose objective is the expected number of right labels under the marginals, with the search's
        bound. ``status.exact`` is true if marginals and search are exact; ``status.num_iters`` comes from the
        marginals.

    Raises:
        ValueError: ``known`` of another shape than (batch, labels), or with impossible values; constraints
            over another number of labels, or constraints that contradict the known labels; ``top_k`` below 1,
            or above the number of an example's labellings.
    """
    probability = marginals.labels.double()
    batch_size, num_labels = probability.shape
    # Choose fields whose score is Σ_i ŷ_i (2 P(y_i = 1) − 1) plus a constant, as fields are half log-odds.
    fields = probability - 0.5
    no_parents = torch.zeros(num_labels, num_labels, dtype=fields.dtype, device=fields.device)
    independent = DirectedEnergy(fields, no_parents, torch.arange(num_labels, device=fields.device))
    given = None if known is None else known.to(fields.dtype)
    found = quantities.decode(independent, known=given, top_k=top_k, constraints=constraints)
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
    """Return the expected number of right labels Σ_i P(y_i = ŷ_i) of each labelling, (batch, labellings)."""
    return torch.where(labels == 1, probability[:, None], 1 - probability[:, None]).sum(-1)
