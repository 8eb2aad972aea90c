"""Objectives of decoders of Boltzmann machines: the score for MAP, or hinge losses.

Each rule (:class:`Score`, :class:`Hinge`) defines a programme over the local polytope
(:mod:`lmbm_torch.inference.relaxations.local_polytope`), the loss of a labelling, and the gain of each flip
of a label. Decoders run in float64 on the CPU; results return to the energy's device and dtype.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lmbm_torch.checks import check_known, check_positive
from lmbm_torch.constraints import Constraints
from lmbm_torch.energies import CliqueEnergy, PairwiseEnergy
from lmbm_torch.energies.base import to_spins
from lmbm_torch.inference.common import iterations as ascent
from lmbm_torch.inference.common.given import check_rules, clamp
from lmbm_torch.inference.common.results import Decoding, Status
from lmbm_torch.inference.relaxations import persistency
from lmbm_torch.inference.relaxations.local_polytope import LocalPolytope, Programme, hinge_loss
from lmbm_torch.inference.relaxations.persistency import Settled
from lmbm_torch.inference.trees.log_tables import Machine, cliques_of, log_potentials
from lmbm_torch.memory import part_bytes
from lmbm_torch.shapes import Float, Int, Known, Shaped

# Largest gap between loss and bound of an answer that counts as exact, as a share of the largest weight or of
# the objective, whichever is larger.
TOLERANCE = 1e-6
# Ratio of the largest to the median weight above which dominant weights are settled before the search
# (:mod:`lmbm_torch.inference.relaxations.persistency`). If the ratio is still larger afterwards, the
# tolerance of exact answers is a share of WIDE times the median weight.
WIDE = 1e3
# Tolerance of the solvers, as a share of the largest weight.
SOLVER_TOLERANCE = 1e-8
# Smallest gain of a flip, as a share of the sum of weights and loss: prevents endless flips.
ROUND_OFF = 1e-13
# Most flips of one labelling, for each label; a hundred labels of dense models need about one each.
FLIPS_PER_LABEL = 10
# Largest bytes of the margins after every possible flip; examples are improved in groups of this size.
FLIP_BYTES = 2**23


@dataclass(frozen=True)
class Score:
    """Rule for MAP: the loss to minimise is −score.

    Like :class:`Hinge`, the class defines ``polytope``, the variables and constraints of a batch;
    ``programme``, the optimisation problem of an example; ``settle``, the labels that dominant weights
    decide; ``loss``, without the energy's constant; ``flip_gains``, by how much the loss falls if one label
    is flipped; ``objective``, a loss or bound as the number that users see.
    """

    def polytope(self, energy: Machine, constraints: Constraints | None) -> LocalPolytope:
        return LocalPolytope.of(energy, False, constraints)

    def programme(self, polytope: LocalPolytope, weights: np.ndarray) -> Programme:
        return polytope.programme(weights)

    def settle(self, energy: PairwiseEnergy, known: Tensor) -> Settled:
        return persistency.settle_scores(energy, known)

    def loss(self, energy: Machine, labels: Tensor) -> Tensor:
        return energy.constant - energy.score(labels)

    def flip_gains(self, energy: Machine, labels: Tensor) -> Tensor:
        return -2 * energy.local_margins(labels)

    def objective(self, energy: Machine, loss: Tensor) -> Tensor:
        return energy.constant - loss


@dataclass(frozen=True)
class Hinge:
    """Rule for Σ_i [margin − m_i]_+ (large_margin_boltzmann_machines_2009, problem 3.4).

    Args:
        margin: γ > 0, in units of the local fields.

    Raises:
        ValueError: a margin that is not a finite number above 0.
    """

    margin: float

    def __post_init__(self) -> None:
        check_positive("margin", self.margin)

    def polytope(self, energy: Machine, constraints: Constraints | None) -> LocalPolytope:
        return LocalPolytope.of(energy, True, constraints)

    def programme(self, polytope: LocalPolytope, weights: np.ndarray) -> Programme:
        return polytope.programme(weights, self.margin)

    def settle(self, energy: PairwiseEnergy, known: Tensor) -> Settled:
        return persistency.settle_hinges(energy, known, self.margin)

    def loss(self, energy: Machine, labels: Tensor) -> Tensor:
        return hinge_loss(energy, labels, self.margin)

    def flip_gains(self, energy: Machine, labels: Tensor) -> Tensor:
        margins = energy.local_margins(labels)
        # A flip of label i negates m_i, and changes every other m_j by twice the terms that i and j share.
        if isinstance(energy, CliqueEnergy):
            members, own = energy.membership, energy.weight * energy.parities(labels)
            change = 2 * (members * own[:, None]) @ members.mT
        else:
            spins = to_spins(labels, energy.dtype)
            change = 2 * spins[:, :, None] * spins[:, None] * energy.pairwise
            change = change + torch.diag_embed(2 * margins)
        after = (self.margin - margins[:, None] + change).clamp(min=0).sum(-1)
        return self.loss(energy, labels)[:, None] - after

    def objective(self, energy: Machine, loss: Tensor) -> Tensor:
        return loss


Rule = Score | Hinge


class Solution(NamedTuple):
    """Result of a solver: the labels' values, a lower bound of the loss, and how the search ended.

    Args:
        scale: the largest weight, by which a solver's tolerance is multiplied.
    """

    values: np.ndarray | list[int]
    bound: float
    converged: bool
    num_iters: int
    scale: float


@dataclass(frozen=True)
class Task:
    """Batch of examples to decode by a rule.

    Args:
        energy: the caller's energy.
        precise: the same energy in float64 on the CPU, with constant 0.
        known: {0, 1, NaN}, NaN for a free label, in float64 on the CPU.
        rule: the loss to minimise.
        constraints: rules that labellings must obey.
    """

    energy: Machine
    precise: Machine
    known: Float[Tensor, "batch labels"]
    rule: Rule
    constraints: Constraints | None = None

    @cached_property
    def polytope(self) -> LocalPolytope:
        """Return the variables and constraints that the programmes of all examples share."""
        return self.rule.polytope(self.settled.energy, self.constraints)

    @cached_property
    def settled(self) -> Settled:
        """Return the problem that remains after dominant weights have decided some labels."""
        # Under rules a dominant weight decides no label, because a rule may forbid its value.
        if isinstance(self.precise, CliqueEnergy) or self.constraints is not None:
            return Settled.nothing(self.precise, self.known)
        largest = _magnitudes(self.precise).amax(1)
        (rows,) = (largest > WIDE * _typical_weight(self.precise)).nonzero(as_tuple=True)
        if not len(rows):
            return Settled.nothing(self.precise, self.known)
        found = Settled.of(self.precise, self.known)
        found.put(rows, self.rule.settle(self.precise.select(rows), self.known[rows]))
        return found

    @classmethod
    def of(
        cls, energy: Machine, rule: Rule, known: Known | None, constraints: Constraints | None = None
    ) -> Task:
        """Check the input, and return the task.

        Raises:
            ValueError: NaN or infinity in the energy, or couplings that are not symmetric; ``known`` has
                another shape than (batch, labels), or impossible values; rules over another number of labels.
        """
        energy.check_values()
        check_known(known, energy.device, energy.batch_size, energy.num_labels)
        if constraints is not None:
            check_rules(energy, constraints, known)
        # Solvers do not need the constant; ``objective`` adds the constant at the end.
        precise = energy.to("cpu", torch.float64)
        precise = replace(precise, constant=torch.zeros_like(precise.constant))
        given = torch.full((energy.batch_size, energy.num_labels), torch.nan, device="cpu").double()
        given = given if known is None else known.double().cpu()
        return cls(energy, precise, given, rule, constraints)

    def programmes(self) -> Iterator[Programme]:
        """Yield the programme of each example, with known and settled labels fixed."""
        energy, settled = self.settled.energy, self.settled.energy.constant.tolist()
        each = self.polytope.parities.weights(energy)
        for weights, known, constant in zip(each, self.settled.known.numpy(), settled, strict=True):
            programme = self.polytope.given(self.rule.programme(self.polytope, weights), known)
            yield programme._replace(offset=programme.offset - constant / programme.scale)

    def improve(self, labels: Shaped[Tensor, "batch labels"]) -> Int[Tensor, "batch labels"]:
        """Flip the best free label repeatedly until no flip lowers the loss; return the new labels.

        With constraints, return the nearest allowed labelling instead, without flips.
        """
        start = clamp(labels.double(), self.known)
        if self.constraints is not None:
            return self._nearest(start.numpy(), self.constraints)
        size = max(1, part_bytes(FLIP_BYTES) // (8 * self.precise.num_labels**2))
        chunks = [slice(begin, begin + size) for begin in range(0, len(start), size)]
        return torch.cat([self._ascend(rows, start[rows]) for rows in chunks]).long()

    def _nearest(self, labels: np.ndarray, constraints: Constraints) -> Int[Tensor, "batch labels"]:
        """Return the allowed labelling of each example with the smallest Hamming distance to ``labels``."""
        found = labels.copy()
        for row in np.flatnonzero(constraints.violated(labels).any(1)):
            known = self.known[row].numpy()
            nearest = constraints.nearest(labels[row], known)
            if nearest is None:
                constraints.check(known, f"known[{row}]")
            found[row] = nearest
        return torch.from_numpy(found).long()

    def _ascend(self, rows: slice, start: Tensor) -> Tensor:
        energy, free = self.precise.select(rows), self.known[rows].isnan()
        least = ROUND_OFF * (_magnitudes(energy).sum(1) + self.rule.loss(energy, start).abs())

        def flip_best(labels: Tensor) -> Tensor:
            gains = self.rule.flip_gains(energy, labels).masked_fill(~free, -torch.inf)
            gain, label = gains.max(-1, keepdim=True)
            flipped = labels.scatter(1, label, 1 - labels.gather(1, label))
            return torch.where(gain > least[:, None], flipped, labels)

        return ascent.repeat(flip_best, start, num_iters=FLIPS_PER_LABEL * energy.num_labels, tol=0.0)[0]

    def own_choice(self) -> Int[Tensor, "batch labels"]:
        """Return labels by the sign of each label's own field, improved by flips."""
        if isinstance(self.precise, PairwiseEnergy):
            return self.improve((self.precise.unary > 0).long())
        unary, _ = log_potentials(self.precise, cliques_of(self.precise))
        return self.improve((unary > 0).expand(self.precise.batch_size, -1).long())

    def better(self, labels: Tensor, others: Tensor) -> Int[Tensor, "batch labels"]:
        """Return the labelling of smaller loss for each example, the first at ties."""
        losses = [self.rule.loss(self.precise, candidate) for candidate in (labels, others)]
        return torch.where((losses[0] <= losses[1])[:, None], labels, others)

    def decoding(self, labels: Tensor, solutions: Sequence[Solution]) -> Decoding:
        """Return the answer: labels with objective, bound and status.

        Args:
            labels: {0, 1}, (batch, labels), on the CPU.
            solutions: the solver's result for each example.
        """
        loss = self.rule.loss(self.precise, labels)
        # With an explicit dtype: torch would round Python's numbers to its default precision.
        scale = torch.tensor([solution.scale for solution in solutions], dtype=torch.float64, device="cpu")
        proven = torch.tensor([solution.bound for solution in solutions], dtype=torch.float64, device="cpu")
        typical, settled = _typical_weight(self.settled.energy), self.settled.energy.constant
        is_wide = scale > WIDE * typical
        # The solver's bound may exceed the loss by the solver's tolerance: take the smaller of the two.
        round_off = ROUND_OFF * settled.abs()
        bound = torch.minimum(proven, loss) - is_wide * SOLVER_TOLERANCE * scale - round_off
        open_loss = (loss + settled).abs()
        allowed = TOLERANCE * torch.where(is_wide, WIDE * typical, torch.maximum(scale, open_loss))
        exact = (loss - bound) <= allowed + 2 * round_off
        device = self.energy.device

        def as_energy(values: Tensor) -> Tensor:
            return values.to(device, self.energy.dtype)

        status = Status(
            exact=exact.to(device),
            converged=torch.tensor([solution.converged for solution in solutions], device=device),
            num_iters=torch.tensor([solution.num_iters for solution in solutions], device=device),
            residual=as_energy(loss - bound),
        )
        objective = self.rule.objective(self.energy, as_energy(loss))
        return Decoding(
            labels.to(device), objective, self.rule.objective(self.energy, as_energy(bound)), status
        )


def _magnitudes(energy: Machine) -> Float[Tensor, "batch weights"]:
    """Return the magnitudes of all weights of each example; each coupling appears twice."""
    if isinstance(energy, CliqueEnergy):
        return energy.weight.abs().expand(energy.batch_size, -1)
    couplings = energy.pairwise.expand(energy.batch_size, -1, -1).flatten(1)
    return torch.cat([energy.unary, couplings], 1).abs()


def _typical_weight(energy: Machine) -> Float[Tensor, " batch"]:
    """Return the median magnitude of each example's nonzero weights; infinity if there are none."""
    weights = _magnitudes(energy)
    if not weights.shape[1]:
        return weights.new_full((energy.batch_size,), torch.inf)
    is_round_off = weights <= ROUND_OFF * weights.amax(1, keepdim=True)
    return weights.masked_fill(is_round_off, torch.nan).nanmedian(1).values.nan_to_num(torch.inf)
