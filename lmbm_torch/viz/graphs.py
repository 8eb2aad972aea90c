"""Pictures of small graphs with the marginals of their variables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Wedge
from torch import Tensor

from lmbm_torch.checks import check_shape
from lmbm_torch.energies import FactorEnergy, to_networkx
from lmbm_torch.shapes import Float
from lmbm_torch.viz.style import COLOURS, AnyScript


def graph_of_marginals(
    energy: FactorEnergy,
    marginals: Float[Tensor, "labels states"],
    *,
    names: Sequence[str] | None = None,
    positions: Mapping[int, tuple[float, float]] | None = None,
) -> Figure:
    """Draw the graph of an example, with each variable as a pie chart of its states' probabilities.

    A table of two variables is drawn as an edge; a table of more variables as a square joined to each.

    Args:
        energy: an energy of a single example.
        marginals: P(y_i = s), like ``lmbm_torch.marginals(energy).states[0]``.
        names: the names of the variables; by default their numbers.
        positions: (x, y) of each variable; by default a layout by spring forces.

    Raises:
        ValueError: the energy has several examples; ``marginals`` or ``names`` do not fit its variables.

    Examples:
        >>> import torch
        >>> from lmbm_torch import FactorEnergy, marginals
        >>> from lmbm_torch.viz import graph_of_marginals
        >>> energy = FactorEnergy.of((2, 2), [((0, 1), torch.eye(2))])
        >>> len(graph_of_marginals(energy, marginals(energy).states[0]).axes[0].patches)
        4
    """
    import networkx

    graph = to_networkx(energy)
    check_shape("marginals", marginals, energy.num_labels, energy.num_states)
    names = [str(number) for number in range(energy.num_labels)] if names is None else names
    if len(names) != energy.num_labels:
        raise ValueError(f"names: expected {energy.num_labels} names, got {len(names)}")
    fixed = {} if positions is None else {"pos": dict(positions), "fixed": [*positions]}
    at: dict[Any, Any] = networkx.spring_layout(graph, seed=0, **fixed)
    figure = AnyScript(figsize=(5, 5), layout="constrained")
    axes = figure.add_subplot(aspect="equal")
    axes.axis("off")
    spread = np.ptp(np.array([*at.values()]), 0).max() or 1.0
    radius = spread / (3 + 2 * np.sqrt(len(at)))
    for edge in graph.edges:
        axes.plot(*zip(*(at[node] for node in edge), strict=True), color="0.6", zorder=0)
    for node in graph.nodes:
        if isinstance(node, tuple):
            axes.plot(*at[node], marker="s", color="0.3")
            continue
        angles = 90 - 360 * np.concatenate([[0.0], np.cumsum(marginals[node].tolist())])
        for state, (high, low) in enumerate(pairwise(angles)):
            if high > low:
                axes.add_patch(Wedge(tuple(at[node]), radius, low, high, color=_colour(state)))
        axes.annotate(str(names[node]), at[node] + [0, 1.2 * radius], ha="center", va="bottom")
    axes.margins(0.15)
    axes.autoscale_view()
    shown = [Patch(color=_colour(state), label=str(state)) for state in range(energy.num_states)]
    axes.legend(handles=shown, title="state", frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def _colour(state: int) -> str:
    return COLOURS[state % len(COLOURS)]
