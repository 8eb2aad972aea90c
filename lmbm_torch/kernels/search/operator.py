"""Branch and bound for directed models as the operator ``lmbm::branch_and_bound`` for CPU and CUDA."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lmbm_torch.kernels.installed import kernels
from lmbm_torch.kernels.operators import operator
from lmbm_torch.kernels.search import directed_cuda
from lmbm_torch.kernels.search.records import Found, SearchProblem
from lmbm_torch.verdicts import is_traced, searched_on_host


def search(problem: SearchProblem) -> Found:
    """Return the labellings of least loss on the device of the problem, without a gradient.

    Compiled and exported programs contain the operator ``lmbm::branch_and_bound``.
    """
    return Found(*(branch_and_bound if is_traced() else _search)(*problem))


@searched_on_host
def _search_on_host(*arguments: Any) -> tuple[Tensor, ...]:
    return tuple(kernels("search.directed").search(SearchProblem(*arguments)))


def _search(*arguments: Any) -> tuple[Tensor, ...]:
    if arguments[0].is_cuda:
        problem = SearchProblem(*arguments)
        if directed_cuda.suits(problem):
            return tuple(directed_cuda.search(problem))
    return _search_on_host(*arguments)


def _empty(fields: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    """Return tensors of the shapes and dtypes of :class:`Found`."""
    (batch, labels), top_k = fields.shape, rest[-1]
    return (
        fields.new_empty(batch, top_k, labels, dtype=torch.int64),
        fields.new_empty(batch, top_k),
        fields.new_empty(batch),
        fields.new_empty(batch, dtype=torch.int64),
        fields.new_empty(batch, dtype=torch.bool),
    )


branch_and_bound = operator(
    "branch_and_bound",
    "(Tensor fields, Tensor children, Tensor clique_parents, Tensor clique_child, Tensor clique_weight,"
    " Tensor known, float margin, float temperature, float round_off, float ceiling, int node_limit,"
    " int top_k) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    _empty,
    fixed={"clique_parents": 2, "clique_child": 1},
)(_search)
