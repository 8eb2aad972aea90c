"""Random trees, for tests of what is computed on them."""

from __future__ import annotations

from itertools import product

import torch
from hypothesis import strategies as st
from torch import Tensor

from lmbm_torch.energies import TreeEnergy


def random_parents(nodes: int, generator: torch.Generator, *, another_root: bool = False) -> Tensor:
    """A random recursive tree; with ``another_root`` its last node stands alone."""
    parents = [-1] + [int(torch.randint(node, (), generator=generator)) for node in range(1, nodes)]
    if another_root:
        parents[-1] = -1
    return torch.tensor(parents)


def random_tree_energy(
    seed: int,
    *,
    batch: int = 2,
    nodes: int = 5,
    states: int = 3,
    shared: bool = False,
    another_root: bool = False,
    dtype: torch.dtype = torch.float64,
) -> TreeEnergy:
    """Log-potentials of standard deviation 2; another dtype rounds the same model."""
    generator = torch.Generator().manual_seed(seed)
    shape = (states, states) if shared else (batch, nodes, states, states)
    return TreeEnergy(
        2 * torch.randn(batch, nodes, states, generator=generator, dtype=torch.float64).to(dtype),
        2 * torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype),
        random_parents(nodes, generator, another_root=another_root),
    )


def tree_energies() -> st.SearchStrategy[TreeEnergy]:
    return st.builds(
        random_tree_energy,
        st.integers(0, 2**31),
        batch=st.integers(1, 3),
        nodes=st.integers(1, 6),
        states=st.integers(1, 3),
        shared=st.booleans(),
        another_root=st.booleans(),
    )


def every_labelling(energy: TreeEnergy) -> tuple[Tensor, Tensor]:
    """All labellings, (labellings, nodes), and their scores, (labellings, batch)."""
    labels = torch.tensor(list(product(range(energy.num_states), repeat=energy.num_nodes)))
    return labels, energy.score(labels[:, None])


def with_node_states_renamed(energy: TreeEnergy, order: Tensor) -> TreeEnergy:
    """The same trees with state ``order[i]`` renamed to i."""
    transition = energy.transition[..., order, :][..., order]
    return TreeEnergy(energy.unary[..., order], transition, energy.parents)
