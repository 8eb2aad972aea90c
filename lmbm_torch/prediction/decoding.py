"""Exact decoding of whatever energy a model makes, by the routine that is fastest for its kind and size."""

from __future__ import annotations

from lmbm_torch.energies import CliqueEnergy, DirectedEnergy, PairwiseEnergy
from lmbm_torch.inference import branch_and_bound, exact
from lmbm_torch.inference.branch_and_bound import NODE_LIMIT
from lmbm_torch.inference.results import Decoding

# Enumeration of 2^18 labellings takes 2 (MAP) to 21 ms (hinge) an example on one core, and doubles with each
# label; a mixed-integer programme of a hinge takes more from 6 labels on.
MAX_ENUMERATED_LABELS = 18


def decode_hinge(
    energy: DirectedEnergy | PairwiseEnergy | CliqueEnergy,
    margin: float = 1.0,
    *,
    node_limit: int | None = NODE_LIMIT,
) -> Decoding:
    """argmin_y Σ_i [margin − m_i]_+, proven: branch and bound, enumeration or a mixed-integer programme.

    Args:
        energy: a directed model of any size; a Boltzmann machine with pairs of any size, or with larger
            cliques of few labels.
        margin: γ > 0, in units of the local fields.
        node_limit: end an example's search after so many nodes, which ``status.converged`` then denies and
            ``status.exact`` as a rule; None for never. Enumeration has no nodes.

    Raises:
        ValueError: an energy that is not finite; larger cliques over too many labels; a margin that is not a
            finite number above 0; a node limit that is no count.
        RuntimeError: the solver of mixed-integer programmes gave up.
    """
    if isinstance(energy, DirectedEnergy):
        return branch_and_bound.decode_hinge(energy, margin, node_limit=node_limit)
    if isinstance(energy, PairwiseEnergy) and energy.num_labels > MAX_ENUMERATED_LABELS:
        # Here, since its solver is not needed for anything smaller.
        from lmbm_torch.inference import integer_program

        return integer_program.decode_hinge(energy, margin, node_limit=node_limit)
    return exact.decode_hinge(energy, margin)


def decode(
    energy: DirectedEnergy | PairwiseEnergy | CliqueEnergy, *, node_limit: int | None = NODE_LIMIT
) -> Decoding:
    """argmax_y P(y), the most probable labelling, proven, by the same choice.

    Args:
        energy, node_limit: as for :func:`decode_hinge`.

    Raises:
        ValueError: as :func:`decode_hinge`.
        RuntimeError: as :func:`decode_hinge`.
    """
    if isinstance(energy, DirectedEnergy):
        return branch_and_bound.decode(energy, node_limit=node_limit)
    if isinstance(energy, PairwiseEnergy) and energy.num_labels > MAX_ENUMERATED_LABELS:
        from lmbm_torch.inference import integer_program

        return integer_program.decode(energy, node_limit=node_limit)
    return exact.decode(energy)
