"""The cutting plane's states against their definition, and its end against the whole programme."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from references import cutting_plane
from strategies.structural import label_problems, random_label_problem, random_words

from lmbm_torch.references.structural import enumerated_planes, structural_primal
from lmbm_torch.solvers.base import run


@settings(max_examples=15)
@given(problem=label_problems())
def test_reaches_the_optimum_over_every_labelling(problem):
    reference = structural_primal(problem, enumerated_planes(problem.oracle))
    state = run(cutting_plane, problem, tol=1e-7)
    assert state.primal == pytest.approx(reference.primal, rel=1e-5, abs=1e-8)
    assert reference.dual == pytest.approx(reference.primal, rel=1e-6, abs=1e-8)


def test_words_of_several_rows_reach_their_optimum():
    problem, planes = random_words(0)
    assert run(cutting_plane, problem, tol=1e-6).primal == pytest.approx(
        structural_primal(problem, planes).primal, rel=1e-5
    )


def test_the_dual_rises_and_every_pass_adds_planes_until_none_is_violated():
    problem = random_label_problem(2, instances=20, C=5.0)
    states = [cutting_plane.init(problem)]
    run(cutting_plane, problem, tol=1e-6, callback=states.append)
    duals = [state.dual for state in states]
    assert (np.diff(duals) >= -1e-7).all()
    sizes = [len(state.planes) for state in states]
    assert (np.diff(sizes[:-1]) > 0).all()
    assert states[-1].gap <= 1e-6 < states[-2].gap
    assert run(cutting_plane, problem, tol=1e-6, max_iter=2).num_iters == 2


def test_refusals():
    problem = random_label_problem(0)
    with pytest.raises(ValueError, match="tol"):
        run(cutting_plane, problem, tol=-1.0)
    with pytest.raises(ValueError, match="max_iter"):
        run(cutting_plane, problem, max_iter=0)
