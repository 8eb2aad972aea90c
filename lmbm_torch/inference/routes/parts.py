"""Independent parts of a model: sets of free labels that are not coupled, given known labels and rules.

In the score of a Boltzmann machine, known labels only add their couplings to the fields of their neighbours,
so they separate the graph into parts. Margins, hinge losses and log-probabilities of a directed model are
sums with a term for each label, known or not. The term of a known label couples all free labels in the term,
so the known label belongs to their part. A rule couples its free labels while it can be broken.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from lmbm_torch.constraints import Constraints, Rule
from lmbm_torch.energies import DirectedEnergy, PairwiseEnergy
from lmbm_torch.energies.base import known_spins
from lmbm_torch.inference.common.given import check_rules, clamp
from lmbm_torch.shapes import Bool, Float, Int, Known
from lmbm_torch.verdicts import is_traced

# Largest number of labels of a part that is solved in a batch with other parts of the same size.
MOST_STACKED = 16
# Largest number of couplings in one batch of such parts.
MOST_COUPLINGS = 2**22
# Largest number of parts whose rules are cached.
NUM_KEPT = 256

SplitEnergy = PairwiseEnergy | DirectedEnergy


class Problem(NamedTuple):
    """Part of some examples, or several parts of the same size, stacked along the batch.

    Args:
        energy: the energy of the parts' labels.
        known: the known values of these labels; None if all are free.
        constraints: rules over the labels, only for a single part.
        labels: (parts, labels), the indices of each part's labels in the whole energy.
    """

    energy: Any
    known: Known | None
    constraints: Constraints | None
    labels: Int[Tensor, "parts labels"]


@dataclass(frozen=True, eq=False)
class Split:
    """Examples with the same free labels, and the independent parts.

    Args:
        energy: the energy of these examples.
        rows: the indices of the examples in the batch.
        known: the known labels of the examples, including labels that follow from the rules.
        pieces: the labels of each part: free labels, and known labels whose terms belong to the part.
        sizes: the number of free labels of each part.
        of_margins: whether known labels have terms, too.
        constraints: rules over all labels.
    """

    energy: SplitEnergy
    rows: Int[Tensor, " rows"]
    known: Known | None
    pieces: tuple[Int[Tensor, " labels"], ...]
    sizes: tuple[int, ...]
    of_margins: bool
    constraints: Constraints | None

    def problems(self) -> Iterator[Problem]:
        """Yield the parts; small parts of the same size and without rules are stacked."""
        spins = known_spins(self.energy, self.known).to(self.energy.dtype)
        alone: dict[int, list[Tensor]] = {}
        for labels in self.pieces:
            rules = None if self.constraints is None else _rules_of(self.constraints, labels, self.known)
            size = len(labels)
            if rules is not None or size > MOST_STACKED:
                yield self._problem([labels], spins, rules)
            else:
                alone.setdefault(size, []).append(labels)
        for size, several in alone.items():
            step = max(1, MOST_COUPLINGS // (len(self.rows) * size**2))
            for start in range(0, len(several), step):
                yield self._problem(several[start : start + step], spins, None)

    def constant(self) -> Float[Tensor, " rows"]:
        """Return the score of an example minus the sum of the scores of the parts."""
        half = clamp(torch.full_like(self.energy.unary, 0.5), self.known)
        if isinstance(self.energy, PairwiseEnergy):
            # A value of ½ is a spin of 0, so all terms with free labels vanish.
            return self.energy.score(half)
        inside = torch.zeros(self.energy.num_labels, dtype=torch.bool, device=self.energy.device)
        inside[torch.cat(self.pieces)] = True
        return logsigmoid(2 * self.energy.local_margins(half)).masked_fill(inside, 0).sum(-1)

    def _problem(self, pieces: list[Tensor], spins: Tensor, rules: Constraints | None) -> Problem:
        built = [_energy_of(self.energy, labels, spins) for labels in pieces]
        known = None
        if self.known is not None and self.of_margins:
            known = torch.cat([self.known[:, labels] for labels in pieces])
            known = None if bool(known.isnan().all()) else known
        return Problem(_stacked(built), known, rules, torch.stack(pieces))


def is_divisible(energy: Any) -> bool:
    """Return whether :func:`splits` can take the energy: no cliques of three or more labels."""
    if is_traced():
        return False
    return isinstance(energy, PairwiseEnergy) or (isinstance(energy, DirectedEnergy) and not energy.cliques)


def splits(
    energy: SplitEnergy,
    *,
    known: Known | None,
    constraints: Constraints | None = None,
    of_margins: bool = False,
    least: int = 1,
) -> tuple[list[Split], Int[Tensor, " rows"]]:
    """Split examples into independent parts; also return the indices of examples without such parts.

    Args:
        energy: an energy for which :func:`is_divisible` is true.
        known: {0, 1, NaN}, NaN for a free label.
        constraints: rules over the labels.
        of_margins: whether the quantity is a sum over margins; always true for a directed model.
        least: the smallest size of the second largest part for which an example is split.

    Raises:
        TypeError: ``constraints`` is no :class:`~lmbm_torch.constraints.Constraints`.
        ValueError: the energy is not finite; the rules are over another number of labels than the energy, or
            contradict the known labels.
    """
    energy.check_values()
    if constraints is not None:
        check_rules(energy, constraints, known)
    of_margins = of_margins or isinstance(energy, DirectedEnergy)
    touches = _touches(energy)
    found, whole = [], []
    for rows, own in _alike(energy, known, constraints):
        free = np.ones(energy.num_labels, bool) if own is None else own[0].isnan().cpu().numpy()
        table = touches[:, free] if of_margins else touches[free][:, free]
        rules = _open_rules(constraints, free, own)
        members = _components(np.concatenate([table, rules]) if len(rules) else table)
        if len(members) < 2 or sorted(map(len, members))[-2] < least:
            whole.append(rows)
            continue
        places = free.nonzero()[0]
        pieces = [places[each] for each in members]
        if of_margins and not free.all():
            owners = [(~free & touches[:, piece].any(1)).nonzero()[0] for piece in pieces]
            pieces = [np.concatenate(both) for both in zip(pieces, owners, strict=True)]
        tensors = tuple(_in_order(energy, piece) for piece in pieces)
        sizes = tuple(map(len, members))
        found.append(Split(energy.select(rows), rows, own, tensors, sizes, of_margins, constraints))
    none = torch.zeros(0, dtype=torch.int64, device=energy.device)
    return found, torch.cat([none, *whole]).sort().values


def _touches(energy: SplitEnergy) -> Bool[np.ndarray, "labels labels"]:
    """Return a boolean matrix (labels, labels): row i marks the labels in the term of label i, also i."""
    weights = energy.parents if isinstance(energy, DirectedEnergy) else energy.pairwise
    seen = weights.detach() != 0
    touches = (seen.any(0) if seen.ndim == 3 else seen).cpu().numpy().copy()
    np.fill_diagonal(touches, True)
    return touches


def _alike(
    energy: SplitEnergy, known: Tensor | None, constraints: Constraints | None
) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Yield groups of rows in which the same labels are known (under rules: with the same values)."""
    every = torch.arange(energy.batch_size, device=energy.device)
    if constraints is not None:
        known = _with_consequences(energy, known, constraints)
    if known is None:
        yield every, None
        return
    groups = (known if constraints is not None else known.isnan()).cpu().numpy()
    keys = np.nan_to_num(groups.astype(np.float64), nan=2).astype(np.int8)
    _, which = np.unique(keys, axis=0, return_inverse=True)
    for group in range(int(which.max()) + 1):
        rows = torch.from_numpy((which.ravel() == group).nonzero()[0]).to(energy.device)
        yield rows, known[rows]


def _with_consequences(energy: SplitEnergy, known: Tensor | None, constraints: Constraints) -> Tensor:
    given = np.full((energy.batch_size, energy.num_labels), np.nan)
    if known is not None:
        given[:] = known.cpu().numpy()
    filled, consistent = constraints.propagate(given)
    for row in (~consistent).nonzero()[0].tolist():
        constraints.check(given[row], f"known[{row}]")
    return torch.from_numpy(filled).to(energy.device, energy.dtype)


def _open_rules(
    constraints: Constraints | None, free: np.ndarray, known: Tensor | None
) -> Bool[np.ndarray, "rules free"]:
    """Mark the free labels of each rule that some labelling can break."""
    if constraints is None:
        return np.zeros((0, int(free.sum())), bool)
    matrix = constraints.matrix
    values = np.zeros(len(free)) if known is None else known[0].nan_to_num().cpu().numpy()
    most = matrix @ values + np.clip(matrix[:, free], 0, None).sum(1)
    return matrix[most > constraints.bounds][:, free] != 0


def _components(touches: Bool[np.ndarray, "terms labels"]) -> list[Int[np.ndarray, " members"]]:
    """Return the labels of each connected component; the component of the first label comes first."""
    remaining, found = np.ones(touches.shape[1], bool), []
    by_label = np.ascontiguousarray(touches.T)
    while remaining.any():
        ahead = np.zeros_like(remaining)
        ahead[remaining.argmax()] = True
        inside = ahead
        while ahead.any():
            reached = touches[by_label[ahead].any(0)].any(0)
            inside, ahead = inside | ahead, reached & ~inside
        found.append(inside.nonzero()[0])
        remaining &= ~inside
    return found


def _in_order(energy: SplitEnergy, piece: np.ndarray) -> Int[Tensor, " labels"]:
    labels = torch.from_numpy(np.sort(piece)).to(energy.device)
    if isinstance(energy, DirectedEnergy):
        return labels[energy.positions[labels].argsort()]
    return labels


def _energy_of(energy: SplitEnergy, labels: Tensor, spins: Tensor) -> SplitEnergy:
    """Return the energy of ``labels``, given the spins of all other labels; a spin of 0 adds nothing."""
    is_directed = isinstance(energy, DirectedEnergy)
    weights = energy.parents if is_directed else energy.pairwise
    own = weights[..., labels, :]
    outside = spins.index_fill(1, labels, 0)
    unary = energy.unary[:, labels]
    if bool((outside != 0).any()):
        unary = unary + (outside @ own.mT if own.ndim == 2 else (own @ outside[..., None])[..., 0])
    table = own[..., labels]
    if is_directed:
        return DirectedEnergy(unary, table, torch.arange(len(labels), device=labels.device))
    return PairwiseEnergy(unary, table)


def _stacked(energies: Sequence[SplitEnergy]) -> SplitEnergy:
    if len(energies) == 1:
        return energies[0]
    batch, first = energies[0].batch_size, energies[0]
    unary = torch.cat([each.unary for each in energies])
    tables = [each.parents if isinstance(each, DirectedEnergy) else each.pairwise for each in energies]
    table = torch.cat([each.expand(batch, -1, -1) for each in tables])
    if isinstance(first, DirectedEnergy):
        return DirectedEnergy(unary, table, first.ordering)
    return PairwiseEnergy(unary, table)


def _rules_of(constraints: Constraints, labels: Tensor, known: Tensor | None) -> Constraints | None:
    """Return the rules over a part's labels that can still be broken; all rows of ``known`` are equal."""
    values = np.full(constraints.num_labels, np.nan) if known is None else known[0].double().cpu().numpy()
    return _kept_rules(constraints, tuple(labels.tolist()), values.tobytes())


@lru_cache(NUM_KEPT)
def _kept_rules(constraints: Constraints, labels: tuple[int, ...], values: bytes) -> Constraints | None:
    known = np.frombuffer(values)
    free = np.isnan(known)
    place = {label: index for index, label in enumerate(labels) if free[label]}
    given = constraints.matrix @ np.nan_to_num(known)
    most = given + np.clip(constraints.matrix[:, free], 0, None).sum(1)
    rules = []
    for row in (most > constraints.bounds).nonzero()[0].tolist():
        weights = constraints.matrix[row]
        own: dict[str | int, float] = {at: weights[label] for label, at in place.items() if weights[label]}
        if own:
            rules.append(Rule(own, float(constraints.bounds[row] - given[row]), constraints.texts[row]))
    return Constraints(tuple(rules), tuple(constraints.names[label] for label in labels)) if rules else None
