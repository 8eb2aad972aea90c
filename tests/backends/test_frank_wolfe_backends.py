"""The compiled sweeps and the plain ones take the same kind of step to the same optimum."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from strategies.structural import label_problems, random_label_problem, random_words

from lmbm_torch.backends.dual.plain import structural
from lmbm_torch.solvers.base import run
from lmbm_torch.solvers.structural import frank_wolfe


@pytest.fixture
def plain(monkeypatch):
    monkeypatch.setattr(frank_wolfe, "kernels", lambda *_: structural)


@pytest.mark.usefixtures("plain")
@settings(max_examples=5)
@given(problem=label_problems())
def test_plain_sweeps_reach_the_gap(problem):
    assert run(frank_wolfe, problem, tol=1e-4, max_iter=500).gap <= 1e-4


@pytest.mark.parametrize("csr", [False, True])
def test_backends_agree(monkeypatch, csr):
    problems = [random_label_problem(1, csr=csr), random_words(1, csr=csr)[0]]
    compiled = [run(frank_wolfe, problem, tol=1e-6, max_iter=500).primal for problem in problems]
    monkeypatch.setattr(frank_wolfe, "kernels", lambda *_: structural)
    plain = [run(frank_wolfe, problem, tol=1e-6, max_iter=500).primal for problem in problems]
    assert plain == pytest.approx(compiled, rel=3e-6)
