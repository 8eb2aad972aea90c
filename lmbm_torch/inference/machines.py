"""Boltzmann machines beyond enumeration, decoded by searches, by parts and by junction trees."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor

from lmbm_torch.constraints import Constraints
from lmbm_torch.energies import CliqueEnergy, PairwiseEnergy
from lmbm_torch.inference import constrained, junction_tree, semidefinite, undirected_branch_and_bound
from lmbm_torch.inference.branch_and_bound import NODE_LIMIT
from lmbm_torch.inference.parts import part_by_part
from lmbm_torch.inference.parts.cutoffs import CUTOFFS
from lmbm_torch.inference.parts.free_labels import num_free
from lmbm_torch.inference.results import Decoding, replaced

__all__ = ["decode_cliques", "decode_cliques_hinge", "decode_machine", "decode_machine_hinge", "has_tree"]

# Nodes of other searches that take as long as one of an integer programme or of the semidefinite search.
NODES_TO_ONE = 1000


def has_tree(energy: PairwiseEnergy | CliqueEnergy, constraints: Constraints | None = None) -> bool:
    """Whether a junction tree, with the rules in it, decodes it best."""
    return energy.num_labels > CUTOFFS.narrow and junction_tree.is_narrow(
        energy, CUTOFFS.treewidth, constraints=constraints
    )


def decode_machine(
    energy: PairwiseEnergy,
    routine: Callable[..., Decoding],
    known: Tensor | None,
    node_limit: int | None,
    constraints: Constraints | None = None,
) -> Decoding:
    """The best labelling of a Boltzmann machine by a search, of its parts where it has some.

    Args:
        routine: what a part is decoded by, and by what its parts are again.
    """
    search, again = undirected_branch_and_bound.decode, partial(routine, node_limit=node_limit)

    def whole(energy: PairwiseEnergy, *, known: Tensor | None, constraints: Constraints | None) -> Decoding:
        if constraints is not None and has_tree(energy):
            return constrained.decode(energy, constraints, again, known=known)
        if node_limit is None and num_free(energy, known) > CUTOFFS.dense:
            return _decode_dense(energy, known, constraints)
        return search(energy, known=known, node_limit=node_limit, constraints=constraints)

    if num_free(energy, known) <= CUTOFFS.enumeration:
        return whole(energy, known=known, constraints=constraints)
    return part_by_part.decode(
        energy,
        again,
        part_by_part.score_of,
        whole,
        # Under rules a search that ends soon is none: what is around it goes on.
        soon=partial(search, node_limit=part_by_part.soon(node_limit)) if constraints is None else None,
        known=known,
        constraints=constraints,
    )


def decode_machine_hinge(
    energy: PairwiseEnergy,
    margin: float,
    routine: Callable[..., Decoding],
    known: Tensor | None,
    node_limit: int | None,
    constraints: Constraints | None = None,
) -> Decoding:
    """The labelling of least hinge loss; see :func:`decode_machine`."""
    search = partial(undirected_branch_and_bound.decode_hinge, margin=margin)
    whole = partial(search, node_limit=node_limit)
    if num_free(energy, known) <= CUTOFFS.enumeration:
        return whole(energy, known=known, constraints=constraints)
    return part_by_part.decode(
        energy,
        partial(routine, margin=margin, node_limit=node_limit),
        partial(part_by_part.hinge_of, margin),
        whole,
        soon=partial(search, node_limit=part_by_part.soon(node_limit)) if constraints is None else None,
        known=known,
        constraints=constraints,
        of_margins=True,
    )


def decode_cliques(energy: CliqueEnergy, known: Tensor | None, node_limit: int | None) -> Decoding:
    """The best labelling of a machine of large cliques and many labels, by an integer programme.

    Raises:
        ModuleNotFoundError: HiGHS is not installed.
    """
    # No other routine of this module needs HiGHS.
    from lmbm_torch.inference import integer_program

    return integer_program.decode(energy, known=known, node_limit=fewer_nodes(node_limit))


def decode_cliques_hinge(
    energy: CliqueEnergy, margin: float, known: Tensor | None, node_limit: int | None
) -> Decoding:
    """The labelling of least hinge loss; see :func:`decode_cliques`."""
    from lmbm_torch.inference import integer_program

    return integer_program.decode_hinge(energy, margin, known=known, node_limit=fewer_nodes(node_limit))


def fewer_nodes(node_limit: int | None) -> int | None:
    """A limit of nodes that take far longer."""
    return node_limit and max(1, node_limit // NODES_TO_ONE)


def _decode_dense(
    energy: PairwiseEnergy, known: Tensor | None, constraints: Constraints | None = None
) -> Decoding:
    """The best labelling, proven, of so many labels that only easy ones are for branch and bound."""
    search = undirected_branch_and_bound.decode
    found = search(energy, known=known, node_limit=NODE_LIMIT, constraints=constraints)
    (rows,) = (~found.status.exact).nonzero(as_tuple=True)
    if not len(rows):
        return found
    part = None if known is None else known[rows]
    dense = semidefinite.decode(energy.select(rows), known=part, constraints=constraints)
    return replaced(found, rows, dense)
