"""Best-first search for the most probable labellings of directed models, exact and with a certificate.

Uniform-cost search of the tree of prefixes (Mena et al. 2015): a labelling is no more probable than any of
its prefixes, so that one which is as probable as every open prefix is the most probable of all. Prefixes are
expanded in rounds, all that are at least half as probable as their example's best one, of all examples
together: at most twice as improbable ones are expanded as one by one, and the labels' distributions are asked
for once a label and round.
"""

from __future__ import annotations

from lmbm_torch.energies import DirectedEnergy, SequentialEnergy
from lmbm_torch.inference.parts.on_host import searched_on_host
from lmbm_torch.inference.parts.open_nodes import best_first_round, search
from lmbm_torch.inference.results import Decoding
from lmbm_torch.shapes import Known

__all__ = ["decode"]


@searched_on_host
def decode(
    energy: DirectedEnergy | SequentialEnergy,
    *,
    known: Known | None = None,
    top_k: int = 1,
    node_limit: int | None = None,
    tolerance: float = 0.0,
) -> Decoding:
    """argmax_y log P(y), the most probable labelling, or the ``top_k`` of them.

    Args:
        energy: a directed model, its labels of two or more values, on any device; the search itself runs on the
            CPU.
        known: labels that are given, NaN for a free one; only labellings that agree with it compete.
        top_k: how many labellings to return, best first; the bound is then on all others.
        node_limit: end an example's search after so many expanded prefixes, but not before ``top_k``
            labellings.
        tolerance: ε ≥ 0, end an example's search once nothing is more probable by more than a factor e^ε.

    Returns:
        The log-probability is the objective, bound ≥ objective, and no labelling that was not visited is more
        probable than the bound. ``status.exact``: no labelling left out is better; ``status.converged``: no
        node limit was met; ``status.residual``: bound − objective, of the last of ``top_k``.

    Raises:
        ValueError: NaN, infinity or a misplaced parent in the energy, or what is no distribution; ``known``
            of another shape or with other values; a node limit or ``top_k`` that is no count; more than an
            example's labellings asked for; a negative tolerance.
    """
    return search(energy, known, top_k, node_limit, tolerance, best_first_round)
