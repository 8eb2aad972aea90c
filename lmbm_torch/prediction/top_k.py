"""The best labellings of whatever energy a model makes, several of each, proven to be the best."""

from __future__ import annotations

from typing import Any

from lmbm_torch.energies import BipartiteEnergy, DirectedEnergy
from lmbm_torch.inference import branch_and_bound, exact
from lmbm_torch.inference.branch_and_bound import NODE_LIMIT
from lmbm_torch.inference.results import Decoding
from lmbm_torch.prediction.decoding import MAX_ENUMERATED_LABELS


def decode_hinge(
    energy: Any, margin: float = 1.0, *, top_k: int, node_limit: int | None = NODE_LIMIT
) -> Decoding:
    """The ``top_k`` labellings of least Σ_i [margin − m_i]_+, best first.

    Args:
        energy: a directed model of any size, or a Boltzmann machine of few labels.
        node_limit: end an example's search after so many nodes, but not before ``top_k`` labellings; None for
            never. Enumeration has no nodes.

    Raises:
        ValueError: a model with hidden units, or a Boltzmann machine of many labels, of which one labelling
            at a time can be decoded; and as the routines for one labelling.
    """
    if isinstance(energy, DirectedEnergy):
        return branch_and_bound.decode_hinge(energy, margin, top_k=top_k, node_limit=node_limit)
    _check(energy)
    return exact.decode_hinge(energy, margin, top_k=top_k)


def decode(energy: Any, *, top_k: int, node_limit: int | None = NODE_LIMIT) -> Decoding:
    """The ``top_k`` most probable labellings, best first.

    Args:
        energy, node_limit: as for :func:`decode_hinge`.

    Raises:
        ValueError: as :func:`decode_hinge`.
    """
    if isinstance(energy, DirectedEnergy):
        return branch_and_bound.decode(energy, top_k=top_k, node_limit=node_limit)
    _check(energy)
    return exact.decode(energy, top_k=top_k)


def _check(energy: Any) -> None:
    """Refuse what enumeration is not for."""
    if isinstance(energy, BipartiteEnergy):
        raise ValueError("top_k: expected 1 for a model with hidden units")
    if energy.num_labels > MAX_ENUMERATED_LABELS:
        raise ValueError(
            f"top_k: expected 1 for a Boltzmann machine of more than {MAX_ENUMERATED_LABELS} labels, "
            f"got one of {energy.num_labels}"
        )
