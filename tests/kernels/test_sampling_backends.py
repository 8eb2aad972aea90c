"""What samples are drawn for: compiled code says what its reference says, whatever it passes over."""

from __future__ import annotations

import numpy as np
import pytest

from lmbm_torch.kernels.search.compiled import samples as compiled
from lmbm_torch.kernels.search.plain import samples as plain
from lmbm_torch.kernels.search.plain.samples import Network


def random_network(seed: int, labels: int, density: float, level: float) -> Network:
    random = np.random.default_rng(seed)
    step = np.tril(random.normal(size=(labels, labels)), -1).T
    step *= random.random(step.shape) < density
    parent, child = np.nonzero(step)
    start = np.searchsorted(parent, np.arange(labels + 1))
    return Network(level + random.normal(size=(7, labels)), start, child, step[parent, child])


def random_problem(labels: int, samples: int, density: float, level: float) -> tuple[Network, np.ndarray]:
    """A network, and noise for its samples."""
    noise = np.random.default_rng(1).logistic(size=(samples, labels))
    return random_network(labels, labels, density, level), noise


@pytest.mark.parametrize(("labels", "samples"), [(1, 3), (5, 1), (5, 60), (30, 200), (90, 40)])
@pytest.mark.parametrize("density", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("level", [-8.0, -1.5, 1.0])
def test_answers_are_those_of_the_reference(labels, samples, density, level):
    network, noise = random_problem(labels, samples, density, level)
    came, expected = (each.labellings_of_most_f1(network, noise) for each in (compiled, plain))
    np.testing.assert_allclose(came.mean, expected.mean, atol=1e-12)
    np.testing.assert_allclose(came.variance, expected.variance, atol=1e-12)
    # Labellings of one worth are told apart by rounding.
    same = (came.labels == expected.labels).all(1)
    assert same.mean() > 0.5 or samples < 10


@pytest.mark.parametrize(("labels", "samples"), [(1, 3), (5, 1), (30, 200)])
@pytest.mark.parametrize("density", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("level", [-1000.0, -1.5, 1000.0])
def test_chances_are_those_of_the_reference(labels, samples, density, level):
    network, noise = random_problem(labels, samples, density, level)
    came, expected = (each.mean_chances(network, noise) for each in (compiled, plain))
    np.testing.assert_allclose(came.mean, expected.mean, atol=1e-12)
    np.testing.assert_allclose(came.variance, expected.variance, atol=1e-12)


def test_where_no_label_ever_occurs_the_answer_is_empty():
    nothing = random_network(0, 6, 0.5, -1000.0)
    noise = np.zeros((4, 6))
    for backend in (compiled, plain):
        found = backend.labellings_of_most_f1(nothing, noise)
        assert not found.labels.any()
        assert (found.mean == 1).all()
