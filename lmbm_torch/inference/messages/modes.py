"""Labels from beliefs: each visible unit at its likelier value, by marginals or by max-marginals.

Labellings of which most labels are right on average, by marginals: the best one under rules, or several.

The expected number of right labels is Σ_i P(y_i = ŷ_i), linear in ŷ however the labels depend on each other.
It compares labellings as long as the marginals stay what they are: a search that holds a label does not
condition them on it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from lmbm_torch.constraints import Constraints
from lmbm_torch.energies import DirectedEnergy
from lmbm_torch.energies.bipartite import BipartiteEnergy
from lmbm_torch.inference.messages import matrix_bp
from lmbm_torch.inference.results import BipartiteMarginals, Decoding, Marginals, Status
from lmbm_torch.inference.routes import quantities
from lmbm_torch.shapes import Known

__all__ = ["decode", "joint_modes", "marginal_modes"]


@torch.no_grad()
def marginal_modes(
    energy: BipartiteEnergy,
    *,
    marginals: Callable[[BipartiteEnergy], BipartiteMarginals] = matrix_bp.marginals,
) -> Decoding:
    """v_i = [P(v_i = 1) > ½], which gets the most labels right on average (section 3.3 of the 2017 paper).

    Args:
        energy: a bipartite energy.
        marginals: :func:`matrix_bp.marginals <lmbm_torch.inference.messages.matrix_bp.marginals>` or
            :func:`mean_field.marginals <lmbm_torch.inference.messages.mean_field.marginals>` with its
            settings.

    Returns:
        Labels whose objective is the expected number of right ones under these marginals, the largest
        possible; the ``status`` is that of the marginals.
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
    """v_i = [max-marginal of v_i = 1 is above ½]: the visible part of the joint MAP, where it is exact.

    Args:
        energy: a bipartite energy.
        max_marginals: :func:`matrix_bp.max_marginals <lmbm_torch.inference.messages.matrix_bp.max_marginals>`
            with its settings.

    Returns:
        Labels and the best states of the ``hidden`` units given them, with their score; the bound is infinite
        where propagation is not exact.
    """
    found = max_marginals(energy)
    labels = (found.visible > 0.5).long()
    hidden = (energy.hidden_fields(labels) > 0).long()
    score = energy.score(labels, hidden)
    exact = found.status.exact & (score >= _rounded_down(found.log_partition))
    bound = torch.where(exact, score, torch.inf)
    status = Status(exact, found.status.converged, found.status.num_iters, found.status.residual)
    return Decoding(labels, score, bound, status, hidden=hidden)


def _rounded_down(score: Tensor) -> Tensor:
    """The largest score, less a margin for rounding; each unit breaks ties on its own."""
    return score - 1e3 * torch.finfo(score.dtype).eps * (1 + score.abs())


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
    """Σ_i P(y_i = ŷ_i) of labellings (batch, labellings, labels), (batch, labellings)."""
    return torch.where(labels == 1, probability[:, None], 1 - probability[:, None]).sum(-1)
