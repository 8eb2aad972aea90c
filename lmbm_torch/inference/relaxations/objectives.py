"""Objectives of decoders of Boltzmann machines: −score for MAP, hinge losses for the papers' prediction rule.

Each rule is a programme over the local polytope (:mod:`lmbm_torch.inference.relaxations.local_polytope`), a
loss of a labelling, and the gain of each flip of a label. Decoders run in float64 on the CPU: weights are
copied from other devices, and results return to the energy's device and dtype.
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

# Remaining gap of an answer that counts as exact, as a share of the largest weight or of the objective,
# whichever is larger.
TOLERANCE = 1e-6
# Ratio of the largest to the median weight beyond which dominated labels are settled first
# (:mod:`lmbm_torch.inference.relaxations.persistency`). If the ratio stays larger, the tolerance is a share
# of this number of median weights: nothing is exact below the solvers' own tolerance, a share of the largest
# weight.
WIDE = 1e3
SOLVER_TOLERANCE = 1e-8
# Least gain of a flip, as a share of the summed terms of the loss, against endless flips.
ROUND_OFF = 1e-13
# Flips of one labelling per label at most; a hundred labels of dense models take one each.
FLIPS_PER_LABEL = 10
# Bytes of the margins after every possible flip, of the examples that are improved together.
FLIP_BYTES = 2**23


@dataclass(frozen=True)
class Score:
    """Rule for MAP: the loss is −score.

    A rule (score or hinge) defines the loss to minimise: ``programme`` builds the optimisation problem of one
    example over the batch's ``polytope``, ``loss`` excludes the energy's constant, ``flip_gains`` tells how
    much the loss falls if one label is flipped, and ``objective`` converts a loss, or a bound of the loss, to
    the number that users see.
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
        # A flip of label i inverts m_i, and takes twice the terms of the label's cliques off every other m_j.
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
    """Solver's values of the labels, lower bound of the loss, and end of the search.

    Args:
        scale: the largest weight, the unit of a solver's tolerance.
    """

    values: np.ndarray | list[int]
    bound: float
    converged: bool
    num_iters: int
    scale: float


@dataclass(frozen=True)
class Task:
    """Batch to decode by a rule.

    Args:
        energy: the caller's energy.
        precise: the energy in float64 on the CPU.
        known: {0, 1, NaN}, NaN for a free label, likewise.
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
        """Return the structure that the examples' programmes share."""
        return self.rule.polytope(self.settled.energy, self.constraints)

    @cached_property
    def settled(self) -> Settled:
        """Return the remaining problem, smaller for examples with dominant weights."""
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
            ValueError: NaN or infinity in the energy, or couplings that are not symmetric; ``known`` of
                another shape or with other values; rules over another number of labels.
        """
        energy.check_values()
        check_known(known, energy.device, energy.batch_size, energy.num_labels)
        if constraints is not None:
            check_rules(energy, constraints, known)
        # Without the constant, which solvers do not need.
        precise = energy.to("cpu", torch.float64)
        precise = replace(precise, constant=torch.zeros_like(precise.constant))
        given = torch.full((energy.batch_size, energy.num_labels), torch.nan, device="cpu").double()
        given = given if known is None else known.double().cpu()
        return cls(energy, precise, given, rule, constraints)

    def programmes(self) -> Iterator[Programme]:
        """Yield each example's programme, given the known and settled labels."""
        energy, settled = self.settled.energy, self.settled.energy.constant.tolist()
        each = self.polytope.parities.weights(energy)
        for weights, known, constant in zip(each, self.settled.known.numpy(), settled, strict=True):
            programme = self.polytope.given(self.rule.programme(self.polytope, weights), known)
            yield programme._replace(offset=programme.offset - constant / programme.scale)

    def improve(self, labels: Shaped[Tensor, "batch labels"]) -> Int[Tensor, "batch labels"]:
        """Return ``labels`` after flips of the best free label until no flip lowers the loss.

        Under rules return the nearest allowed labelling, without flips.
        """
        start = clamp(labels.double(), self.known)
        if self.constraints is not None:
            return self._nearest(start.numpy(), self.constraints)
        size = max(1, part_bytes(FLIP_BYTES) // (8 * self.precise.num_labels**2))
        chunks = [slice(begin, begin + size) for begin in range(0, len(start), size)]
        return torch.cat([self._ascend(rows, start[rows]) for rows in chunks]).long()

    def _nearest(self, labels: np.ndarray, constraints: Constraints) -> Int[Tensor, "batch labels"]:
        """Return the allowed labelling of each example with the fewest differences from ``labels``."""
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
        """Return the labels preferred by their own evidence, improved."""
        if isinstance(self.precise, PairwiseEnergy):
            return self.improve((self.precise.unary > 0).long())
        unary, _ = log_potentials(self.precise, cliques_of(self.precise))
        return self.improve((unary > 0).expand(self.precise.batch_size, -1).long())

    def better(self, labels: Tensor, others: Tensor) -> Int[Tensor, "batch labels"]:
        """Return the better of two labellings, the first at ties."""
        losses = [self.rule.loss(self.precise, candidate) for candidate in (labels, others)]
        return torch.where((losses[0] <= losses[1])[:, None], labels, others)

    def decoding(self, labels: Tensor, solutions: Sequence[Solution]) -> Decoding:
        """Return the labels with the loss as objective, and the solutions' bounds.

        Args:
            labels: {0, 1}, on the CPU.
            solutions: one per example.
        """
        loss = self.rule.loss(self.precise, labels)
        # Python's numbers would be rounded to torch's default precision.
        scale = torch.tensor([solution.scale for solution in solutions], dtype=torch.float64, device="cpu")
        proven = torch.tensor([solution.bound for solution in solutions], dtype=torch.float64, device="cpu")
        typical, settled = _typical_weight(self.settled.energy), self.settled.energy.constant
        is_wide = scale > WIDE * typical
        # A bound beyond a labelling's loss, by the solver's tolerance, becomes the labelling's loss.
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
    """Return the magnitudes of each example's weights; couplings of pairs twice."""
    if isinstance(energy, CliqueEnergy):
        return energy.weight.abs().expand(energy.batch_size, -1)
    couplings = energy.pairwise.expand(energy.batch_size, -1, -1).flatten(1)
    return torch.cat([energy.unary, couplings], 1).abs()


def _typical_weight(energy: Machine) -> Float[Tensor, " batch"]:
    """Return the median magnitude of each example's weights above rounding; infinity without any."""
    weights = _magnitudes(energy)
    if not weights.shape[1]:
        return weights.new_full((energy.batch_size,), torch.inf)
    is_round_off = weights <= ROUND_OFF * weights.amax(1, keepdim=True)
    return weights.masked_fill(is_round_off, torch.nan).nanmedian(1).values.nan_to_num(torch.inf)
