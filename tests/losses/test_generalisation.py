"""Theorem 4.4 of 2009 and Theorem 8 of 2010, with their lemmas, by Monte Carlo on small classes."""

from __future__ import annotations

import numpy as np
import pytest

from lmbm_torch.losses import generalisation_bound

N, LABELS = 16, 3
WEIGHTS = np.array([0.5, 1.0, 2.0])


def bound(**settings):
    common = {"feature_norms": [1.0] * LABELS, "weight_norms": WEIGHTS.tolist(), "num_examples": N}
    return generalisation_bound(0.0, 1.0, **common | settings)


def test_the_complexity_is_reached_by_orthonormal_inputs():
    """The sup over a ball of (2/N) Σ_l σ_l ⟨w, f_l⟩ is (2/N) W ‖Σ_l σ_l f_l‖, and W B / √N · 2 here."""
    random = np.random.default_rng(0)
    signs = random.choice([-1, 1], (LABELS, 2000, N))
    found = 2 / N * (WEIGHTS * np.linalg.norm(signs @ np.eye(N), axis=2).mean(1)).sum()
    assert found == pytest.approx(bound().complexity)
    # Of inputs in few dimensions it is less.
    inputs = random.normal(size=(N, 2))
    inputs /= np.linalg.norm(inputs, axis=1, keepdims=True)
    less = 2 / N * (WEIGHTS * np.linalg.norm(signs @ inputs, axis=2).mean(1)).sum()
    assert 0.5 * bound().complexity < less < bound().complexity


def drawn_losses(count: int):
    """Mean and expected losses of samples, at the weights that fit each sample best and at random ones.

    The population is uniform over many orthonormal inputs, whose labels are drawn: it can only be learned by
    heart. ``w_i = (W_i/√N) Σ_l s_il f_l`` gives each example of a sample the margin W_i / √N.
    """
    random, population = np.random.default_rng(1), 400
    spins = random.choice([-1, 1], (population, LABELS))
    for _ in range(count):
        sample = random.integers(population, size=N)
        fitted = np.zeros((population, LABELS))
        np.add.at(fitted, sample, spins[sample])
        others = random.normal(size=(20, population, LABELS))
        weights = np.concatenate([fitted[None], others])
        weights *= WEIGHTS / np.linalg.norm(weights, axis=1, keepdims=True)
        # Inputs are unit vectors: the field of an input is its own weight.
        losses = np.maximum(1 - spins * weights, 0).sum(2)
        yield losses[:, sample].mean(1), losses.mean(1)


def test_sums_of_labels_stay_below_their_complexities_and_the_bound_holds():
    found = [(expected - mean).max() for mean, expected in drawn_losses(300)]
    limit = bound()
    # The factor 2 is of symmetrisation: what memory reaches is about half.
    assert 0.4 * limit.complexity < np.mean(found) < limit.complexity
    wrong = np.mean(np.array(found) > limit.complexity + bound(confidence=0.5).deviation)
    assert wrong <= 0.5


def test_terms_add_up_and_shrink_with_examples():
    few, many = (
        generalisation_bound(0.3, 0.5, feature_norms=[2.0, 1.0], weight_norms=1.5, num_examples=n)
        for n in (100, 10_000)
    )
    assert few.loss == pytest.approx(0.3 + few.complexity + few.deviation)
    assert (few.error, few.complexity) == (1.0, pytest.approx(2 * 1.5 * 3 / 10))
    assert many.error == pytest.approx(many.loss / 0.5)
    assert (many.complexity, many.deviation) == pytest.approx((few.complexity / 10, few.deviation / 10))
    assert few.deviation == pytest.approx((2 + 4.5) * np.sqrt(np.log(20) / 200))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"confidence": 1.0}, "confidence: expected"),
        ({"num_examples": 0}, "num_examples: expected"),
        ({"weight_norms": [1.0]}, "weight_norms: expected 3"),
        ({"feature_norms": [1.0, -1.0, 1.0]}, "feature_norms: least: expected"),
        ({"feature_norms": [1.0, np.inf, 1.0]}, "feature_norms: largest: expected"),
        ({"margin": 0.0}, "margin: expected"),
    ],
)
def test_numbers_that_bound_nothing_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        bound(**settings)
