"""The search of :mod:`~lmbm_torch.backends.search.plain.undirected`, compiled."""

from __future__ import annotations

from lmbm_torch.backends.jit import njit
from lmbm_torch.backends.search.plain import undirected
from lmbm_torch.backends.search.plain.undirected import Best, UndirectedProblem
from lmbm_torch.backends.threads import share

_search_example = njit(nogil=True, cache=True)(undirected.search_example)


def search(problem: UndirectedProblem) -> Best:
    """The labellings of least loss; each thread takes the next example when it is free."""
    best = undirected.start(problem)
    share(range(len(problem.fields)), lambda example: _search_example(problem, best, example))
    return best
