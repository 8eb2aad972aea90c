"""Tree-reweighted belief propagation in graphs of pairs: marginals and an upper bound of the log partition.

The appearance ρ_ij of a pair is the probability that a random spanning tree contains the pair. With the field
b_i(s) = unary_i(s) + Σ_j ρ_ij M_ji(s), variable j sends to a neighbour i the message

    M_ji(s) = log Σ_t exp(table_ij(s, t) / ρ_ij + c_ji(t)),     c_ji = b_j − M_ij

up to a constant (Wainwright, Jaakkola and Willsky 2005). All spanning trees are equally likely; pairs with a
variable of a single possible state are on no tree, and each connected part has its own trees. ρ_ij is the
effective resistance of the pair.

The bound holds for any messages, converged or not. Let r_i be the probability that variable i is the root of
a random tree, and ρ_{j|i} the probability that i is the parent of j: ρ_{i|j} + ρ_{j|i} = ρ_ij. Then
H(y) ≤ Σ_i r_i H(y_i) + Σ_ij ρ_{j|i} H(y_j | y_i), because conditioning on fewer variables cannot reduce an
entropy, and log Z = E[score] + H(y) is at most E[score] plus the sum. The table of a pair is divided between
both directions in proportion to ρ_{i|j} and ρ_{j|i}, and ρ_{j|i} c_ji is moved from variable j to the
direction from i to j. Maximising over each p(y_j | y_i) separately, then over each p(y_i), gives

    log Z ≤ Σ_i r_i log Σ_s exp(b_i(s) + Σ_j ρ_{j|i} (A_ji(s) − M_ji(s)) / r_i),

where A_ji is the next message of j, with the constant (dual of Globerson and Jaakkola 2007). At a fixed point
the bound is stationary. As the bound is convex in c, it is then the smallest bound for the trees.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from lmbm_torch.energies import FactorEnergy
from lmbm_torch.energies.first_order import first_order
from lmbm_torch.inference.common import iterations as ascent
from lmbm_torch.inference.common.iterations import Settings
from lmbm_torch.inference.common.results import StateMarginals, Status
from lmbm_torch.inference.graphs.parts import in_rows, parts_of
from lmbm_torch.shapes import Float, Int, Known
from lmbm_torch.verdicts import one_door

__all__ = ["marginals"]

# Largest number of variables of a graph; the matrix of effective resistances then takes 128 MiB.
MOST_VARIABLES = 4096
# Log-potential of an impossible state: far below any score, but finite, so gradients are finite.
EXCLUDED = -1e30
# Smallest difference 1 − ρ that counts: a pair with less is on every tree, up to round-off.
ROUND_OFF = 1e-6


@one_door
def marginals(
    energy: FactorEnergy,
    *,
    num_iters: int = 100,
    tol: float = 1e-6,
    damping: float = 0.5,
    known: Known | None = None,
) -> StateMarginals:
    """Return tree-reweighted marginals; ``log_partition`` is an upper bound of the exact value.

    The bound holds up to rounding, with and without convergence. At convergence it is the smallest for these
    trees, and exact on a forest. ``log_partition`` is differentiable in the tables, with messages held
    constant, which gives the true gradient at a fixed point. There is no second derivative.

    Args:
        energy: graphs of tables of at most two labels; −∞ only in unaries.
        num_iters: the largest number of iterations, each an update of all messages.
        tol: an example has converged, and is no longer updated, once an update without damping would change
            no message, a log-potential, by more than ``tol``.
        damping: the share of the old value in a new message, in [0, 1). With strong couplings, messages
            oscillate without damping.
        known: (batch, labels), a label's known state, or NaN for a free label.

    Raises:
        ValueError: NaN or +∞ in the energy, −∞ in a table of two labels, or a table of more than two; more
            than 4,096 variables; ``known`` has another shape than (batch, labels), or impossible values;
            ``num_iters`` below 1; a negative ``tol``; ``damping`` outside [0, 1).
        RuntimeError: a gradient is differentiated again.

    Examples:
        >>> import torch
        >>> from lmbm_torch.energies import FactorEnergy
        >>> from lmbm_torch.inference.graphs import tree_reweighted
        >>> chain = FactorEnergy.of((2, 2), [((0, 1), torch.zeros(2, 2))])
        >>> tree_reweighted.marginals(chain).log_partition.exp()
        tensor([4.])
    """
    settings = Settings(num_iters, tol, damping, known, None)
    settings.check()
    parts, found = parts_of(first_order(energy, "tree_reweighted.marginals"), known), []
    for part in parts:
        graph = Graph.of(part.energy)
        messages, status = graph.start(), Status.certain(part.energy, 0)
        if len(graph.receiver):
            messages, status = graph.fixed_point(settings)
        states = graph.fields(messages).detach().softmax(-1)
        missing = energy.num_states - states.shape[2], energy.num_labels - states.shape[1]
        states = pad(states, (0, missing[0], 0, missing[1]))
        found.append((states, graph.upper_bound(messages), *vars(status).values()))
    each: Any = [in_rows(parts, values) for values in zip(*found, strict=True)]
    return StateMarginals(each[0], Status(*each[2:]), each[1])


class Graph(NamedTuple):
    """Batch of graphs of pairs, with functions on messages (batch, messages, states).

    Each pair has two messages: the first half of all messages goes to the pairs' first variables, the second
    half to the second variables. The axis ``rows`` has size 1 if all examples have the same trees.

    Args:
        unary: EXCLUDED for impossible states; includes tables with a variable of one possible state.
        tables: for each message, by the states of receiver and sender; 0 for pairs on no tree.
        receiver, sender: the variables of each message.
        child: the probability that the sender is the receiver's child in a random tree.
        root: the probability that a variable is the root of a random tree.
    """

    unary: Float[Tensor, "batch variables states"]
    tables: Float[Tensor, "batch messages states states"]
    receiver: Int[Tensor, " messages"]
    sender: Int[Tensor, " messages"]
    child: Float[Tensor, "rows messages"]
    root: Float[Tensor, "rows variables"]

    @classmethod
    def of(cls, energy: FactorEnergy) -> Graph:
        """Return the graphs of examples with the same structure.

        Raises:
            ValueError: see :func:`marginals`.
        """
        energy = energy.without_constants()
        structure, states = energy.structure, energy.num_states
        if structure.num_variables > MOST_VARIABLES:
            raise ValueError(
                f"energy: expected at most {MOST_VARIABLES} variables, got {structure.num_variables}"
            )
        if (most := max(map(len, structure.scopes), default=0)) > 2:
            raise ValueError(f"energy: expected tables of at most two labels, got a table of {most}")
        entries = energy.table[:, structure.num_unary :]
        if bool((entries == -torch.inf).any()):
            raise ValueError(
                "energy: expected finite tables of two labels, got log-potentials of −∞; "
                "messages.mini_buckets.bounds takes them"
            )
        unary = energy.padded(energy.table[:, : structure.num_unary], -torch.inf).clamp(min=EXCLUDED)
        # Entries beyond a variable's states can be anything, since these states are excluded.
        tables = entries.new_zeros(len(entries), len(structure.scopes), states, states)
        for number, scope in enumerate(structure.scopes):
            first, last = structure.first[structure.num_variables + number :][:2] - structure.num_unary
            rows, columns = (structure.num_states[each] for each in scope)
            tables[:, number, :rows, :columns] = entries[:, first:last].unflatten(1, (rows, columns))
        scopes = torch.tensor(structure.scopes, dtype=torch.int64, device=energy.device).view(-1, 2)
        first, second = scopes.unbind(1)
        receiver, sender = torch.cat([first, second]), torch.cat([second, first])
        tables = torch.cat([tables, tables.mT], 1)
        several = (unary.detach() > EXCLUDED).sum(2) > 1
        coupled = several[:, receiver] & several[:, sender] & (tables.detach() != 0).any(3).any(2)
        # A sender with one state adds its column to the receiver's unary; two such variables add half.
        state = unary.detach().argmax(2)[:, sender, None, None].expand(-1, -1, states, 1)
        given = tables.gather(3, state).squeeze(3) * ~coupled[..., None] * ~several[:, sender, None]
        given = given * torch.where(several[:, receiver], 1.0, 0.5).to(given.dtype)[..., None]
        unary = unary.index_add(1, receiver, given)
        tables = tables * coupled[..., None, None]
        weights = (coupled[:1] if bool((coupled == coupled[:1]).all()) else coupled).double()
        child, root = _random_tree(weights, receiver, sender, structure.num_variables)
        return cls(unary, tables, receiver, sender, child.to(unary), root.to(unary))

    @property
    def appearance(self) -> Float[Tensor, "rows messages"]:
        """Return ρ for each message; 0 for pairs on no tree."""
        return self.child + _reversed(self.child)

    def fields(self, messages: Tensor) -> Float[Tensor, "batch variables states"]:
        """Return the fields b, which are the variables' log-marginals up to a constant."""
        return self.unary.index_add(1, self.receiver, self.appearance[..., None] * messages)

    @property
    def scaled(self) -> Float[Tensor, "batch messages states states"]:
        """Return the tables divided by ρ."""
        appearance = self.appearance
        return self.tables / torch.where(appearance > 0, appearance, 1)[..., None, None]

    def answers(self, messages: Tensor, scaled: Tensor) -> Float[Tensor, "batch messages states"]:
        """Return the next messages with their constants, not normalised."""
        cavities = self.fields(messages)[:, self.sender] - _reversed(messages)
        return (scaled + cavities[..., None, :]).logsumexp(-1)

    def start(self) -> Float[Tensor, "batch messages states"]:
        """Return messages of 0, with which the iterations start."""
        return self.tables.new_zeros(self.tables.shape[:3])

    @torch.no_grad()
    def fixed_point(self, settings: Settings) -> tuple[Tensor, Status]:
        """Update the messages until convergence; return the last messages and the status."""
        kept, start, scaled = settings.damping, self.start(), self.scaled

        def update(flat: Tensor) -> Tensor:
            messages = flat.view_as(start)
            answers = self.answers(messages, scaled)
            answers = answers - answers.amax(-1, keepdim=True)
            return torch.lerp(answers, messages, kept).flatten(1)

        # A damped update moves only this share of an undamped one, to which the tolerance refers.
        moves = 1 - kept
        limits = {"num_iters": settings.num_iters, "tol": settings.tol * moves}
        flat, status = ascent.repeat(update, start.flatten(1), **limits)
        is_bridge = (self.appearance == 0) | (self.appearance > 1 - ROUND_OFF)
        exact = status.converged & is_bridge.all(1)
        return flat.view_as(start), replace(status, exact=exact, residual=status.residual / moves)

    def upper_bound(self, messages: Tensor) -> Float[Tensor, " batch"]:
        """Return the upper bound of log Z in the module's docstring, for any messages."""
        news = self.child[..., None] * (self.answers(messages, self.scaled) - messages)
        moved = torch.zeros_like(self.unary).index_add(1, self.receiver, news)
        fields = self.fields(messages) + moved / self.root[..., None]
        return (self.root * fields.logsumexp(-1)).sum(-1)


def _reversed(values: Tensor) -> Tensor:
    """Return for each message the value of the message in the opposite direction."""
    return values.roll(values.shape[1] // 2, 1)


def _random_tree(
    weights: Float[Tensor, "rows messages"], receiver: Tensor, sender: Tensor, variables: int
) -> tuple[Tensor, Tensor]:
    """Return the probabilities that a sender is the receiver's child, and that a variable is the root.

    With the pseudo-inverse L⁺ of the weights' Laplacian, ρ_{j|i} = w_ij (L⁺_jj − L⁺_ij): the path from j to
    the root begins with i with the same probability as a unit current from j to the root flows to i (Wilson).
    """
    place = (receiver * variables + sender).expand_as(weights)
    matrix = weights.new_zeros(len(weights), variables * variables).scatter_add(1, place, weights)
    matrix = matrix.unflatten(1, (variables, variables))
    resistance = torch.linalg.pinv(torch.diag_embed(matrix.sum(-1)) - matrix, hermitian=True)
    child = weights * (resistance[:, sender, sender] - resistance[:, sender, receiver])
    root = 1 - weights.new_zeros(len(weights), variables).index_add(1, sender, child)
    return child, root
