"""Heatmaps of dependencies between labels, and pictures of small graphs with marginals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import matplotlib
import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Wedge
from torch import Tensor

from lmbm_torch.checks import check_finite, check_permutation, check_shape
from lmbm_torch.energies import FactorEnergy, to_networkx
from lmbm_torch.shapes import Float, Int
from lmbm_torch.viz.style import COLOURS, AnyScript

# Largest number of labels whose cells have room for numbers; many more labels have no names either.
MAX_WITH_NUMBERS = 12
MAX_WITH_NAMES = 60


def dependency_heatmap(
    parents: Float[Tensor, "labels labels"] | Float[np.ndarray, "labels labels"],
    label_names: Sequence[str],
    ordering: Int[Tensor, " labels"] | Sequence[int],
) -> Figure:
    """Draw the weight of every parent (columns) in every label's field (rows), in topological order.

    Positive weights are red and negative weights blue, on a scale that is symmetric around zero and safe for
    colour-blind readers; cells of impossible parents are grey.

    Args:
        parents: row i holds the weights of label i's parents, counted by label.
        label_names: one name per label.
        ordering: the label at each position.

    Raises:
        ValueError: shapes do not fit, a weight is not finite, or the ordering is no permutation.

    Examples:
        >>> import numpy as np
        >>> from lmbm_torch.viz.dependencies import dependency_heatmap
        >>> figure = dependency_heatmap(np.array([[0.0, 0.0], [0.7, 0.0]]), ["sea", "beach"], np.arange(2))
        >>> figure.axes[0].get_xlabel()
        'parent'
    """
    weights = _square("parents", parents, label_names)
    count = len(weights)
    check_permutation("ordering", ordering, count)
    order = [int(label) for label in ordering]
    ordered = np.ma.masked_array(weights[np.ix_(order, order)], np.triu(np.ones((count, count), np.bool_)))
    texts = {"xlabel": "parent", "ylabel": "label", "title": "What each label takes from those before it"}
    return _heatmap(ordered, [label_names[label] for label in order], **texts)


def coupling_heatmap(
    couplings: Float[Tensor, "labels labels"] | Float[np.ndarray, "labels labels"], label_names: Sequence[str]
) -> Figure:
    """Draw the coupling of every two labels of a Boltzmann machine, coloured as :func:`dependency_heatmap`.

    Args:
        couplings: a symmetric matrix; the diagonal is not shown.
        label_names: one name per label.

    Raises:
        ValueError: shapes do not fit, or a weight is not finite.

    Examples:
        >>> import numpy as np
        >>> from lmbm_torch.viz.dependencies import coupling_heatmap
        >>> figure = coupling_heatmap(np.array([[0.0, 0.7], [0.7, 0.0]]), ["sea", "beach"])
        >>> [text.get_text() for text in figure.axes[0].get_xticklabels()]
        ['sea', 'beach']
    """
    weights = _square("couplings", couplings, label_names)
    shown = np.ma.masked_array(weights, np.eye(len(weights), dtype=np.bool_))
    return _heatmap(shown, label_names, title="How labels are coupled")


def transition_heatmap(transition: Float[np.ndarray, "states states"], label_names: Sequence[str]) -> Figure:
    """Draw the weight of every transition of a chain, from the state of the row to the state of the column.

    Args:
        transition: the weights, for example ``transition_`` of a chain estimator.
        label_names: one name per state.

    Raises:
        ValueError: shapes do not fit, or a weight is not finite.

    Examples:
        >>> import numpy as np
        >>> from lmbm_torch.viz.dependencies import transition_heatmap
        >>> figure = transition_heatmap(np.array([[1.0, -1.0], [0.0, 2.0]]), ["noun", "verb"])
        >>> [text.get_text() for text in figure.axes[0].get_xticklabels()]
        ['noun', 'verb']
    """
    weights = _square("transition", transition, label_names)
    texts = {"xlabel": "next label", "ylabel": "label", "title": "Which label follows which"}
    return _heatmap(np.ma.masked_array(weights), label_names, **texts)


def _square(name: str, weights: Tensor | np.ndarray, label_names: Sequence[str]) -> np.ndarray:
    """Check for a finite weight for every two names, and return the weights in float64."""
    square = torch.as_tensor(weights, device="cpu").detach().double().numpy()
    check_shape(name, square, None, len(square))
    check_finite(name, square)
    if len(label_names) != len(square):
        raise ValueError(f"label_names: expected {len(square)} names, got {len(label_names)}")
    return square


def _heatmap(weights: np.ma.MaskedArray, names: Sequence[str], **texts: str) -> Figure:
    """Draw a square heatmap with a scale symmetric around zero; masked cells are grey.

    Args:
        texts: the texts of the axes, for example ``xlabel``.
    """
    count = len(weights)
    strongest = max(float(np.abs(weights.filled(0)).max()), np.finfo(np.float64).tiny)
    side = min(3.0 + 0.45 * count, 12.0)
    figure = AnyScript(figsize=(side + 1.0, side), layout="constrained")
    axes = figure.add_subplot(**texts)
    colours = matplotlib.colormaps["RdBu_r"].with_extremes(bad="0.92")
    image = axes.imshow(weights, cmap=colours, vmin=-strongest, vmax=strongest)
    figure.colorbar(image, ax=axes, label="weight", shrink=0.8)
    if count <= MAX_WITH_NAMES:
        axes.set_xticks(range(count), names, rotation=90 if max(map(len, names)) > 3 else 0)
        axes.set_yticks(range(count), names)
    if count <= MAX_WITH_NUMBERS:
        for row, column in np.argwhere(~np.ma.getmaskarray(weights)).tolist():
            weight = weights[row, column]
            colour = "white" if abs(weight) > 0.6 * strongest else "black"
            axes.text(column, row, f"{weight:.2f}", ha="center", va="center", fontsize="small", color=colour)
    return figure


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
        marginals: P(y_i = s), for example ``lmbm_torch.marginals(energy).states[0]``.
        names: the names of the variables; by default their numbers.
        positions: (x, y) of each variable; by default a layout by spring forces.

    Raises:
        ValueError: the energy has several examples; ``marginals`` or ``names`` do not fit its variables.

    Examples:
        >>> import torch
        >>> from lmbm_torch import FactorEnergy, marginals
        >>> from lmbm_torch.viz.dependencies import graph_of_marginals
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
