"""Factor graphs: labels with different numbers of states, coupled by tables over any number of labels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from lmbm_torch.checks import check_device, check_like, check_log_potentials, check_magnitude, check_shape
from lmbm_torch.energies.base import BaseEnergy, check_floating, check_precision, kept
from lmbm_torch.energies.chain import PADDING
from lmbm_torch.shapes import Float, Known, Scores, Shaped
from lmbm_torch.verdicts import refuse_unless


@dataclass(frozen=True)
class FactorScopes:
    """The structure of a factor graph: variables with numbers of states, and the scopes of tables.

    A scope is the variables of a table. Entries are numbered table after table: first a table for each
    variable (the unaries), then a table for each scope. The state of a scope's last variable changes fastest.

    Args:
        num_states: the number of states of each variable, at least 1.
        scopes: the variables of each further table, without repetition; ``()`` for a constant.
        start: if each example has its own graph, the first variable of each graph, then the number of
            variables; empty if all examples share one graph.

    Raises:
        ValueError: there is no variable, or a variable without states; a scope has an unknown or repeated
            variable, or variables of several graphs; ``start`` does not ascend from 0 to all variables.

    Examples:
        >>> from lmbm_torch.energies import FactorScopes
        >>> FactorScopes((2, 3), ((0, 1),)).first.tolist()
        [0, 2, 5, 11]
    """

    num_states: tuple[int, ...]
    scopes: tuple[tuple[int, ...], ...] = ()
    start: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        variables = len(self.num_states)
        if not variables or min(self.num_states) < 1:
            raise ValueError(f"num_states: expected at least 1 for each variable, got {self.num_states[:10]}")
        for scope in self.scopes:
            if len({*scope}) < len(scope) or not all(0 <= variable < variables for variable in scope):
                raise ValueError(f"scopes: expected distinct variables below {variables}, got {scope}")
        if self.start:
            if self.start[0] != 0 or self.start[-1] != variables or (np.diff(self.start) < 1).any():
                raise ValueError(f"start: expected numbers ascending from 0 to {variables}, got {self.start}")
            graph = self.graph_of
            for scope in self.scopes:
                if len({int(graph[variable]) for variable in scope}) != 1:
                    raise ValueError(f"scopes: expected variables of one graph, got {scope}")

    @property
    def num_variables(self) -> int:
        return len(self.num_states)

    @property
    def num_unary(self) -> int:
        """Return the number of entries of all unary tables together."""
        return int(self.first[self.num_variables])

    @property
    def num_entries(self) -> int:
        return int(self.first[-1])

    @property
    def every_scope(self) -> tuple[tuple[int, ...], ...]:
        """Return the scopes of all tables, the unaries first."""
        return (*((variable,) for variable in range(self.num_variables)), *self.scopes)

    @kept
    def first(self) -> np.ndarray:
        """Return the index of each table's first entry, then the number of entries, (tables + 1,)."""
        sizes = [prod(self.num_states[each] for each in scope) for scope in self.every_scope]
        return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)

    @kept
    def graph_of(self) -> np.ndarray:
        """Return for each variable the number of its graph, (variables,)."""
        return np.repeat(np.arange(len(self.start) - 1), np.diff(self.start))

    @kept
    def places(self) -> tuple[np.ndarray, np.ndarray]:
        """Return two arrays (tables, largest scope): the variables of each table, and the states' strides.

        Rows of smaller scopes are filled up with variable 0 and stride 0.
        """
        scopes = self.every_scope
        order = max(map(len, scopes))
        members, strides = np.zeros((2, len(scopes), order), np.int64)
        for table, scope in enumerate(scopes):
            stride = 1
            for place in range(len(scope) - 1, -1, -1):
                members[table, place], strides[table, place] = scope[place], stride
                stride *= self.num_states[scope[place]]
        return members, strides

    @kept
    def slots(self) -> tuple[np.ndarray, ...]:
        """List each state of each variable of each table, as arrays of table, variable, state and stride."""
        scopes, (_, strides) = self.every_scope, self.places
        rows = [(t, v, strides[t, place]) for t, scope in enumerate(scopes) for place, v in enumerate(scope)]
        table, variable, stride = np.array(rows, np.int64).T
        sizes = np.array(self.num_states)[variable]
        state = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        return *(np.repeat(each, sizes) for each in (table, variable)), state, np.repeat(stride, sizes)

    @kept
    def _on_devices(self) -> dict[tuple[str, torch.device], Tensor]:
        return {}

    def tensor(self, name: str, device: torch.device) -> Tensor:
        """Return an index array as a tensor; each array is sent to a device only once."""
        if (name, device) not in self._on_devices:
            arrays = {
                "first": lambda: self.first[:-1],
                "members": lambda: self.places[0],
                "strides": lambda: self.places[1],
                "num_states": lambda: np.array(self.num_states),
                "graph": lambda: self.graph_of,
                "table_graph": lambda: self.graph_of[[scope[0] for scope in self.every_scope]],
                # The number of each variable, counted from the first variable of the graph.
                "place": lambda: np.arange(self.num_variables) - np.array(self.start)[self.graph_of],
                "unary_variable": lambda: np.repeat(np.arange(self.num_variables), self.num_states),
                **{
                    f"slot_{name}": lambda at=at: self.slots[at]
                    for at, name in enumerate(("table", "variable", "state", "stride"))
                },
                "unary_state": lambda: np.concatenate([np.arange(each) for each in self.num_states]),
            }
            with torch.inference_mode(False):
                self._on_devices[name, device] = torch.from_numpy(arrays[name]()).to(device)
        return self._on_devices[name, device]


@dataclass(frozen=True)
class FactorEnergy(BaseEnergy):
    """A batch of factor graphs; labels 0 … states − 1 may have different numbers of states.

        score(y) = Σ_i unary_i(y_i) + Σ_c table_c(y_c),     p(y) ∝ exp(score(y))

    over scopes c of any number of labels (max_margin_markov_networks_survey_2003, section 3). A log-potential
    of −∞ forbids the labellings of an entry. The examples share one graph, or each example has its own graph
    (:meth:`packed`). Labels beyond the last variable of a graph are ``PADDING`` (−1), and are never read.

    Args:
        table: log-potentials of all entries, in the order of :class:`FactorScopes`; for packed graphs without
            a batch axis.
        structure: the numbers of states and the scopes.

    Raises:
        ValueError: ``table`` has another shape than the structure, or is not floating-point.

    Examples:
        >>> import torch
        >>> from lmbm_torch import FactorEnergy, decode
        >>> tables = [((0,), torch.tensor([0.0, 1.0, 0.0])), ((0, 1), torch.eye(3)[:, :2])]
        >>> decode(FactorEnergy.of((3, 2), tables)).labels
        tensor([[1, 1]])
    """

    PER_EXAMPLE: ClassVar = {"table": 2}

    table: Float[Tensor, "batch entries"] | Float[Tensor, " entries"]
    structure: FactorScopes

    def __post_init__(self) -> None:
        self._resolve_negative()
        leading = () if self.is_packed else (None,)
        check_shape("table", self.table, *leading, self.structure.num_entries)
        check_floating("table", self.table)

    @classmethod
    def of(cls, num_states: Sequence[int], factors: Iterable[tuple[Sequence[int], Tensor]]) -> FactorEnergy:
        """Build the energy of one graph from scopes with tables; tables of one variable are added.

        Args:
            num_states: the number of states of each variable.
            factors: pairs of a scope and its log-potentials (states of the first variable, …), optionally
                with a batch axis in front.

        Raises:
            ValueError: there is no factor; a table's shape does not fit its scope; see :class:`FactorScopes`.
        """
        factors = [(tuple(map(int, scope)), table) for scope, table in factors]
        if not factors:
            raise ValueError("factors: expected at least one factor, got none")
        structure = FactorScopes(tuple(map(int, num_states)), tuple(c for c, _ in factors if len(c) != 1))
        flat, batch, like = [], 1, factors[0][1]
        for scope, table in factors:
            shape = tuple(structure.num_states[variable] for variable in scope)
            leading = table.shape[: table.ndim - len(shape)] if table.ndim == len(shape) + 1 else ()
            check_shape(f"factors: the table of {scope}", table, *leading, *shape)
            check_like(f"factors: the table of {scope}", table, "the first", like)
            flat.append(table.reshape(*(leading or (1,)), -1))
            batch = max(batch, len(flat[-1]))
        unary: list[Any] = [None] * structure.num_variables
        for (scope, _), table in zip(factors, flat, strict=True):
            if len(scope) == 1:
                unary[scope[0]] = table if unary[scope[0]] is None else unary[scope[0]] + table
        pairs = zip(unary, structure.num_states, strict=True)
        parts = [like.new_zeros(1, states) if each is None else each for each, states in pairs]
        parts += [table for (scope, _), table in zip(factors, flat, strict=True) if len(scope) != 1]
        return cls(torch.cat([part.expand(batch, -1) for part in parts], 1), structure)

    @classmethod
    def from_edges(cls, unary: Tensor, edges: Tensor | np.ndarray, pairwise: Tensor) -> FactorEnergy:
        """Build the energy of one graph from its edges, such as a grid.

        Args:
            unary: (batch, variables, states).
            edges: (edges, 2), int64.
            pairwise: row r, column s: log-potential of the first variable in state r and the second in state
                s; (states, states), (edges, states, states) or (batch, edges, states, states).

        Raises:
            ValueError: a tensor has a wrong shape, dtype or device; see also :class:`FactorScopes`.
        """
        check_shape("unary", unary, None, None, None)
        batch, variables, states = unary.shape
        scopes = tuple(map(tuple, edges.tolist()))
        leading = {3: (len(scopes),), 4: (batch, len(scopes))}.get(pairwise.ndim, ())
        check_shape("pairwise", pairwise, *leading, states, states)
        check_like("pairwise", pairwise, "unary", unary)
        tables = pairwise.expand(batch, len(scopes), states, states).reshape(batch, -1)
        table = torch.cat([unary.reshape(batch, -1), tables], 1)
        return cls(table, FactorScopes((states,) * variables, scopes))

    @classmethod
    def packed(cls, energies: Sequence[FactorEnergy]) -> FactorEnergy:
        """Join all examples of several energies, whose graphs may differ, into one batch.

        Raises:
            ValueError: there is no energy, or energies differ in dtype or device.
        """
        every = [one for energy in energies for one in energy.examples()]
        if not every:
            raise ValueError("energies: expected at least one energy, got none")
        for one in every:
            check_like("energies: each", one.table, "the first", every[0].table)
        start = np.concatenate([[0], np.cumsum([one.structure.num_variables for one in every])]).tolist()
        scopes = tuple(
            tuple(first + variable for variable in scope)
            for first, one in zip(start, every, strict=False)
            for scope in one.structure.scopes
        )
        # Add constants to the first unary of each graph first, since an empty scope belongs to no graph.
        if any(not scope for scope in scopes):
            return cls.packed([one.without_constants() for one in every])
        unaries = [one.table[0, : one.structure.num_unary] for one in every]
        tables = [one.table[0, one.structure.num_unary :] for one in every]
        states = tuple(each for one in every for each in one.structure.num_states)
        return cls(torch.cat(unaries + tables), FactorScopes(states, scopes, tuple(start)))

    @property
    def is_packed(self) -> bool:
        """Return whether each example has its own graph."""
        return bool(self.structure.start)

    @property
    def batch_size(self) -> int:
        return len(self.structure.start) - 1 if self.is_packed else self.table.shape[0]

    @property
    def num_labels(self) -> int:
        """Return the number of variables or, for packed graphs, of variables in the largest graph."""
        start = self.structure.start
        return int(np.diff(start).max()) if start else self.structure.num_variables

    @property
    def num_states(self) -> int:
        """Return the largest number of states of a variable."""
        return max(self.structure.num_states)

    @property
    def inside(self) -> Tensor:
        """Return a mask (batch, labels), true up to each graph's last variable."""
        start = self.structure.start or (0, *[self.num_labels] * self.batch_size)
        lengths = np.diff(start) if self.is_packed else np.full(self.batch_size, self.num_labels)
        mask = np.arange(self.num_labels) < lengths[:, None]
        return torch.from_numpy(mask).to(self.device)

    def check_values(self) -> None:
        """Raise ValueError for NaN, +∞, extremely large or half-precision log-potentials; −∞ is allowed."""
        check_precision(self.dtype)
        check_log_potentials("table", self.table)
        check_magnitude("table", self.table)

    def score(self, labels: Shaped[Tensor, "*samples #batch labels"]) -> Scores:
        """Return the score Σ_i unary_i(y_i) + Σ_c table_c(y_c), −∞ if the labelling is forbidden.

        Raises:
            ValueError: a label of a graph is no state.
        """
        structure, device = self.structure, self.device
        check_shape("labels", labels, *labels.shape[:-2], *self._rows(labels), self.num_labels)
        check_device("labels", labels, device)
        values = self._values(self._entries(self._by_variable(labels)))
        if not self.is_packed:
            return values.sum(-1)
        graph = structure.tensor("table_graph", device)
        total = values.new_zeros(*values.shape[:-1], self.batch_size)
        return total.index_add(-1, graph, values)

    def _by_variable(self, labels: Tensor) -> Tensor:
        """Arrange labels by variable: (…, variables) for packed graphs, else (…, batch, variables)."""
        labels, device = labels.expand(*labels.shape[:-2], self.batch_size, -1), self.device
        if self.is_packed:
            labels = labels[
                ..., self.structure.tensor("graph", device), self.structure.tensor("place", device)
            ]
        self._check_states(labels)
        return labels.long()

    def _entries(self, labels: Tensor) -> Tensor:
        """Return for each table the index of the entry for ``labels``, (…, tables)."""
        structure, device = self.structure, self.device
        members, strides = structure.tensor("members", device), structure.tensor("strides", device)
        return structure.tensor("first", device) + (labels[..., members] * strides).sum(-1)

    def _values(self, entry: Tensor) -> Tensor:
        # Clamp the indices: a GPU kernel must not get an index out of range, even if it is refused later.
        entry = entry.clamp(0, self.structure.num_entries - 1)
        return self.table.expand(*entry.shape[:-1], -1).gather(-1, entry)

    def _rows(self, labels: Tensor) -> tuple[int, ...]:
        return (1 if labels.ndim > 1 and labels.shape[-2] == 1 else self.batch_size,)

    def _check_states(self, labels: Tensor) -> None:
        strange = (labels < 0) | (labels >= self.structure.tensor("num_states", self.device))
        wanted = "labels: expected 0 to each variable's number of states − 1"

        def refuse() -> None:
            raise ValueError(f"{wanted}, got other values for {int(strange.sum())} labels")

        refuse_unless(wanted, (strange,), lambda: ~strange.any(), refuse)

    def select(self, rows: Tensor | slice) -> FactorEnergy:
        """Return the energy of the examples ``rows`` of the batch."""
        if not self.is_packed:
            return replace(self, table=self.table[rows])
        chosen = torch.arange(self.batch_size, device="cpu")[rows if isinstance(rows, slice) else rows.cpu()]
        every = self.examples()
        return FactorEnergy.packed([every[row] for row in chosen.tolist()])

    def examples(self) -> list[FactorEnergy]:
        """Split the batch into an energy with a batch of 1 for each example."""
        structure = self.structure
        if not self.is_packed:
            return [replace(self, table=self.table[row : row + 1]) for row in range(self.batch_size)]
        of_graph: list[list[int]] = [[] for _ in range(self.batch_size)]
        for table, scope in enumerate(structure.scopes):
            of_graph[int(structure.graph_of[scope[0]])].append(table)
        found, first = [], structure.first
        for tables, (begin, end) in zip(of_graph, pairwise(structure.start), strict=True):
            scopes = tuple(tuple(each - begin for each in structure.scopes[table]) for table in tables)
            spans = [slice(int(first[begin]), int(first[end]))]
            places = [structure.num_variables + table for table in tables]
            # Copy tables that are adjacent in memory together, which is faster.
            for place in places:
                here = slice(int(first[place]), int(first[place + 1]))
                if len(spans) > 1 and spans[-1].stop == here.start:
                    spans[-1] = slice(spans[-1].start, here.stop)
                else:
                    spans.append(here)
            table = torch.cat([self.table[span] for span in spans])[None]
            found.append(FactorEnergy(table, FactorScopes(structure.num_states[begin:end], scopes)))
        return found

    def add_unary(self, unary: Float[Tensor, "#batch labels states"]) -> FactorEnergy:
        """Return the energy with Σ_i unary_i(y_i) added to the score.

        See :meth:`BaseEnergy.add_unary`; entries beyond a label's number of states are not read.
        """
        self._check_unary(unary, self.table.new_empty(self.batch_size, self.num_labels, self.num_states))
        return replace(self, table=self._with_unary(self.unary_entries(unary), torch.add))

    def given(self, known: Known | None) -> FactorEnergy:
        """Return the energy in which labellings that disagree with ``known`` are forbidden.

        Args:
            known: (batch, labels), a state, or NaN for a free label.

        Raises:
            ValueError: ``known`` has another shape or device, or a value that is no state of the label.
        """
        if known is None:
            return self
        check_shape("known", known, self.batch_size, self.num_labels)
        check_device("known", known, self.device)
        states = torch.arange(self.num_states, device=self.device)
        value = self.unary_entries(known[..., None].expand(-1, -1, self.num_states))
        state = self.unary_entries(states.expand(*known.shape, -1))
        most = self.structure.tensor("num_states", self.device)
        most = most[self.structure.tensor("unary_variable", self.device)]
        strange = ~value.isnan() & ~((value >= 0) & (value < most) & (value == value.round()))
        wanted = "known: expected a state of each label, or NaN"

        def refuse() -> None:
            raise ValueError(f"{wanted}, got other values for {int(strange.sum())} labels")

        refuse_unless(wanted, (known,), lambda: ~strange.any(), refuse)
        out = ~value.isnan() & (value != state)
        return replace(self, table=self._with_unary(out, lambda own, mask: own.masked_fill(mask, -torch.inf)))

    def unary_entries(self, values: Shaped[Tensor, "_batch labels states"]) -> Shaped[Tensor, "*_"]:
        """Select from padded values (batch, labels, states) the entries of the unary tables, in order."""
        structure, device = self.structure, self.device
        variable, state = (structure.tensor(f"unary_{name}", device) for name in ("variable", "state"))
        if not self.is_packed:
            return values[:, variable, state]
        values = values.expand(self.batch_size, -1, -1)
        graph, place = structure.tensor("graph", device), structure.tensor("place", device)
        return values[graph[variable], place[variable], state]

    def padded(self, entries: Tensor, fill: float = 0.0) -> Float[Tensor, "batch labels states"]:
        """Arrange values of the unary tables' entries as (batch, labels, states), padded with ``fill``."""
        structure, device = self.structure, self.device
        variable, state = (structure.tensor(f"unary_{name}", device) for name in ("variable", "state"))
        found = entries.new_full((self.batch_size, self.num_labels, self.num_states), fill)
        if not self.is_packed:
            found[:, variable, state] = entries
        else:
            graph, place = structure.tensor("graph", device), structure.tensor("place", device)
            found[graph[variable], place[variable], state] = entries
        return found

    def _with_unary(self, change: Tensor, combine: Any) -> Tensor:
        size = self.structure.num_unary
        own, rest = self.table[..., :size], self.table[..., size:]
        return torch.cat([combine(own, change), rest.expand(*own.shape[:-1], -1)], -1)

    def without_constants(self) -> FactorEnergy:
        """Move constants (tables with an empty scope) into the first unary table; scores stay equal."""
        structure = self.structure
        empty = [number for number, scope in enumerate(structure.scopes) if not scope]
        if not empty:
            return self
        at = torch.from_numpy(structure.first[structure.num_variables + np.array(empty)]).to(self.device)
        keep = torch.ones(structure.num_entries, dtype=torch.bool, device=self.device)
        keep[at] = False
        constant = self.table[..., at].sum(-1, keepdim=True)
        size = structure.num_states[0]
        table = torch.cat([self.table[..., :size] + constant, self.table[..., size:][..., keep[size:]]], -1)
        scopes = tuple(scope for scope in structure.scopes if scope)
        return FactorEnergy(table, replace(structure, scopes=scopes))

    def local_margins(self, labels: Shaped[Tensor, "*samples #batch labels"]) -> Float[Tensor, "*_ labels"]:
        """Return the local margins ½ (score(y) − best score of y with label i in another state).

        The margin is ∞ for a label without other states, and −∞ in a forbidden labelling. For binary labels
        the margin is s_i z_i, the agreement of label i with the local field.
        """
        here, structure, device = self.score(labels), self.structure, self.device
        labels = self._by_variable(labels)
        table, variable, state, stride = (
            structure.tensor(f"slot_{name}", device) for name in ("table", "variable", "state", "stride")
        )
        change = (state - labels[..., variable]) * stride
        values = self._values(self._entries(labels)[..., table] + change)
        local = values.new_zeros(*values.shape[:-1], structure.num_variables * self.num_states)
        local = local.index_add(-1, variable * self.num_states + state, values)
        # Treat states beyond a variable's number of states as forbidden.
        has = torch.arange(self.num_states, device=device) < structure.tensor("num_states", device)[:, None]
        local = local.unflatten(-1, has.shape).masked_fill(~has, -torch.inf)
        most = local.scatter(-1, labels[..., None], -torch.inf).amax(-1)
        gain = local.gather(-1, labels[..., None]).squeeze(-1) - most
        gain = gain.masked_fill(most == -torch.inf, torch.inf)
        if self.is_packed:
            graph, place = structure.tensor("graph", device), structure.tensor("place", device)
            margins = gain.new_full((*here.shape, self.num_labels), torch.inf)
            margins[..., graph, place] = gain
            gain = margins
        # Make all margins of a forbidden labelling −∞, so that the hinge loss is infinite.
        is_out = (here == -torch.inf)[..., None] & self.inside
        return gain.masked_fill(is_out, -torch.inf) / 2


def padded_labels(energy: FactorEnergy, labels: Tensor) -> Tensor:
    """Replace labels beyond each graph's last variable by ``PADDING``."""
    return labels.where(energy.inside, PADDING) if energy.is_packed else labels
