"""Labellings of which most labels are right, against all that are allowed."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch

from lmbm_torch.constraints import Constraints
from lmbm_torch.inference.common.results import Marginals, Status
from lmbm_torch.inference.messages import modes

LABELS, BATCH = 5, 6
EVERYTHING = torch.tensor([*product([0, 1], repeat=LABELS)])
RULES = Constraints.of(["at_most_one(a, b, c)", "d -> not e", "at_least(1, a, d, e)"], list("abcde"))


def random_marginals(seed: int, *, is_exact: bool = True, dtype: torch.dtype = torch.float64) -> Marginals:
    probability = torch.from_numpy(np.random.default_rng(seed).random((BATCH, LABELS))).to(dtype)
    sure = torch.full((BATCH,), is_exact)
    nothing = torch.zeros(BATCH, dtype=dtype)
    return Marginals(probability, nothing, Status(sure, sure, torch.full((BATCH,), 7), nothing + 0.5))


def expected_right(probability: torch.Tensor) -> torch.Tensor:
    """Of every labelling, (batch, labellings)."""
    return torch.where(EVERYTHING == 1, probability[:, None], 1 - probability[:, None]).sum(-1)


@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize("rules", [None, RULES])
@pytest.mark.parametrize("top_k", [1, 2, 3])
def test_the_best_of_all_that_are_allowed(top_k, rules, is_known):
    known = torch.full((BATCH, LABELS), torch.nan, dtype=torch.float64)
    known[:, 3] = torch.arange(BATCH) % 2
    allowed = torch.ones(len(EVERYTHING), dtype=torch.bool)
    if rules is not None:
        allowed = torch.from_numpy(~rules.violated(EVERYTHING.numpy()).any(1))
    agrees = allowed & ((known[:, None] == EVERYTHING) | known[:, None].isnan() | (not is_known)).all(-1)
    for seed in range(5):
        marginals = random_marginals(seed)
        worth = expected_right(marginals.labels).where(agrees, -torch.inf)
        given = {"known": known if is_known else None, "constraints": rules}
        found = modes.decode(marginals, top_k=top_k, **given)
        shape = (BATCH, LABELS) if top_k == 1 else (BATCH, top_k, LABELS)
        assert found.labels.shape == shape
        place = found.labels.reshape(BATCH, top_k, LABELS) @ (2 ** torch.arange(LABELS - 1, -1, -1))
        objective = found.objective.reshape(BATCH, top_k)
        torch.testing.assert_close(objective, worth.gather(1, place))
        torch.testing.assert_close(objective, worth.topk(top_k).values)
        torch.testing.assert_close(found.bound, objective[:, -1])
        assert found.status.exact.all()
        assert (found.status.num_iters == 7).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_marginals_that_are_not_exact_make_no_exact_answer(dtype):
    found = modes.decode(random_marginals(0, is_exact=False, dtype=dtype), top_k=2, constraints=RULES)
    assert not found.status.exact.any()
    assert not found.status.converged.any()
    assert (found.status.residual == 0.5).all()
    assert found.objective.dtype == found.bound.dtype == dtype


def test_refusals():
    marginals = random_marginals(0)
    known = torch.full((BATCH, LABELS), torch.nan, dtype=torch.float64)
    known[:, :2] = 1
    with pytest.raises(ValueError, match="known"):
        modes.decode(marginals, known=known, constraints=RULES)
    with pytest.raises(ValueError, match="constraints: expected rules over 5 labels"):
        modes.decode(marginals, constraints=Constraints.of(["a"], list("ab")))
    for top_k in (0, 33):
        with pytest.raises(ValueError, match="top_k"):
            modes.decode(marginals, top_k=top_k)
    with pytest.raises(ValueError, match="known: expected shape"):
        modes.decode(marginals, known=known[:2])
