"""The relaxation between integer programming and its own rounding; cvxpy is in ``test_lp_reference``."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from strategies.directed import random_known
from strategies.pairwise import pairwise_energies, random_clique_energy, random_pairwise_energy

from lmbm_torch.inference.enumeration import exact
from lmbm_torch.inference.relaxations import integer_program, lp_relaxation

FORMS = (
    {"coupling": 0.3},
    {"coupling": 1.0, "density": 0.4},
    {"coupling": 1.0, "per_example": True},
    {"coupling": 3.0, "per_example": True},
)
CASES = [random_pairwise_energy(seed, 3 + seed % 8, 3, **FORMS[seed % len(FORMS)]) for seed in range(12)]
# Products of up to six labels.
CASES += [random_clique_energy(seed, 7, 2, coupling=10.0**seed, max_order=6) for seed in range(3)]


@pytest.mark.parametrize("energy", CASES)
def test_scores_lie_between_the_relaxation_and_its_rounding(energy):
    relaxed, integer = lp_relaxation.decode(energy), integer_program.decode(energy)
    assert relaxed.status.converged.all()
    # The bound is proven by the dual alone, so that it needs no allowance but for round-off.
    assert (relaxed.bound >= integer.objective - 1e-12 * integer.objective.abs()).all()
    assert (integer.objective >= relaxed.objective - 1e-12 * integer.objective.abs()).all()
    torch.testing.assert_close(relaxed.objective, energy.score(relaxed.labels))


@pytest.mark.parametrize("energy", CASES)
def test_losses_lie_between_the_relaxation_and_its_rounding(energy):
    relaxed, integer = lp_relaxation.decode_hinge(energy), integer_program.decode_hinge(energy)
    assert relaxed.status.converged.all()
    assert (relaxed.bound <= integer.objective + 1e-12 * integer.objective).all()
    assert (integer.objective <= relaxed.objective + 1e-12 * integer.objective).all()
    loss = (1 - energy.local_margins(relaxed.labels)).clamp(min=0).sum(-1)
    torch.testing.assert_close(relaxed.objective, loss)


@pytest.mark.parametrize(
    ("decode", "enumerate_all"),
    [(lp_relaxation.decode, exact.decode), (lp_relaxation.decode_hinge, exact.decode_hinge)],
)
def test_what_is_called_exact_is_the_optimum(decode, enumerate_all):
    marked = []
    for energy in CASES:
        found, best = decode(energy), enumerate_all(energy)
        marked.append(found.status.exact)
        torch.testing.assert_close(
            found.objective[found.status.exact], best.objective[found.status.exact], rtol=1e-5, atol=1e-5
        )
        torch.testing.assert_close(found.status.residual, (found.bound - found.objective).abs())
        assert ((found.relaxed >= 0) & (found.relaxed <= 1)).all()
    # Neither always tight nor never, or the test says nothing.
    assert 0 < torch.cat(marked).sum() < len(torch.cat(marked))


@pytest.mark.parametrize("energy", CASES)
@pytest.mark.parametrize(
    ("relax", "decode"),
    [
        (lp_relaxation.decode, integer_program.decode),
        (lp_relaxation.decode_hinge, integer_program.decode_hinge),
    ],
)
def test_known_labels_are_kept_and_bounded(relax, decode, energy):
    known = random_known(7, energy)
    found, best = relax(energy, known=known), decode(energy, known=known)
    given = ~known.isnan()
    assert (found.labels[given] == known[given]).all()
    torch.testing.assert_close(found.relaxed[given], known[given], rtol=0, atol=1e-5)
    assert found.status.converged.all()
    sign = 1 if decode is integer_program.decode else -1
    slack = 1e-12 * (1 + best.objective.abs())
    assert (sign * (found.bound - best.objective) >= -slack).all()
    assert (sign * (best.objective - found.objective) >= -slack).all()
    with pytest.raises(ValueError, match=r"^known: expected"):
        relax(energy, known=torch.full_like(known, 0.5))


@pytest.mark.parametrize(
    ("relax", "enumerate_all"),
    [(lp_relaxation.decode, exact.decode), (lp_relaxation.decode_hinge, exact.decode_hinge)],
)
def test_nothing_is_left_to_relax_where_all_is_known(relax, enumerate_all):
    energy = CASES[3]
    known = random_known(0, energy, share=1.0)
    found, expected = relax(energy, known=known), enumerate_all(energy, known=known)
    assert found.status.exact.all()
    torch.testing.assert_close(found.bound, expected.objective, rtol=1e-6, atol=1e-6)


def test_no_single_flip_betters_frustrated_labels():
    # Of these the relaxation says ½ of almost every label.
    energy = random_pairwise_energy(0, 30, 3, coupling=1.0)
    scores, losses = lp_relaxation.decode(energy), lp_relaxation.decode_hinge(energy)
    assert ((scores.relaxed - 0.5).abs() < 0.1).double().mean() > 0.5
    for label in range(30):
        for found, value, sign in (
            (scores, energy.score, 1),
            (losses, lambda labels: (1 - energy.local_margins(labels)).clamp(min=0).sum(-1), -1),
        ):
            flipped = found.labels.clone()
            flipped[:, label] = 1 - flipped[:, label]
            assert (sign * (found.objective - value(flipped)) >= -1e-9).all()


@given(pairwise_energies(max_labels=6, max_batch=3))
@settings(max_examples=5)
def test_is_exact_for_attractive_couplings(energy):
    attractive = replace(energy, pairwise=energy.pairwise.abs())
    found = lp_relaxation.decode(attractive)
    torch.testing.assert_close(found.bound, exact.decode(attractive).objective, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("decode", [lp_relaxation.decode, lp_relaxation.decode_hinge])
def test_an_example_decodes_alone_as_in_a_batch(decode):
    energy = CASES[2]
    together = decode(energy)
    for example in range(energy.batch_size):
        alone = decode(energy.select(slice(example, example + 1)))
        torch.testing.assert_close(alone.bound[0], together.bound[example], rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(alone.objective[0], together.objective[example])


@pytest.mark.parametrize("decode", [lp_relaxation.decode, lp_relaxation.decode_hinge])
def test_float32(decode):
    energy = random_pairwise_energy(0, 5, dtype=torch.float32)
    found = decode(energy)
    assert found.relaxed is not None
    for tensor in (found.relaxed, found.objective, found.bound, found.status.residual):
        assert tensor.dtype == torch.float32


@pytest.mark.parametrize("decode", [lp_relaxation.decode, lp_relaxation.decode_hinge])
def test_refuses_what_is_no_energy(decode):
    energy = random_pairwise_energy(0, 3)
    with pytest.raises(ValueError, match=r"^unary: expected finite values"):
        decode(replace(energy, unary=energy.unary * torch.nan))
    with pytest.raises(ValueError, match=r"^pairwise: expected a symmetric matrix"):
        decode(replace(energy, pairwise=energy.pairwise.triu()))


@pytest.mark.parametrize("margin", [0.0, -1.0, float("nan"), float("inf")])
def test_refuses_a_margin_that_is_not_positive(margin):
    with pytest.raises(ValueError, match=r"^margin: expected"):
        lp_relaxation.decode_hinge(random_pairwise_energy(0, 3), margin)


def test_bounds_are_computed_in_double_precision():
    energy = random_pairwise_energy(1, 6, 20)
    found = lp_relaxation.decode(energy)
    whole = (found.relaxed - found.relaxed.round()).abs().amax(1) < 1e-6
    assert whole.sum() > 5
    # Within the solver's tolerance; single precision is off by up to 5e-7.
    torch.testing.assert_close(found.bound[whole], energy.score(found.labels)[whole], rtol=0, atol=1e-7)
