"""Pictures of graphs show each variable's probabilities where the variable stands."""

from __future__ import annotations

import pytest
import torch
from matplotlib.patches import Wedge

from lmbm_torch import FactorEnergy, marginals
from lmbm_torch.viz.dependencies import graph_of_marginals


def test_pies_have_the_angles_of_the_marginals():
    table = torch.randn(2, 3, 2, generator=torch.Generator().manual_seed(0))
    energy = FactorEnergy.of((2, 3, 2), [((0, 1), table[..., 0]), ((0, 1, 2), table)])
    chances = marginals(energy).states[0]
    places = {0: (0.0, 0.0), 1: (1.0, 0.0), 2: (0.0, 1.0)}
    figure = graph_of_marginals(energy, chances, names=["sun", "sea", "sand"], positions=places)
    (axes,) = figure.axes
    wedges = [patch for patch in axes.patches if isinstance(patch, Wedge)]
    for number, states in enumerate((2, 3, 2)):
        own = [each for each in wedges if tuple(each.center) == places[number]]
        angles = torch.tensor([each.theta2 - each.theta1 for each in own], dtype=torch.float32)
        torch.testing.assert_close(angles, 360 * chances[number, :states].float(), rtol=1e-4, atol=1e-3)
    assert [text.get_text() for text in axes.texts] == ["sun", "sea", "sand"]
    # One edge of the pair, three of the table of three variables, and the table's square.
    assert len(axes.lines) == 5


def test_other_marginals_are_refused():
    energy = FactorEnergy.of((2, 2), [((0, 1), torch.eye(2))])
    with pytest.raises(ValueError, match="marginals: expected shape"):
        graph_of_marginals(energy, torch.ones(3, 2))
    with pytest.raises(ValueError, match="names: expected 2 names, got 1"):
        graph_of_marginals(energy, torch.ones(2, 2) / 2, names=["one"])
