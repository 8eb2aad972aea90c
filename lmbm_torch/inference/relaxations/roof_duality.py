"""Value of the local polytope, and labels in every best labelling, by a maximum flow.

For models of pairs the linear programme of :mod:`~lmbm_torch.inference.relaxations.lp_relaxation` is a
maximum flow of field through the pairs (:mod:`lmbm_torch.kernels.search.plain.roof_duality`), in a small part
of the programme's time. The flow has a solution with values 0, ½ and 1 alone; every best labelling agrees
with the labels at 0 or 1 (Hammer, Hansen and Simeone, Roof duality, complementation and persistency, 1984).
"""

from __future__ import annotations

from dataclasses import replace

import torch

from lmbm_torch.energies.pairwise import PairwiseEnergy
from lmbm_torch.inference.common.given import free_part
from lmbm_torch.inference.relaxations.objectives import Score, Solution, Task
from lmbm_torch.inference.relaxations.persistency import roof
from lmbm_torch.inference.results import Decoding
from lmbm_torch.shapes import Known

__all__ = ["decode"]


@torch.no_grad()
def decode(energy: PairwiseEnergy, *, known: Known | None = None) -> Decoding:
    """Return relaxed MAP: ``bound`` is the value of the local polytope, at least any labelling's score.

    ``relaxed`` is a fractional labelling of the same value: 0 or 1 for labels of every best labelling, else
    ½. ``labels`` agree with ``relaxed`` and are improved by single flips; ``objective`` is their score.

    Args:
        energy, known: see :func:`lmbm_torch.inference.relaxations.lp_relaxation.decode`.

    Raises:
        ValueError: as there.
    """
    task = Task.of(energy, Score(), known)
    left = task.settled
    rest = free_part(left.energy, left.known)
    found = roof(rest)
    largest = torch.maximum(rest.unary.abs().amax(1), rest.pairwise.abs().amax((-2, -1)))
    solutions = [
        Solution([], -bound, True, 1, scale)
        for bound, scale in zip(found.bound.tolist(), largest.tolist(), strict=True)
    ]
    spins, persistent = torch.from_numpy(found.spins), torch.from_numpy(found.persistent)
    labels, relaxed = (
        left.of_all(torch.where(left.known.isnan(), (1 + each) / 2, left.known))
        for each in (spins, persistent)
    )
    decoding = task.decoding(labels.long(), solutions)
    return replace(decoding, relaxed=relaxed.to(energy.device, energy.dtype))
