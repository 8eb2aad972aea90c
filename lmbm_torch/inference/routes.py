"""Inference by the routine that suits an energy: one table of routes, and the limits at which they change.

A :class:`Query` asks a quantity of an energy. :data:`ROUTES` lists for each kind of energy and quantity, with
rules and without, conditions and routines in their order: the first one whose condition holds answers.
Routines are named by their module and imported when they are first asked for, since each of them may read its
:data:`LIMITS` here. A kind of energy that is not in this library, a subclass of
:class:`~lmbm_torch.energies.BaseEnergy`, is enumerated. To choose yourself, call a routine by its module.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib import import_module
from inspect import signature
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from lmbm_torch.checks import check_count, check_known
from lmbm_torch.constraints import Constraints
from lmbm_torch.energies.base import BaseEnergy, MarginEnergy
from lmbm_torch.energies.bipartite import BipartiteEnergy
from lmbm_torch.energies.chain import ChainEnergy
from lmbm_torch.energies.clique import CliqueEnergy
from lmbm_torch.energies.directed import DirectedEnergy
from lmbm_torch.energies.pairwise import PairwiseEnergy
from lmbm_torch.energies.restricted import RestrictedEnergy
from lmbm_torch.energies.sequential import SequentialEnergy
from lmbm_torch.energies.tree import TreeEnergy
from lmbm_torch.inference.results import Decoding
from lmbm_torch.kernels.installed import compiled
from lmbm_torch.shapes import Float, Int, Known

__all__ = [
    "LIMITS",
    "ROUTES",
    "Limits",
    "Query",
    "Route",
    "Routes",
    "answer",
    "decode",
    "decode_hinge",
    "described",
    "is_narrow",
    "log_partition",
    "marginals",
    "route_of",
    "sample",
    "sums_are_compiled",
]

AnyEnergy = PairwiseEnergy | CliqueEnergy | DirectedEnergy | BipartiteEnergy | ChainEnergy | TreeEnergy
NodeLimit = int | Literal["auto"] | None
"""Nodes at which an example's search ends: "auto" for the limit of its kind of energy, None for never."""


@runtime_checkable
class Matched(Protocol):
    """The inference of a training, such as
    :class:`~lmbm_torch.inference.messages.matching.MatchedInference`."""

    @property
    def is_mean_field(self) -> bool:
        """Whether marginals are those of the mean field, else of belief propagation."""
        ...

    def marginals(self, energy: BipartiteEnergy, known: Tensor | None = None, /) -> Any:
        """Marginals of a restricted Boltzmann machine."""
        ...


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The sizes at which the choice of a routine changes; "labels" are those that are not known.

    ``scripts/bench/cutoffs.py`` times each routine beside the next one: ``results/bench/cutoffs.csv``.
    """

    # Labels: beyond them, no example's labellings are enumerated, whatever is asked; 2^22 of them take
    # seconds of CPU time (scripts/bench/label_sums.py).
    enumerable: int = 22
    # Labels: enumeration of a Boltzmann machine's scores by the compiled kernel, for couplings that the
    # examples share, on the CPU, nothing known; beyond them branch and bound (scripts/bench/cutoffs.py).
    kernel: int = 16
    # Labels: enumeration of a Boltzmann machine's scores without that kernel (scripts/bench/cutoffs.py).
    enumeration: int = 10
    # Labels: enumeration of hinge losses (scripts/bench/cutoffs.py).
    hinge: int = 8
    # Labels: enumeration of scores and losses where branch and bound is not compiled
    # (scripts/bench/cutoffs.py).
    without_numba: int = 18
    # Labels: enumeration of a restricted Boltzmann machine's, its hidden units summed out; beyond them dual
    # decomposition, which may leave a gap (scripts/bench/cutoffs.py).
    hidden: int = 16
    # Labels: enumeration for marginals, of a restricted Boltzmann machine units of its smaller side; beyond
    # them samples, mean field or belief propagation (scripts/bench/cutoffs.py).
    marginals: int = 20
    # Labels: the same for Boltzmann machines on the CPU whose examples share their couplings, and much of the
    # work (scripts/bench/label_sums.py).
    shared: int = 22
    # Labels: enumeration, for sums, of a model whose graph is narrow; beyond them a junction tree
    # (scripts/bench/cutoffs.py).
    elimination: int = 12
    # Labels: branch and bound alone for the best labelling; beyond them a junction tree where the graph is
    # narrow, and independent parts one by one (scripts/bench/cutoffs.py).
    narrow: int = 24
    # Labels: branch and bound for a Boltzmann machine's best labelling without a limit of nodes; beyond them
    # the semidefinite search takes what is not proven soon (scripts/bench/cutoffs.py).
    dense: int = 40
    # Labels: all labellings of a belief network for an expected measure; beyond them the likely ones
    # (scripts/bench/expected_f1.py).
    expected: int = 14
    # Labels: every labelling compared with every other one for the expected Jaccard index, in 4^labels
    # products; beyond them candidates (scripts/bench/expected_f1.py).
    compared: int = 10
    # Units of the smaller side, or labels: a likelihood that is summed exactly in each iteration of a
    # training or a calibration, some 0.3 ms an instance at 10 (scripts/bench/conditional_rbm.py).
    likelihood: int = 10
    # Labels: the same where instances share their couplings (scripts/bench/label_sums.py).
    shared_likelihood: int = 18
    # Labels: what a click may wait for, by enumeration without a kernel, which takes 1.2 s at 20
    # (scripts/bench/label_sums.py).
    click: int = 14
    # Width of a graph that counts as narrow: a junction tree holds 2^(width + 1) numbers for each label and
    # example (scripts/bench/cutoffs.py).
    treewidth: int = 8
    # Bytes of the tables of a junction tree whose examples are summed together, a few buckets of them
    # (scripts/bench/log_partition_bounds.py).
    table_bytes: int = 2**32
    # Nodes of an example's search of a directed model: a tenth of a second to a second of CPU time
    # (scripts/bench/decoding.py). Without a limit a search over hundreds of labels can last for hours.
    network_nodes: int = 100_000
    # Nodes of an example's search of a Boltzmann machine: some 5 ms of CPU time at 100 labels
    # (scripts/bench/undirected_decoding.py).
    machine_nodes: int = 40_000
    # Nodes of a first search of the whole, before independent parts of what it has not proven are looked for
    # (scripts/bench/decoding.py).
    soon_nodes: int = 1000
    # Nodes of other searches that take as long as one of the semidefinite search or of an integer programme
    # (scripts/bench/dense_map.py).
    nodes_to_one: int = 1000
    # Draws of each example that stand for the marginals of a directed model (scripts/bench/many_labels.py).
    samples: int = 1000
    # Share of the probability: what likely labellings may leave out for marginals, which are wrong by no more
    # (scripts/bench/expected_f1.py).
    mass_left: float = 0.01
    # Labels: marginals of a model label by label sum all labellings of so many labels of two values, which
    # takes less CPU time than the search for the likely ones (scripts/bench/chain_marginals.py).
    listed: int = 8


LIMITS = Limits()


# Not frozen, which would take a tenth of the time of a small search.
@dataclass(eq=False, kw_only=True)
class Query:
    """What is asked of an energy, with the arguments of the quantity's public function; nobody changes it.

    Args:
        quantity: the name of that function.
        connected: whether it is known to have no independent parts.
    """

    quantity: str
    energy: Any
    known: Known | None = None
    constraints: Constraints | None = None
    margin: float = 1.0
    top_k: int = 1
    node_limit: NodeLimit = "auto"
    matched: Matched | None = None
    num_samples: int = LIMITS.samples
    generator: torch.Generator | None = None
    connected: bool = False

    @property
    def free(self) -> int:
        """The labels that are not known, of the example with most of them.

        Raises:
            ValueError: ``known`` of another shape or with other values.
        """
        return self.energy.num_labels if self.known is None else self._free

    @cached_property
    def _free(self) -> int:
        energy, known = self.energy, self.known
        assert known is not None
        check_known(known, energy.device, energy.batch_size, energy.num_labels)
        return int(known.isnan().sum(-1).max())

    @property
    def units(self) -> int:
        """Free labels; of a restricted Boltzmann machine the units of the side that is enumerated."""
        is_bipartite = isinstance(self.energy, BipartiteEnergy)
        return min(self.free, self.energy.num_hidden) if is_bipartite else self.free

    @cached_property
    def is_narrow(self) -> bool:
        """Whether a junction tree, with the rules in it, is small: that of margins for a hinge loss."""
        name = "is_narrow_for_hinge" if self.quantity == "decode_hinge" else "is_narrow"
        ask = _routine(f"trees.junction_tree.{name}")
        return ask(self.energy, LIMITS.treewidth, constraints=self.constraints)

    @property
    def nodes(self) -> int | None:
        """The limit of nodes of an example's search."""
        if self.node_limit != "auto":
            return self.node_limit
        is_machine = isinstance(self.energy, PairwiseEnergy | CliqueEnergy)
        return LIMITS.machine_nodes if is_machine else LIMITS.network_nodes

    @property
    def options(self) -> dict[str, Any]:
        """All that routines may take beside the energy, by the names of their arguments."""
        return {
            "known": self.known,
            "constraints": self.constraints,
            "margin": self.margin,
            "top_k": self.top_k,
            "node_limit": self.nodes,
            "num_samples": self.num_samples,
            "generator": self.generator,
        }


class When(NamedTuple):
    """A condition of a query, for readers and for the search."""

    words: str
    holds: Callable[[Query], bool]


class Route(NamedTuple):
    """Where a query goes if its condition holds.

    Args:
        when: the condition.
        routine: module and function in this package, its name the quantity's where it says so; it takes the
            energy and those of the query's options that it has arguments for, or the ``query``. None to
            refuse.
        words: the ``method`` of the result, "" for the routine's own; of a refusal the message, which
            :meth:`str.format` fills in.
    """

    when: When
    routine: str | None
    words: str = ""


class Routes(NamedTuple):
    """The routes of some kinds of energy.

    Args:
        kinds: the classes of energies.
        quantities: what is asked of them.
        rules: whether under rules; None for either.
        rows: the first one whose condition holds answers.
    """

    kinds: tuple[type, ...]
    quantities: tuple[str, ...]
    rules: bool | None
    rows: tuple[Route, ...]


def _enumerated(limit: int) -> int:
    """The most labels of a Boltzmann machine whose labellings are enumerated to find the best one."""
    is_compiled = compiled("search.undirected", "branch and bound") is not None
    return limit if is_compiled else max(limit, LIMITS.without_numba)


def _has_kernel(query: Query) -> bool:
    return query.known is None and _routine("enumeration.kernels.suits")(query.energy)


def _is_summed(query: Query) -> bool:
    are_shared = _routine("enumeration.label_halves.are_shared")(query.energy)
    return query.units <= (LIMITS.shared if are_shared else LIMITS.marginals)


def _is_tree(query: Query) -> bool:
    """Whether a junction tree decodes a Boltzmann machine best."""
    return query.top_k == 1 and query.free > LIMITS.narrow and query.is_narrow


ALWAYS = When("else", lambda query: True)
GIVEN = When("some labels known", lambda query: query.known is not None)
SEVERAL = When("several labellings", lambda query: query.top_k > 1)
OF_PAIRS = When(
    "no clique of more than two labels",
    lambda query: all(len(clique) <= 2 for clique in query.energy.cliques),
)
SEVERAL_OF_MANY = When(
    f"several labellings of more than {LIMITS.enumerable} labels",
    lambda query: query.top_k > 1 and query.free > LIMITS.enumerable,
)
MANY = When(f"more than {LIMITS.enumerable} labels", lambda query: query.units > LIMITS.enumerable)
FEW_OR_SEVERAL = When(
    f"up to {LIMITS.narrow} labels, or several labellings",
    lambda query: query.top_k > 1 or query.free <= LIMITS.narrow,
)
HAS_TREE = When(f"more than {LIMITS.narrow} labels, a narrow graph", _is_tree)
NARROW_SUM = When(
    f"more than {LIMITS.elimination} labels, a narrow graph",
    lambda query: query.free > LIMITS.elimination and query.is_narrow,
)
NARROW_BEST = When(
    f"one labelling, more than {LIMITS.elimination} labels, a narrow graph",
    lambda query: query.top_k == 1 and query.free > LIMITS.elimination and query.is_narrow,
)
LARGE_SUM = When(
    f"more than {LIMITS.elimination} labels, which may fall into independent parts",
    lambda query: query.units > LIMITS.elimination and not query.connected,
)
IN_PARTS = When(
    f"more than {LIMITS.enumeration} labels, which may fall into independent parts",
    lambda query: query.free > LIMITS.enumeration and not query.connected,
)
ENUMERATED_SCORES = When(
    f"several labellings, or up to {LIMITS.enumeration} labels ({LIMITS.kernel} by the compiled kernel)",
    lambda query: (
        query.top_k > 1
        or query.free <= _enumerated(LIMITS.kernel if _has_kernel(query) else LIMITS.enumeration)
    ),
)
ENUMERATED_LOSSES = When(
    f"several labellings, or up to {LIMITS.hinge} labels",
    lambda query: query.top_k > 1 or query.free <= _enumerated(LIMITS.hinge),
)
SUMMED = When(f"up to {LIMITS.marginals} labels ({LIMITS.shared} of shared couplings)", _is_summed)
UNLIMITED = When(
    f"more than {LIMITS.dense} labels, no limit of nodes",
    lambda query: query.nodes is None and query.free > LIMITS.dense,
)
ALLOWED_BY_KERNEL = When(
    f"one labelling, up to {LIMITS.kernel} labels, by the compiled kernel",
    lambda query: query.top_k == 1 and query.energy.num_labels <= LIMITS.kernel and _has_kernel(query),
)
NARROW_WITHOUT_RULES = When(
    f"more than {LIMITS.narrow} labels, a graph that is narrow without the rules",
    lambda query: _is_tree(replace(query, constraints=None)),
)
HIDDEN = When(f"up to {LIMITS.hidden} labels", lambda query: query.free <= LIMITS.hidden)
NORMALISED = When(
    "nothing known",
    lambda query: (
        query.known is None or (query.free == query.energy.num_labels and bool(query.known.isnan().all()))
    ),
)
MATCHED_FIELD = When(
    "trained with mean field", lambda query: query.matched is not None and query.matched.is_mean_field
)
MATCHED = When("trained with other inference", lambda query: query.matched is not None)
HAS_MARGINS = When("with local margins", lambda query: isinstance(query.energy, MarginEnergy))

BY_TREE, BY_ENUMERATION = "exact, by a junction tree", "exact, by enumeration"
BY_PROGRAMMING = "exact, by dynamic programming"
NO_KNOWN = Route(
    GIVEN,
    None,
    "known: expected None for {query.energy.__class__.__name__}, whose unary log-potentials can say as much",
)
ONE_HINGE = Route(
    SEVERAL_OF_MANY,
    None,
    "top_k: expected 1 for the least hinge loss, or cliques of three or more, of more than "
    "{limits.enumerable} labels, got {query.top_k} of {query.free} labels",
)
SMALL_CLIQUES = Route(
    MANY,
    None,
    "energy: expected cliques of two labels at most for more than {limits.enumerable} free labels, got "
    "{largest_clique} labels in one and {query.free} free ones",
)
PROGRAMMED = Route(MANY, "composed.answers.programmed")
AS_PAIRS = Route(OF_PAIRS, "composed.answers.as_pairs")
AROUND_RULES = Route(ALWAYS, "composed.answers.around_rules")
BEST, SUMS = ("decode", "decode_hinge"), ("marginals", "log_partition", "sample")
QUANTITIES = (*BEST, *SUMS)
# Sums of a sparse model that are exact, or refused by enumeration.
SUMMED_UP = (
    Route(NARROW_SUM, "trees.junction_tree.{quantity}", BY_TREE),
    Route(LARGE_SUM, "composed.answers.sums_by_parts"),
    Route(ALWAYS, "enumeration.exact.{quantity}", BY_ENUMERATION),
)


ROUTES: tuple[Routes, ...] = (
    Routes((RestrictedEnergy,), QUANTITIES, None, (Route(ALWAYS, "composed.answers.under_own_rules"),)),
    Routes(
        (DirectedEnergy,),
        BEST,
        None,
        (
            Route(FEW_OR_SEVERAL, "search.branch_and_bound.{quantity}"),
            Route(IN_PARTS, "composed.answers.best_by_parts"),
            Route(ALWAYS, "composed.answers.searched_then_tree"),
        ),
    ),
    Routes(
        (PairwiseEnergy,),
        ("decode",),
        False,
        (
            Route(SEVERAL_OF_MANY, "composed.answers.best_few"),
            Route(HAS_TREE, "trees.junction_tree.decode"),
            Route(ENUMERATED_SCORES, "enumeration.exact.decode"),
            Route(IN_PARTS, "composed.answers.best_by_parts"),
            Route(UNLIMITED, "composed.answers.searched_then_semidefinite"),
            Route(ALWAYS, "search.undirected_branch_and_bound.decode"),
        ),
    ),
    Routes(
        (PairwiseEnergy,),
        ("decode",),
        True,
        (
            Route(SEVERAL, "composed.answers.around_rules"),
            Route(HAS_TREE, "trees.junction_tree.decode"),
            Route(ALLOWED_BY_KERNEL, "under_rules.allowed.enumerated"),
            Route(IN_PARTS, "composed.answers.best_by_parts"),
            Route(NARROW_WITHOUT_RULES, "composed.answers.around_rules"),
            Route(UNLIMITED, "composed.answers.searched_then_semidefinite"),
            Route(ALWAYS, "search.undirected_branch_and_bound.decode"),
        ),
    ),
    Routes(
        (PairwiseEnergy,),
        ("decode_hinge",),
        False,
        (
            ONE_HINGE,
            Route(ENUMERATED_LOSSES, "enumeration.exact.decode_hinge"),
            Route(HAS_TREE, "trees.junction_tree.decode_hinge"),
            Route(IN_PARTS, "composed.answers.best_by_parts"),
            Route(ALWAYS, "search.undirected_branch_and_bound.decode_hinge"),
        ),
    ),
    Routes(
        (PairwiseEnergy,),
        ("decode_hinge",),
        True,
        (
            Route(SEVERAL, "composed.answers.around_rules"),
            Route(IN_PARTS, "composed.answers.best_by_parts"),
            Route(ALWAYS, "search.undirected_branch_and_bound.decode_hinge"),
        ),
    ),
    Routes(
        (CliqueEnergy,),
        ("decode",),
        False,
        (
            AS_PAIRS,
            ONE_HINGE,
            Route(NARROW_BEST, "trees.junction_tree.decode"),
            PROGRAMMED,
            Route(ALWAYS, "enumeration.exact.decode"),
        ),
    ),
    Routes(
        (CliqueEnergy,),
        ("decode_hinge",),
        False,
        (
            AS_PAIRS,
            ONE_HINGE,
            Route(NARROW_BEST, "trees.junction_tree.decode_hinge"),
            PROGRAMMED,
            Route(ALWAYS, "enumeration.exact.decode_hinge"),
        ),
    ),
    Routes((CliqueEnergy,), ("decode",), True, (Route(HAS_TREE, "trees.junction_tree.decode"), AROUND_RULES)),
    Routes(
        (BipartiteEnergy,),
        ("decode",),
        False,
        (
            Route(SEVERAL, None, "top_k: expected 1 for a model with hidden units, got {query.top_k}"),
            Route(HIDDEN, "enumeration.exact.marginal_map"),
            Route(ALWAYS, "messages.dual_decomposition.marginal_map"),
        ),
    ),
    Routes((SequentialEnergy,), ("decode",), False, (Route(ALWAYS, "search.best_first.decode"),)),
    Routes(
        (ChainEnergy,),
        ("decode", *SUMS),
        False,
        (NO_KNOWN, Route(ALWAYS, "trees.chain_dp.{quantity}", BY_PROGRAMMING)),
    ),
    Routes(
        (TreeEnergy,),
        ("decode", "marginals", "log_partition"),
        False,
        (
            NO_KNOWN,
            Route(SEVERAL, None, "top_k: expected 1 for a tree, got {query.top_k}"),
            Route(ALWAYS, "trees.tree_dp.{quantity}", BY_PROGRAMMING),
        ),
    ),
    Routes(
        (DirectedEnergy,),
        ("marginals",),
        False,
        (
            Route(NARROW_SUM, "trees.junction_tree.marginals", BY_TREE),
            Route(LARGE_SUM, "composed.answers.sums_by_parts"),
            Route(SUMMED, "enumeration.exact.marginals", BY_ENUMERATION),
            Route(
                GIVEN,
                None,
                "known: expected None for a directed model of more than {limits.marginals} free labels, "
                "whose marginals are sampled, got some for {query.free} free ones",
            ),
            Route(ALWAYS, "sampling.ancestral.marginals", f"means over {LIMITS.samples} samples"),
        ),
    ),
    Routes(
        (PairwiseEnergy,),
        ("marginals",),
        False,
        (
            Route(NARROW_SUM, "trees.junction_tree.marginals", BY_TREE),
            Route(LARGE_SUM, "composed.answers.sums_by_parts"),
            Route(SUMMED, "enumeration.exact.marginals", BY_ENUMERATION),
            Route(ALWAYS, "messages.mean_field.marginals", "approximate, by mean field"),
        ),
    ),
    Routes(
        (CliqueEnergy,),
        ("marginals",),
        False,
        (
            Route(NARROW_SUM, "trees.junction_tree.marginals", BY_TREE),
            SMALL_CLIQUES,
            Route(ALWAYS, "enumeration.exact.marginals", BY_ENUMERATION),
        ),
    ),
    Routes(
        (BipartiteEnergy,),
        ("marginals",),
        False,
        (
            Route(SUMMED, "enumeration.exact.marginals", BY_ENUMERATION),
            Route(MATCHED_FIELD, "composed.answers.by_matched", "approximate, by mean field"),
            Route(MATCHED, "composed.answers.by_matched", "approximate, by belief propagation"),
            Route(ALWAYS, "messages.matrix_bp.marginals", "approximate, by belief propagation"),
        ),
    ),
    Routes(
        (SequentialEnergy,),
        ("marginals",),
        False,
        (
            Route(
                ALWAYS,
                "search.most_probable.marginals",
                f"to within {LIMITS.mass_left:g}, or status.residual, by likely labellings",
            ),
        ),
    ),
    Routes(
        (SequentialEnergy,),
        ("sample",),
        False,
        (
            Route(GIVEN, None, "known: expected None for samples label by label, got some"),
            Route(ALWAYS, "sampling.ancestral.sample"),
        ),
    ),
    Routes(
        (DirectedEnergy,),
        ("log_partition",),
        False,
        (Route(NORMALISED, "composed.answers.normalised"), *SUMMED_UP),
    ),
    Routes(
        (DirectedEnergy,), ("sample",), False, (Route(NORMALISED, "sampling.ancestral.sample"), *SUMMED_UP)
    ),
    Routes((PairwiseEnergy, CliqueEnergy), ("log_partition", "sample"), False, SUMMED_UP),
    Routes(
        (DirectedEnergy, PairwiseEnergy, CliqueEnergy),
        SUMS,
        True,
        (
            Route(NARROW_SUM, "trees.junction_tree.{quantity}", BY_TREE),
            Route(LARGE_SUM, "composed.answers.sums_by_parts"),
            Route(MANY, "trees.junction_tree.{quantity}", BY_TREE),
            Route(ALWAYS, "composed.answers.enumerated_under_rules", BY_ENUMERATION),
        ),
    ),
    Routes(
        (BaseEnergy,),
        ("decode", *SUMS),
        False,
        (Route(ALWAYS, "enumeration.exact.{quantity}", BY_ENUMERATION),),
    ),
    Routes((BaseEnergy,), ("decode_hinge",), False, (Route(HAS_MARGINS, "enumeration.exact.decode_hinge"),)),
    Routes((BaseEnergy, SequentialEnergy), BEST, True, (AROUND_RULES,)),
    Routes(
        (BaseEnergy, SequentialEnergy),
        SUMS,
        True,
        (Route(ALWAYS, "composed.answers.enumerated_under_rules", BY_ENUMERATION),),
    ),
)


@cache
def _rows(kind: type, quantity: str, rules: bool) -> tuple[Route, ...]:
    """The routes of a class of energies; none where nothing answers."""
    for routes in ROUTES:
        if quantity in routes.quantities and routes.rules in (None, rules) and issubclass(kind, routes.kinds):
            return routes.rows
    return ()


def route_of(query: Query) -> Route:
    """The first route whose condition holds.

    Raises:
        TypeError: a kind of energy of which nobody can say the quantity.
        ValueError: ``known`` of another shape or with other values.
    """
    for route in _rows(type(query.energy), query.quantity, query.constraints is not None):
        if route.when.holds(query):
            return route
    names = {
        kind.__name__: None
        for routes in ROUTES
        if query.quantity in routes.quantities
        for kind in routes.kinds
        if kind not in (BaseEnergy, RestrictedEnergy)
    }
    raise TypeError(f"energy: expected one of {', '.join(names)}, got {type(query.energy).__name__}")


def answer(query: Query) -> Any:
    """What the query's route says.

    Raises:
        TypeError: a kind of energy of which nobody can say the quantity.
        ValueError: what the route or its routine refuses.
    """
    route = route_of(query)
    if route.routine is None:
        cliques = getattr(query.energy, "cliques", ())
        largest = max(map(len, cliques), default=1)
        raise ValueError(route.words.format(query=query, limits=LIMITS, largest_clique=largest))
    routine = _routine(route.routine.replace("{quantity}", query.quantity))
    taken = _taken(routine)
    if taken is None:
        found = routine(query)
    else:
        options = query.options
        found = routine(query.energy, **{name: options[name] for name in taken})
    is_named = query.quantity == "marginals" and route.words
    return replace(found, method=route.words) if is_named else found


def described() -> str:
    """Return the table of routes as Markdown, for the manual."""
    lines = ["| energy | asked for | where | by |", "|---|---|---|---|"]
    rules_of = {None: "", True: ", under rules", False: ", without rules"}
    for kinds, quantities, rules, rows in ROUTES:
        names = ", ".join(f"`{kind.__name__}`" for kind in kinds)
        asked = ", ".join(quantities) + rules_of[rules]
        for when, routine, words in rows:
            by = f"`{routine}`" if routine else "refused"
            method = f": {words}" if routine and words and "marginals" in quantities else ""
            lines.append(f"| {names} | {asked} | {when.words} | {by}{method} |")
            names = asked = ""
    return "\n".join(lines)


def _routine(name: str) -> Callable[..., Any]:
    """The function of this package that a route names."""
    module, _, function = name.rpartition(".")
    return getattr(_module(module), function)


@cache
def _module(name: str) -> Any:
    return import_module(f"{__package__}.{name}")


OPTIONS = ("known", "constraints", "margin", "top_k", "node_limit", "num_samples", "generator")


@cache
def _taken(routine: Callable[..., Any]) -> tuple[str, ...] | None:
    """The options that a routine has arguments for; None for one that takes the query."""
    arguments = signature(routine).parameters
    return None if "query" in arguments else tuple(name for name in OPTIONS if name in arguments)


def is_narrow(energy: Any, quantity: str = "decode", constraints: Constraints | None = None) -> bool:
    """Whether a junction tree of the energy, with the rules in it, is small enough to answer.

    Args:
        energy: a directed model or a Boltzmann machine.
        quantity: ``"decode_hinge"`` for the graph of its margins.
        constraints: rules over its labels.
    """
    return Query(quantity=quantity, energy=energy, constraints=constraints).is_narrow


def sums_are_compiled(energy: AnyEnergy) -> bool:
    """Return whether compiled code enumerates for the :func:`marginals` of such an energy."""
    kernel_for = _routine("enumeration.kernels.kernel_for")
    return isinstance(energy, DirectedEnergy) and kernel_for(energy) is not None


def decode(
    energy: AnyEnergy | SequentialEnergy,
    *,
    known: Known | None = None,
    top_k: int = 1,
    node_limit: NodeLimit = "auto",
    constraints: Constraints | None = None,
) -> Decoding:
    """argmax_y P(y), the most probable labelling, with its certificate; hidden units are summed out.

    Exact for chains, trees, and whatever is enumerated or has a junction tree of small width. Searches prove
    what they find within ``node_limit``; of a restricted Boltzmann machine with many labels the bound may
    stay above the objective. ``status`` tells.

    Args:
        energy: of any kind in :mod:`lmbm_torch.energies`; Boltzmann machines with cliques of three or more
            labels only where these are few (22) or their graph is close to a tree. A subclass of
            ``BaseEnergy`` from elsewhere has at most 22 free labels. A restricted energy is the one
            within, under its rules.
        known: {0, 1, NaN}, NaN for a free label; only labellings that agree with it compete. None for chains
            and trees.
        top_k: how many labellings to return, best first: of directed models, chains, and Boltzmann machines,
            with larger cliques than pairs of at most 22 labels.
        node_limit: end an example's search after so many nodes; "auto" for the limit of its kind of energy
            (:data:`LIMITS`), None for never: dense Boltzmann machines of many labels then take the
            semidefinite search. Other routines have no nodes.
        constraints: rules that the labellings must obey; see
            :mod:`lmbm_torch.inference.under_rules.constrained`.

    Raises:
        TypeError: another energy.
        ValueError: an energy that is not finite, or that no routine takes; ``known`` of another shape or with
            other values, or not supported; ``top_k`` below 1, above an example's labellings, or not
            supported; a node limit that is no count.
    """
    _check_limits(top_k, node_limit)
    limits: dict[str, Any] = {"known": known, "top_k": top_k, "node_limit": node_limit}
    return answer(Query(quantity="decode", energy=energy, constraints=constraints, **limits))


def decode_hinge(
    energy: DirectedEnergy | PairwiseEnergy | CliqueEnergy,
    margin: float = 1.0,
    *,
    known: Known | None = None,
    top_k: int = 1,
    node_limit: NodeLimit = "auto",
    constraints: Constraints | None = None,
) -> Decoding:
    """argmin_y Σ_i [margin − m_i]_+, the labelling of least hinge loss, with its certificate.

    Args:
        energy: a directed model or a Boltzmann machine; cliques of three or more labels over 22 at most.
        margin: γ > 0, in units of the local fields.
        known: {0, 1, NaN}, NaN for a free label; known labels still pay their own hinge.
        top_k: how many labellings to return, best first; of a Boltzmann machine, for at most 22 labels.
        node_limit, constraints: see :func:`decode`.

    Raises:
        TypeError: another energy.
        ValueError: see :func:`decode`; a margin that is not a finite number above 0.
    """
    _check_limits(top_k, node_limit)
    limits: dict[str, Any] = {"known": known, "top_k": top_k, "node_limit": node_limit, "margin": margin}
    return answer(Query(quantity="decode_hinge", energy=energy, constraints=constraints, **limits))


def marginals(
    energy: AnyEnergy | SequentialEnergy,
    *,
    known: Known | None = None,
    matched: Matched | None = None,
    generator: torch.Generator | None = None,
    constraints: Constraints | None = None,
) -> Any:
    """P(y_i = 1), or of chains and trees P(y_t = s), exact where that is affordable, else approximate.

    ``method`` says in words which; ``status.exact`` says for which examples. ``log_partition`` is then exact,
    too; else it is the routine's own bound or approximation, or 0 for a directed model.

    Args:
        energy: see :func:`decode`, also for ``known``; of a directed model with more labels than are
            enumerated, and whose graph is not close to a tree, nothing may be known.
        matched: what a restricted Boltzmann machine was trained with, used where it is too large for
            enumeration; by default belief propagation.
        generator: the source of the samples that stand for many labels of a directed model.
        constraints: rules that the labellings obey, of at most 22 free labels or a sparse model; see
            :func:`log_partition`.

    Returns:
        ``Marginals``, of a restricted Boltzmann machine ``BipartiteMarginals``, of chains ``ChainMarginals``,
        of trees ``TreeMarginals``, of what is asked for label by label ``StateMarginals``.

    Raises:
        TypeError: another energy.
        ValueError: see :func:`decode`.
    """
    given: dict[str, Any] = {"known": known, "matched": matched, "generator": generator}
    return answer(Query(quantity="marginals", energy=energy, constraints=constraints, **given))


def log_partition(
    energy: AnyEnergy, *, known: Known | None = None, constraints: Constraints | None = None
) -> Float[Tensor, " batch"]:
    """log Σ_y exp(score(y)), exactly, over the labellings that agree with ``known``; differentiable.

    Args:
        energy: of any kind: at most 22 free labels (of a restricted Boltzmann machine, units of its smaller
            side), a Boltzmann machine or directed model whose graph is close to a tree, a chain, a tree, or a
            directed model of which nothing is known, whose log partition is 0.
        known: see :func:`decode`. For a directed model the result is log P(known).
        constraints: rules that the labellings obey, of at most 22 free labels, or of a sparse Boltzmann
            machine or directed model of any number. Of a directed model the result is then log P(allowed),
            together with what is known: log P(y | allowed) = log P(y) − log P(allowed).

    Raises:
        TypeError: another energy; under rules one over labels of several values.
        ValueError: see :func:`decode`; an energy for which there is no exact way, whose log partition
            :func:`lmbm_torch.inference.messages.mini_buckets.bounds` has from both sides.
    """
    return answer(Query(quantity="log_partition", energy=energy, known=known, constraints=constraints))


def sample(
    energy: PairwiseEnergy | CliqueEnergy | DirectedEnergy | BipartiteEnergy | ChainEnergy | SequentialEnergy,
    num_samples: int,
    *,
    known: Known | None = None,
    generator: torch.Generator | None = None,
    constraints: Constraints | None = None,
) -> Int[Tensor, "num_samples batch labels"]:
    """Independent draws of whole labellings from P(y), given the ``known`` labels and the rules.

    Args:
        energy: see :func:`log_partition`.
        num_samples: draws for each example.
        known: see :func:`decode`; None for whatever is drawn label by label.
        generator: the source of randomness, on the energy's device; by default torch's own.
        constraints: see :func:`log_partition`.

    Raises:
        TypeError: another energy; under rules one over labels of several values.
        ValueError: see :func:`log_partition`; fewer than 1 sample. Dependent draws of larger models are those
            of :mod:`lmbm_torch.inference.sampling.gibbs`.
    """
    check_count("num_samples", num_samples)
    given: dict[str, Any] = {"known": known, "num_samples": num_samples, "generator": generator}
    return answer(Query(quantity="sample", energy=energy, constraints=constraints, **given))


def _check_limits(top_k: int, node_limit: NodeLimit) -> None:
    check_count("top_k", top_k)
    if node_limit is not None and node_limit != "auto":
        check_count("node_limit", node_limit)
