"""Small random fits of every estimator: odd columns, labels and settings; no error but about an argument."""

from __future__ import annotations

import pytest
from fuzz.fits import MAKERS, fit_and_predict

# Fits, of each estimator; scripts/fuzz/fits.py makes more.
FEW, MANY = 2, 1000


@pytest.mark.parametrize("name", MAKERS)
def test_a_few_fits(name):
    learned = [fit_and_predict(name, seed) for seed in range(FEW)]
    assert any(learned)


@pytest.mark.slow
@pytest.mark.parametrize("name", MAKERS)
def test_many_fits(name):
    for seed in range(MANY):
        fit_and_predict(name, seed)
