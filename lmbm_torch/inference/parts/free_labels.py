"""How many labels an energy leaves free, and what no routine takes."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from lmbm_torch.checks import check_known
from lmbm_torch.energies import BipartiteEnergy, ChainEnergy, CliqueEnergy, Energy, PairwiseEnergy, TreeEnergy

# Of an example whose labellings are enumerated, whatever the energy.
MAX_FREE_LABELS = 22


def num_free(energy: Energy, known: Tensor | None) -> int:
    """The labels that are not known, of the example with most of them; refuses another shape or values."""
    check_known(known, energy.device, energy.batch_size, energy.num_labels)
    return energy.num_labels if known is None else int(known.isnan().sum(-1).max())


def free_units(energy: Energy, known: Tensor | None) -> int:
    """Free labels; of a restricted Boltzmann machine the units of the side that is enumerated."""
    free = num_free(energy, known)
    return min(free, energy.num_hidden) if isinstance(energy, BipartiteEnergy) else free


def check_free(energy: PairwiseEnergy | CliqueEnergy, known: Tensor | None, top_k: int) -> int:
    """Free labels; refuses several labellings of more than can be enumerated."""
    free = num_free(energy, known)
    if top_k > 1 and free > MAX_FREE_LABELS:
        raise ValueError(
            f"top_k: expected 1 for the least hinge loss, or cliques of three or more, of more than "
            f"{MAX_FREE_LABELS} labels, got {top_k} of {free} labels"
        )
    return free


def is_pairwise(energy: CliqueEnergy) -> bool:
    """Whether no clique has more than two labels."""
    return all(len(clique) <= 2 for clique in energy.cliques)


def refuse_known(energy: ChainEnergy | TreeEnergy, known: Tensor | None) -> None:
    """Refuse known labels of chains and trees."""
    if known is not None:
        raise ValueError(
            f"known: expected None for {type(energy).__name__}, whose unary log-potentials can say as much"
        )


def refuse_large_cliques(energy: CliqueEnergy, free: int) -> None:
    """Refuse more free labels than are enumerated, where cliques leave nothing else."""
    if free > MAX_FREE_LABELS:
        raise ValueError(
            f"energy: expected cliques of two labels at most for more than {MAX_FREE_LABELS} free "
            f"labels, got {max(map(len, energy.cliques))} labels in one and {free} free ones"
        )


def refused(energy: Any, kinds: Any) -> TypeError:
    """The error for an energy of none of the kinds of a union."""
    names = ", ".join(kind.__name__ for kind in kinds.__args__)
    return TypeError(f"energy: expected one of {names}, got {type(energy).__name__}")
