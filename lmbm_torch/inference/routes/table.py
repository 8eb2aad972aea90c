"""Table of routes: which routine answers which query.

A :class:`Query` asks for a quantity of an energy. For each kind of energy and quantity, with and without
rules, :data:`ROUTES` lists pairs of a condition and a routine. The first routine whose condition holds gives
the answer. Routines are named by module and imported at first use. An energy of a kind outside this library,
a subclass of :class:`~lmbm_torch.energies.BaseEnergy`, is enumerated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib import import_module
from importlib.util import find_spec
from inspect import signature
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from lmbm_torch.checks import check_known
from lmbm_torch.constraints import Constraints
from lmbm_torch.energies.base import BaseEnergy, MarginEnergy
from lmbm_torch.energies.bipartite import BipartiteEnergy
from lmbm_torch.energies.chain import ChainEnergy
from lmbm_torch.energies.clique import CliqueEnergy
from lmbm_torch.energies.directed import DirectedEnergy
from lmbm_torch.energies.factor import FactorEnergy
from lmbm_torch.energies.pairwise import PairwiseEnergy
from lmbm_torch.energies.restricted import RestrictedEnergy
from lmbm_torch.energies.semi_chain import SemiChainEnergy
from lmbm_torch.energies.sequential import SequentialEnergy
from lmbm_torch.energies.tree import TreeEnergy
from lmbm_torch.inference.common.limits import LIMITS
from lmbm_torch.kernels.installed import has_numba
from lmbm_torch.memory import limit_bytes
from lmbm_torch.shapes import Known

NodeLimit = int | Literal["auto"] | None
"""Largest number of nodes of an example's search; "auto": default for the kind of energy; None: no limit."""


@runtime_checkable
class Matched(Protocol):
    """Inference that a model was trained with, like
    :class:`~lmbm_torch.inference.messages.matching.MatchedInference`."""

    @property
    def is_mean_field(self) -> bool:
        """Return whether marginals come from mean field rather than belief propagation."""
        ...

    def marginals(self, energy: BipartiteEnergy, known: Tensor | None = None, /) -> Any:
        """Return the marginals of a restricted Boltzmann machine."""
        ...


# Not frozen: creating a frozen record would take a tenth of the time of a small search.
@dataclass(eq=False, kw_only=True)
class Query:
    """Request for a quantity of an energy, with the arguments of the quantity's public function; read-only.

    Args:
        quantity: the name of the public function.
        energy: the energy; for an expected measure, the sequence of the mixture's members.
        measure: the name of the expected measure; "" for other quantities.
        connected: whether the energy has no independent parts, as far as known.
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
    measure: str = ""
    tolerance: float = 0.0
    max_labellings: int = LIMITS.labellings
    max_candidates: int = LIMITS.candidates
    connected: bool = False

    @property
    def first(self) -> Any:
        """Return the energy; for a mixture, the energy of the first member."""
        return self.energy[0] if self.measure else self.energy

    @property
    def free(self) -> int:
        """Return the largest number of unknown labels of an example.

        Raises:
            ValueError: ``known`` has another shape than (batch, labels), or values except 0, 1 and NaN.
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
        """Return the number of free labels; for a restricted Boltzmann machine at most the hidden units."""
        is_bipartite = isinstance(self.energy, BipartiteEnergy)
        return min(self.free, self.energy.num_hidden) if is_bipartite else self.free

    @cached_property
    def is_narrow(self) -> bool:
        """Return whether a junction tree of the energy and the rules has small tables."""
        ask, of_margins = _routine("graphs.elimination.is_narrow"), self.quantity == "decode_hinge"
        return ask(self.energy, LIMITS.treewidth, constraints=self.constraints, of_margins=of_margins)

    @property
    def nodes(self) -> int | None:
        """Return the largest number of nodes of an example's search."""
        if self.node_limit != "auto":
            return self.node_limit
        if isinstance(self.energy, FactorEnergy):
            return LIMITS.graph_nodes
        is_machine = isinstance(self.energy, PairwiseEnergy | CliqueEnergy)
        return LIMITS.machine_nodes if is_machine else LIMITS.network_nodes

    def option(self, name: str) -> Any:
        """Return the query's value for a routine's argument ``name``."""
        return self.nodes if name == "node_limit" else getattr(self, name)


class When(NamedTuple):
    """Condition on a query, in words for the manual and as a function."""

    words: str
    holds: Callable[[Query], bool]


class Route(NamedTuple):
    """Condition on a query, and the routine that answers queries for which the condition holds.

    Args:
        when: the condition.
        routine: module and function in this package, with ``{quantity}`` for the quantity's name. The routine
            takes the energy and the query's options by name, or only ``query``. None: refused.
        words: the ``method`` of the result; "" if the routine sets ``method``. For a refusal, the error
            message, filled in by :meth:`str.format`.
    """

    when: When
    routine: str | None
    words: str = ""


class Routes(NamedTuple):
    """Routes for some kinds of energy and some quantities.

    Args:
        kinds: the classes of energies.
        quantities: the names of the quantities.
        rules: True for queries under rules, False for queries without rules, None for both.
        rows: the routes in the order in which conditions are tried.
    """

    kinds: tuple[type, ...]
    quantities: tuple[str, ...]
    rules: bool | None
    rows: tuple[Route, ...]


def _enumerated(limit: int) -> int:
    """Return the largest number of labels to enumerate: more without numba, since searches are then slow."""
    return limit if has_numba() else max(limit, LIMITS.without_numba)


def _has_kernel(query: Query) -> bool:
    return query.known is None and _routine("enumeration.kernels.suits")(query.energy)


def _is_summed(query: Query) -> bool:
    are_shared = _routine("enumeration.label_halves.are_shared")(query.energy)
    return query.units <= (LIMITS.shared if are_shared else LIMITS.marginals)


def _fits(query: Query, max_bytes: int) -> bool:
    """Return whether the tables for eliminating a graph's variables take at most ``max_bytes``."""
    given: dict[str, Any] = {"known": query.known}
    return _routine("graphs.elimination.fits")(query.energy, query.quantity, max_bytes, **given)


def _largest_graph(energy: FactorEnergy) -> int:
    """Return the largest total number of table entries of an example."""
    structure = energy.structure
    if not energy.is_packed:
        return structure.num_entries
    sizes = torch.from_numpy(structure.first).diff()
    return int(
        sizes.new_zeros(energy.batch_size)
        .index_add(0, structure.tensor("table_graph", sizes.device), sizes)
        .max()
    )


def _is_tree(query: Query) -> bool:
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
    f"more than {LIMITS.elimination} labels, not yet split into independent parts",
    lambda query: query.units > LIMITS.elimination and not query.connected,
)
IN_PARTS = When(
    f"more than {LIMITS.enumeration} labels, not yet split into independent parts",
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
SUMMED = When(f"up to {LIMITS.marginals} labels ({LIMITS.shared} if examples share couplings)", _is_summed)
UNLIMITED = When(
    f"more than {LIMITS.dense} labels, `node_limit` is None",
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
    "no label known",
    lambda query: (
        query.known is None or (query.free == query.energy.num_labels and bool(query.known.isnan().all()))
    ),
)
MATCHED_FIELD = When(
    "trained with mean field", lambda query: query.matched is not None and query.matched.is_mean_field
)
MATCHED = When("trained with belief propagation", lambda query: query.matched is not None)
ONE_MATCH = When(
    "exact match of one belief network",
    lambda query: query.measure == "exact_match" and len(query.energy) == 1,
)
MATCH = When("exact match", lambda query: query.measure == "exact_match")
FEW_EXPECTED = When(
    f"up to {LIMITS.expected} labels", lambda query: query.first.num_labels <= LIMITS.expected
)
SMALL_TABLES = When(
    f"tables of up to {LIMITS.graph_bytes // 2**20} MiB, or several labellings",
    lambda query: query.top_k > 1 or _fits(query, LIMITS.graph_bytes),
)
FITTING_TABLES = When(
    f"tables of up to {LIMITS.table_bytes // 2**30} GiB, or the memory budget",
    lambda query: _fits(query, limit_bytes(LIMITS.table_bytes)),
)
CUT_TABLES = When(
    f"tables of up to {LIMITS.cut_bytes // 1000} kB for each example, SciPy installed",
    lambda query: 8 * _largest_graph(query.energy) <= LIMITS.cut_bytes and find_spec("scipy") is not None,
)
HAS_MARGINS = When("the energy has local margins", lambda query: isinstance(query.energy, MarginEnergy))

BY_TREE, BY_ENUMERATION = "exact, by a junction tree", "exact, by enumeration"
BY_PROGRAMMING = "exact, by dynamic programming"
NO_KNOWN = Route(
    GIVEN,
    None,
    "known: expected None for {query.energy.__class__.__name__}; give a known label log-potentials of -inf "
    "for its other states",
)
ONE_HINGE = Route(
    SEVERAL_OF_MANY,
    None,
    "top_k: expected 1 for decode_hinge, and for cliques of three or more labels, with more than "
    "{limits.enumerable} free labels, got {query.top_k} with {query.free} free labels",
)
SMALL_CLIQUES = Route(
    MANY,
    None,
    "energy: expected cliques of at most two labels for more than {limits.enumerable} free labels, got "
    "a clique of {largest_clique} labels and {query.free} free labels",
)
PROGRAMMED = Route(MANY, "routes.answers.programmed")
AS_PAIRS = Route(OF_PAIRS, "routes.answers.as_pairs")
AROUND_RULES = Route(ALWAYS, "routes.answers.around_rules")
BEST, SUMS = ("decode", "decode_hinge"), ("marginals", "log_partition", "sample")
QUANTITIES = (*BEST, *SUMS)
EXPECTED = ("decode_expected",)
MIXTURE_MATCH = Route(MATCH, "search.mixture.decode")
BY_LIKELY = Route(ALWAYS, "expected.bayes.decode")
ALLOWED_EXPECTED = (
    Route(MATCH, "expected.bayes.decode_most_probable"),
    Route(ALWAYS, "expected.bayes.decode_allowed"),
)
# Routes for exact sums. The last routine refuses energies with too many labels.
SUMMED_UP = (
    Route(NARROW_SUM, "graphs.elimination.{quantity}", BY_TREE),
    Route(LARGE_SUM, "routes.answers.sums_by_parts"),
    Route(ALWAYS, "enumeration.exact.{quantity}", BY_ENUMERATION),
)


ROUTES: tuple[Routes, ...] = (
    Routes((RestrictedEnergy,), QUANTITIES, None, (Route(ALWAYS, "routes.answers.under_own_rules"),)),
    Routes(
        (DirectedEnergy,),
        BEST,
        None,
        (
            Route(FEW_OR_SEVERAL, "search.branch_and_bound.{quantity}"),
            Route(IN_PARTS, "routes.answers.best_by_parts"),
            Route(ALWAYS, "routes.answers.searched_then_tree"),
        ),
    ),
    Routes(
        (PairwiseEnergy,),
        ("decode",),
        False,
        (
            Route(SEVERAL_OF_MANY, "routes.answers.best_few"),
            Route(HAS_TREE, "graphs.elimination.decode"),
            Route(ENUMERATED_SCORES, "enumeration.exact.decode"),
            Route(IN_PARTS, "routes.answers.best_by_parts"),
            Route(UNLIMITED, "routes.answers.searched_then_semidefinite"),
            Route(ALWAYS, "search.undirected_branch_and_bound.decode"),
        ),
    ),
    Routes(
        (PairwiseEnergy,),
        ("decode",),
        True,
        (
            Route(SEVERAL, "routes.answers.around_rules"),
            Route(HAS_TREE, "graphs.elimination.decode"),
            Route(ALLOWED_BY_KERNEL, "under_rules.allowed.enumerated"),
            Route(IN_PARTS, "routes.answers.best_by_parts"),
            Route(NARROW_WITHOUT_RULES, "routes.answers.around_rules"),
            Route(UNLIMITED, "routes.answers.searched_then_semidefinite"),
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
            Route(HAS_TREE, "graphs.elimination.decode_hinge"),
            Route(IN_PARTS, "routes.answers.best_by_parts"),
            Route(ALWAYS, "search.undirected_branch_and_bound.decode_hinge"),
        ),
    ),
    Routes(
        (PairwiseEnergy,),
        ("decode_hinge",),
        True,
        (
            Route(SEVERAL, "routes.answers.around_rules"),
            Route(IN_PARTS, "routes.answers.best_by_parts"),
            Route(ALWAYS, "search.undirected_branch_and_bound.decode_hinge"),
        ),
    ),
    Routes(
        (CliqueEnergy,),
        BEST,
        False,
        (
            AS_PAIRS,
            ONE_HINGE,
            Route(NARROW_BEST, "graphs.elimination.{quantity}"),
            PROGRAMMED,
            Route(ALWAYS, "enumeration.exact.{quantity}"),
        ),
    ),
    Routes((CliqueEnergy,), ("decode",), True, (Route(HAS_TREE, "graphs.elimination.decode"), AROUND_RULES)),
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
        (SemiChainEnergy,),
        ("decode", "marginals", "log_partition"),
        False,
        (
            NO_KNOWN,
            Route(SEVERAL, None, "top_k: expected 1 for a SemiChainEnergy, got {query.top_k}"),
            Route(ALWAYS, "trees.semi_chain_dp.{quantity}", BY_PROGRAMMING),
        ),
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
        (FactorEnergy,),
        ("decode",),
        False,
        (
            Route(SMALL_TABLES, "graphs.elimination.decode"),
            Route(FITTING_TABLES, "routes.answers.ascended_then_eliminated"),
            Route(CUT_TABLES, "routes.answers.ascended_then_cut"),
            Route(ALWAYS, "graphs.dual_ascent.branch_and_bound"),
        ),
    ),
    Routes(
        (FactorEnergy,),
        ("marginals",),
        False,
        (
            Route(FITTING_TABLES, "graphs.elimination.marginals", BY_TREE),
            Route(ALWAYS, "graphs.belief_propagation.marginals", "approximate, by belief propagation"),
        ),
    ),
    Routes(
        (FactorEnergy,),
        ("decode_hinge", "log_partition", "sample"),
        False,
        (Route(ALWAYS, "graphs.elimination.{quantity}"),),
    ),
    Routes((FactorEnergy,), QUANTITIES, True, (Route(ALWAYS, "routes.answers.graph_under_rules"),)),
    Routes(
        (DirectedEnergy,),
        ("marginals",),
        False,
        (
            Route(NARROW_SUM, "graphs.elimination.marginals", BY_TREE),
            Route(LARGE_SUM, "routes.answers.sums_by_parts"),
            Route(SUMMED, "enumeration.exact.marginals", BY_ENUMERATION),
            Route(
                GIVEN,
                None,
                "known: expected None for a directed model of more than {limits.marginals} free labels, "
                "whose marginals are sampled, got known labels and {query.free} free labels",
            ),
            Route(ALWAYS, "sampling.ancestral.marginals", f"means over {LIMITS.samples} samples"),
        ),
    ),
    Routes(
        (PairwiseEnergy,),
        ("marginals",),
        False,
        (
            Route(NARROW_SUM, "graphs.elimination.marginals", BY_TREE),
            Route(LARGE_SUM, "routes.answers.sums_by_parts"),
            Route(SUMMED, "enumeration.exact.marginals", BY_ENUMERATION),
            Route(ALWAYS, "messages.mean_field.marginals", "approximate, by mean field"),
        ),
    ),
    Routes(
        (CliqueEnergy,),
        ("marginals",),
        False,
        (
            Route(NARROW_SUM, "graphs.elimination.marginals", BY_TREE),
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
            Route(MATCHED_FIELD, "routes.answers.by_matched", "approximate, by mean field"),
            Route(MATCHED, "routes.answers.by_matched", "approximate, by belief propagation"),
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
            Route(GIVEN, None, "known: expected None for samples of a SequentialEnergy, got known labels"),
            Route(ALWAYS, "sampling.ancestral.sample"),
        ),
    ),
    Routes(
        (DirectedEnergy,),
        ("log_partition",),
        False,
        (Route(NORMALISED, "routes.answers.normalised"), *SUMMED_UP),
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
            Route(NARROW_SUM, "graphs.elimination.{quantity}", BY_TREE),
            Route(LARGE_SUM, "routes.answers.sums_by_parts"),
            Route(MANY, "graphs.elimination.{quantity}", BY_TREE),
            Route(ALWAYS, "routes.answers.enumerated_under_rules", BY_ENUMERATION),
        ),
    ),
    Routes(
        (DirectedEnergy,),
        EXPECTED,
        False,
        (MIXTURE_MATCH, Route(FEW_EXPECTED, "expected.bayes.enumerated"), BY_LIKELY),
    ),
    Routes((SequentialEnergy,), EXPECTED, False, (MIXTURE_MATCH, BY_LIKELY)),
    Routes(
        (DirectedEnergy,), EXPECTED, True, (Route(ONE_MATCH, "routes.answers.best_of_one"), *ALLOWED_EXPECTED)
    ),
    Routes((SequentialEnergy,), EXPECTED, True, ALLOWED_EXPECTED),
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
        (Route(ALWAYS, "routes.answers.enumerated_under_rules", BY_ENUMERATION),),
    ),
)


@cache
def _rows(kind: type, quantity: str, rules: bool) -> tuple[Route, ...]:
    for routes in ROUTES:
        if quantity in routes.quantities and routes.rules in (None, rules) and issubclass(kind, routes.kinds):
            return routes.rows
    return ()


def route_of(query: Query) -> Route:
    """Return the first route of the query's kind whose condition holds.

    Raises:
        TypeError: the table has no route for the kind of energy and quantity.
        ValueError: ``known`` has another shape than (batch, labels), or values except 0, 1 and NaN.
    """
    kind = type(query.first)
    for route in _rows(kind, query.quantity, query.constraints is not None):
        if route.when.holds(query):
            return route
    names = {
        kind.__name__: None
        for routes in ROUTES
        if query.quantity in routes.quantities
        for kind in routes.kinds
        if kind not in (BaseEnergy, RestrictedEnergy)
    }
    raise TypeError(f"energy: expected one of {', '.join(names)}, got {kind.__name__}")


def answer(query: Query) -> Any:
    """Look up the query's route, and return the routine's answer.

    Raises:
        TypeError: the table has no route for the kind of energy and quantity.
        ValueError: the route or the routine refuses the query.
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
        found = routine(query.energy, **{name: query.option(name) for name in taken})
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
    module, _, function = name.rpartition(".")
    return getattr(_module(module), function)


@cache
def _module(name: str) -> Any:
    return import_module(f"lmbm_torch.inference.{name}")


# Fields of a query that routines may take as arguments.
OPTIONS = (
    *("known", "constraints", "margin", "top_k", "node_limit", "num_samples", "generator"),
    *("measure", "tolerance", "max_labellings", "max_candidates"),
)


@cache
def _taken(routine: Callable[..., Any]) -> tuple[str, ...] | None:
    """Return the routine's arguments that are options of a query; None if the routine takes the query."""
    arguments = signature(routine).parameters
    return None if "query" in arguments else tuple(name for name in OPTIONS if name in arguments)
