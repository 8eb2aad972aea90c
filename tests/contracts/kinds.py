"""The kinds of energies: small ones of every form, their enumeration, and what may be done to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import torch
from strategies.bipartite import permuted_units, random_bipartite_energy, random_known_visible
from strategies.chain import random_chain_energy, with_states_renamed
from strategies.directed import flipped, permuted, random_directed_energy, random_known
from strategies.factor import random_factor_energy, random_known_states
from strategies.pairwise import (
    cliques_exchanged,
    cliques_renamed,
    exchanged,
    random_clique_energy,
    random_pairwise_energy,
    renamed,
)
from strategies.semi_chain import random_semi_chain_energy, with_segment_states_renamed
from strategies.sequential import (
    random_chains,
    random_known_values,
    random_sequential_energy,
    relabelled,
    spoiled,
)
from strategies.tree import random_tree_energy, with_node_states_renamed
from torch import Tensor

from contracts import enumerations
from contracts.enumerations import Enumeration
from contracts.results import Field, along, tensors_of


@dataclass(frozen=True)
class Changed:
    """An energy in other words, and how its results are said in them.

    Args:
        energy: the changed one.
        known: what is known, changed likewise.
        orders: for each axis whose entries get other names, the old entries in their new order.
        flip: the labels of which 0 and 1 are exchanged.
        states: the new name of each state that labels may have.
    """

    energy: Any
    known: Tensor | None = None
    orders: Mapping[str, Tensor] = field(default_factory=dict)
    flip: Tensor | None = None
    states: Tensor | None = None

    def result(self, described: Field, tensor: Tensor) -> Tensor:
        """What a result of the energy before the change becomes."""
        for axis, order in self.orders.items():
            tensor = along(described, tensor, axis, lambda t, dim, order=order: t.index_select(dim, order))
        is_value = described.content in ("label", "probability")
        if self.flip is not None and is_value and described.axes[-1] == "labels":
            tensor = torch.where(self.flip, 1 - tensor, tensor)
        if self.states is not None and described.content == "label":
            # What is no state is padding, or within a segment.
            tensor = torch.where(tensor < 0, tensor, self.states[tensor])
        return tensor


@dataclass(frozen=True)
class Kind:
    """One kind of energy; of several networks together, an energy is the tuple of theirs.

    Args:
        name: for the names of tests.
        classes: how routines annotate that they take it.
        make: dtype → one energy of every form.
        plain: three examples of four labels, for what is to be refused.
        large: so many labels that two samples of it hardly agree.
        sizes: the lengths of axes.
        enumerate: (energy, known) → every labelling.
        learnt: the tensors of an energy whose gradients are looked at.
        draw_known: (seed, energy) → labels that are known, some of them.
        symmetries: by name, (seed, energy, known) → the same energy in other words.
        refused: spoiled plain energies, with the beginning of the message that refuses them.
        select: (energy, rows) → the energy of some examples.
        rounded: fields that rounding may change, beside numbers that it changes little.
        shared: fields of proven results that examples of a batch owe to each other.
    """

    name: str
    classes: frozenset[str]
    make: Callable[[torch.dtype], list[Any]]
    plain: Any
    large: Any
    sizes: Callable[[Any], dict[str, int]]
    enumerate: Callable[[Any, Tensor | None], Enumeration]
    learnt: frozenset[str]
    draw_known: Callable[[int, Any], Tensor] | None = None
    symmetries: Mapping[str, Callable[[int, Any, Tensor | None], Changed]] = field(default_factory=dict)
    refused: tuple[tuple[Any, str], ...] = ()
    select: Callable[[Any, slice], Any] = lambda energy, rows: energy.select(rows)
    rounded: frozenset[str] = frozenset()
    shared: frozenset[str] = frozenset()

    @lru_cache  # noqa: B019  # kinds live as long as their module
    def energies(self, dtype: torch.dtype = torch.float64) -> tuple[Any, ...]:
        """One energy of every form."""
        return tuple(self.make(dtype))

    @lru_cache  # noqa: B019
    def known(self, form: int) -> Tensor:
        """What is known of the energies of a form."""
        assert self.draw_known is not None
        return self.draw_known(form, self.energies()[form])

    @lru_cache  # noqa: B019
    def enumeration(self, form: int, is_known: bool) -> Enumeration:
        """The labellings of the energies of a form, given what is known of them."""
        return self.enumerate(self.energies()[form], self.known(form) if is_known else None)

    def batch_size(self, energy: Any) -> int:
        return self.sizes(energy)["batch"]

    def __hash__(self) -> int:
        return hash(self.name)


def members(energy: Any) -> tuple[Any, ...]:
    """An energy's networks where it is several, else the energy itself."""
    return energy if isinstance(energy, tuple) else (energy,)


def each(change: Callable[..., Any]) -> Callable[..., Any]:
    """The change of one energy as one of several, all in the same way."""
    return lambda energies, *arguments: tuple(change(energy, *arguments) for energy in energies)


def with_tensors(energy: Any, change: Callable[[str, Tensor], Tensor]) -> Any:
    """The energy with ``change(name, tensor)`` made to each of its tensors."""
    if isinstance(energy, tuple):
        return each(with_tensors)(energy, change)
    return replace(energy, **{name: change(name, tensor) for name, tensor in tensors_of(energy).items()})


def shuffled(size: int, seed: int) -> Tensor:
    return torch.randperm(size, generator=torch.Generator().manual_seed(seed))


def renames_labels(rename: Callable[[Any, Tensor], Any]) -> Callable[[int, Any, Tensor | None], Changed]:
    """Labels change their places, by (energy, order) → energy."""

    def change(seed: int, energy: Any, known: Tensor | None) -> Changed:
        order = shuffled(members(energy)[0].num_labels, seed)
        return Changed(rename(energy, order), None if known is None else known[:, order], {"labels": order})

    return change


def flips_labels(flip_labels: Callable[[Any, Tensor], Any]) -> Callable[[int, Any, Tensor | None], Changed]:
    """0 and 1 of some labels are exchanged, by (energy, mask) → energy."""

    def change(seed: int, energy: Any, known: Tensor | None) -> Changed:
        generator = torch.Generator().manual_seed(seed)
        flip = torch.randint(2, (members(energy)[0].num_labels,), generator=generator) == 1
        flipped_known = None if known is None else torch.where(flip, 1 - known, known)
        return Changed(flip_labels(energy, flip), flipped_known, flip=flip)

    return change


def renames_units(seed: int, energy: Any, known: Tensor | None) -> Changed:
    """The units of both sides change their places."""
    visible, hidden = shuffled(energy.num_visible, seed), shuffled(energy.num_hidden, seed + 1)
    return Changed(
        permuted_units(energy, visible, hidden),
        None if known is None else known[:, visible],
        {"labels": visible, "hidden": hidden},
    )


def renames_states(rename: Callable[[Any, Tensor], Any]) -> Callable[[int, Any, None], Changed]:
    """The states that labels may have change their names, by (energy, order) → energy."""

    def change(seed: int, energy: Any, known: None) -> Changed:
        order = shuffled(energy.num_states, seed)
        return Changed(
            rename(energy, order), None, {"states": order, "values": order}, states=order.argsort()
        )

    return change


def forms(draw: Callable[..., Any], *settings: Mapping[str, Any]) -> Callable[[torch.dtype], list[Any]]:
    """dtype → one energy for each of these settings, by (seed, …, dtype=…) → energy."""
    return lambda dtype: [draw(seed, **form, dtype=dtype) for seed, form in enumerate(settings)]


def label_sizes(energy: Any) -> dict[str, int]:
    first = members(energy)[0]
    return {"batch": first.batch_size, "labels": first.num_labels}


def random_networks(seed: int, num_members: int, **form: Any) -> tuple[Any, ...]:
    """Sigmoid belief networks over the same labels, each in an ordering of its own."""
    return tuple(random_directed_energy(10 * seed + member, **form) for member in range(num_members))


PLAIN_DIRECTED = random_directed_energy(0, 4, num_cliques=2)
PLAIN_PAIRWISE = random_pairwise_energy(0, 4)
LATE_PARENT = replace(PLAIN_DIRECTED, parents=PLAIN_DIRECTED.parents.mT)

DIRECTED = Kind(
    "directed",
    classes=frozenset({"AnyEnergy", "Energy", "MarginEnergy", "DirectedEnergy"}),
    make=forms(
        random_directed_energy,
        {"num_labels": 5},
        {"num_labels": 5, "batch_size": 4, "per_example": True, "coupling": 3.0},
        {"num_labels": 6, "num_cliques": 4},
        {"num_labels": 4, "num_cliques": 2, "per_example": True, "coupling": 0.2},
        {"num_labels": 1, "batch_size": 2},
    ),
    plain=PLAIN_DIRECTED,
    large=random_directed_energy(0, 8),
    sizes=label_sizes,
    enumerate=enumerations.binary,
    learnt=frozenset({"unary"}),
    draw_known=random_known,
    symmetries={"rename": renames_labels(permuted), "flip": flips_labels(flipped)},
    refused=((LATE_PARENT, "parents: expected"),),
)
NETWORKS = Kind(
    "networks",
    classes=frozenset({"Sequence[DirectedEnergy]"}),
    make=forms(
        random_networks,
        {"num_members": 3, "num_labels": 4, "num_cliques": 2},
        # So many minds that the best labelling for all is not among the best for each.
        {"num_members": 4, "num_labels": 5},
        {"num_members": 2, "num_labels": 5, "batch_size": 2, "per_example": True, "coupling": 2.0},
        {"num_members": 1, "num_labels": 3, "coupling": 0.2},
    ),
    plain=random_networks(0, 2, num_labels=4),
    large=random_networks(0, 2, num_labels=8),
    sizes=label_sizes,
    enumerate=enumerations.networks,
    learnt=frozenset({"unary"}),
    draw_known=lambda seed, energies: random_known(seed, energies[0]),
    symmetries={"rename": renames_labels(each(permuted)), "flip": flips_labels(each(flipped))},
    refused=(((*random_networks(0, 1, num_labels=4), LATE_PARENT), "parents: expected"), ((), "energies: ")),
    select=each(lambda energy, rows: energy.select(rows)),
)
PAIRWISE = Kind(
    "pairwise",
    classes=frozenset({"AnyEnergy", "Energy", "MarginEnergy", "PairwiseEnergy"}),
    # Weak enough that no two labellings have the same hinge loss, none; cliques likewise.
    make=forms(
        random_pairwise_energy,
        {"num_labels": 5, "coupling": 0.3},
        {"num_labels": 5, "coupling": 0.2, "batch_size": 4, "per_example": True},
        {"num_labels": 6, "coupling": 0.4, "density": 0.4},
        {"num_labels": 4, "coupling": 0.4, "density": 0.5, "per_example": True},
        {"num_labels": 1, "batch_size": 2},
    ),
    plain=PLAIN_PAIRWISE,
    large=random_pairwise_energy(0, 8),
    sizes=label_sizes,
    enumerate=enumerations.binary,
    learnt=frozenset({"unary"}),
    draw_known=random_known,
    symmetries={"rename": renames_labels(renamed), "flip": flips_labels(exchanged)},
    refused=(
        (replace(PLAIN_PAIRWISE, pairwise=PLAIN_PAIRWISE.pairwise.triu()), "pairwise: expected a symmetric"),
        (
            replace(PLAIN_PAIRWISE, pairwise=PLAIN_PAIRWISE.pairwise + torch.eye(4).double()),
            "pairwise: expected a zero diagonal",
        ),
    ),
    rounded=frozenset({"status.num_iters", "status.exact", "status.residual"}),
)
CLIQUE = Kind(
    "clique",
    classes=frozenset({"AnyEnergy", "Energy", "MarginEnergy", "CliqueEnergy"}),
    make=forms(
        random_clique_energy,
        {"num_labels": 4, "num_cliques": 12, "coupling": 0.1},
        {"num_labels": 5, "num_cliques": 14, "coupling": 0.1, "per_example": True},
        {"num_labels": 1, "num_cliques": 1, "batch_size": 2, "per_example": True},
    ),
    plain=random_clique_energy(0, 4),
    large=random_clique_energy(0, 8),
    sizes=label_sizes,
    enumerate=enumerations.binary,
    learnt=frozenset({"weight"}),
    draw_known=random_known,
    symmetries={"rename": renames_labels(cliques_renamed), "flip": flips_labels(cliques_exchanged)},
)
BIPARTITE = Kind(
    "bipartite",
    classes=frozenset({"AnyEnergy", "Energy", "BipartiteEnergy"}),
    make=forms(
        random_bipartite_energy,
        {"num_visible": 5, "num_hidden": 4},
        {"num_visible": 3, "num_hidden": 6, "batch_size": 4, "coupling": 3.0},
        {"num_visible": 6, "num_hidden": 2, "coupling": 0.2},
        {"num_visible": 1, "num_hidden": 1, "batch_size": 2},
    ),
    plain=random_bipartite_energy(0, 4, 5),
    large=random_bipartite_energy(0, 8, 8),
    sizes=lambda e: {"batch": e.batch_size, "labels": e.num_visible, "hidden": e.num_hidden},
    enumerate=enumerations.bipartite,
    learnt=frozenset({"visible", "hidden", "coupling"}),
    draw_known=random_known_visible,
    symmetries={"rename": renames_units},
    rounded=frozenset({"status.num_iters"}),
    # The most that any example leaves free decides which side is enumerated.
    shared=frozenset({"status.num_iters"}),
)
CHAIN = Kind(
    "chain",
    classes=frozenset({"AnyEnergy", "ChainEnergy"}),
    make=forms(
        random_chain_energy,
        {"max_length": 4, "num_states": 3},
        {"max_length": 5, "num_states": 2, "per_step": True, "batch_size": 3},
        {"max_length": 4, "num_states": 3, "forbidden": 0.3, "batch_size": 3},
        {"max_length": 1, "num_states": 4, "batch_size": 2},
    ),
    plain=random_chain_energy(0, 4, batch_size=3, ragged=False),
    large=random_chain_energy(0, 8, ragged=False),
    sizes=lambda e: {
        "batch": e.batch_size,
        "labels": e.max_length,
        "steps": e.max_length - 1,
        "states": e.num_states,
    },
    enumerate=enumerations.chain,
    learnt=frozenset({"unary", "transition"}),
    symmetries={"rename": renames_states(with_states_renamed)},
)
TREE = Kind(
    "tree",
    classes=frozenset({"AnyEnergy", "TreeEnergy"}),
    make=forms(
        random_tree_energy,
        {"nodes": 5, "states": 3},
        {"nodes": 5, "states": 2, "shared": True, "another_root": True, "batch": 3},
        {"nodes": 1, "states": 4},
    ),
    plain=random_tree_energy(0, batch=3, nodes=4),
    large=random_tree_energy(0, nodes=8),
    sizes=lambda e: {"batch": e.batch_size, "labels": e.num_nodes, "states": e.num_states},
    enumerate=enumerations.tree,
    learnt=frozenset({"unary", "transition"}),
    symmetries={"rename": renames_states(with_node_states_renamed)},
)
PLAIN_SEGMENTS = random_semi_chain_energy(0, 4, max_segment=1, batch_size=3)
SEMI_CHAIN = Kind(
    "semi-chain",
    classes=frozenset({"SemiChainEnergy"}),
    make=lambda dtype: [
        random_semi_chain_energy(seed, **form).to(dtype)
        for seed, form in enumerate(
            (
                {"length": 4, "num_states": 3},
                {"batch_size": 3, "has_segments": False, "scale": 3.0},
                {"length": 4, "num_states": 3, "forbidden": 0.3, "batch_size": 3},
                {"length": 1, "num_states": 4, "max_segment": 1, "batch_size": 2},
            )
        )
    ],
    # No entry stands beyond a chain's end, where none is read.
    plain=replace(
        with_tensors(PLAIN_SEGMENTS, lambda _, tensor: tensor.nan_to_num()), lengths=torch.full((3,), 4)
    ),
    large=random_semi_chain_energy(0, 8),
    sizes=lambda e: {"batch": e.batch_size, "labels": e.num_labels, "values": e.num_states},
    enumerate=enumerations.semi_chain,
    learnt=frozenset({"unary", "transition", "durations"}),
    symmetries={"rename": renames_states(with_segment_states_renamed)},
)
SEQUENTIAL = Kind(
    "sequential",
    classes=frozenset({"SequentialEnergy"}),
    make=forms(
        random_sequential_energy,
        {},
        {"num_states": (2, 2, 2, 2, 2, 2), "batch_size": 4, "sharpness": 3.0},
        {"num_states": (3, 4, 2), "sharpness": 0.1},
        {"num_states": (2,), "batch_size": 2},
    ),
    plain=random_sequential_energy(0, (2, 2, 2, 2)),
    large=random_sequential_energy(0, (2,) * 8, sharpness=0.1),
    sizes=label_sizes,
    enumerate=enumerations.sequential,
    learnt=frozenset(),
    draw_known=random_known_values,
    symmetries={"rename": renames_labels(relabelled)},
    refused=tuple(
        (
            spoiled(random_sequential_energy(0, (2, 2, 2, 2)), bad),
            r"P\(label \d \| labels before it\): expected",
        )
        for bad in (torch.nan, torch.inf, 1.0)
    ),
)
CHAINS = Kind(
    "chains of classifiers",
    classes=frozenset({"Sequence[SequentialEnergy]"}),
    make=forms(
        random_chains,
        {"num_members": 3, "num_states": (2, 2, 2)},
        {"num_members": 2, "num_states": (2, 2, 2, 2), "batch_size": 2, "sharpness": 3.0},
        {"num_members": 1, "num_states": (2, 2), "batch_size": 2, "sharpness": 0.1},
    ),
    plain=random_chains(0, 2, num_states=(2, 2, 2, 2)),
    large=random_chains(0, 2, num_states=(2,) * 8),
    sizes=label_sizes,
    enumerate=enumerations.networks,
    learnt=frozenset(),
    draw_known=lambda seed, energies: random_known_values(seed, energies[0]),
    symmetries={"rename": renames_labels(each(relabelled))},
    refused=(
        ((), "energies: "),
        (random_chains(0, 1, num_states=(2, 2)) + random_chains(0, 1, num_states=(2, 3)), r"energies\[1\]: "),
    ),
    select=each(lambda energy, rows: energy.select(rows)),
)
PLAIN_FACTORS = random_factor_energy(0, batch=3, num_states=(2, 3, 2, 2))
FACTOR = Kind(
    "factor",
    classes=frozenset({"AnyEnergy", "FactorEnergy"}),
    make=forms(
        random_factor_energy,
        {"num_states": (2, 3, 2, 4)},
        {"num_states": (3, 2, 2), "batch": 3, "forbidden": 0.2},
        {"num_states": (2, 2, 2, 2), "order": 4, "num_factors": 3, "scale": 2.0},
        {"num_states": (3,), "num_factors": 0},
    ),
    plain=PLAIN_FACTORS,
    large=random_factor_energy(0, num_states=(3,) * 8, num_factors=4, scale=0.1),
    sizes=lambda e: {"batch": e.batch_size, "labels": e.num_labels, "states": e.num_states},
    enumerate=enumerations.factors,
    learnt=frozenset({"table"}),
    draw_known=random_known_states,
    rounded=frozenset({"status.num_iters"}),
)
KINDS = (DIRECTED, NETWORKS, PAIRWISE, CLIQUE, BIPARTITE, CHAIN, TREE, SEMI_CHAIN, FACTOR, SEQUENTIAL, CHAINS)
