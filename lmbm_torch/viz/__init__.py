"""Figures of models and searches, as matplotlib objects without any state of pyplot."""

from lmbm_torch.viz.bars import bar_chart
from lmbm_torch.viz.dependencies import coupling_heatmap, dependency_heatmap
from lmbm_torch.viz.learning_curves import learning_curves
from lmbm_torch.viz.nodes import node_histogram
from lmbm_torch.viz.transitions import error_bars, transition_heatmap

__all__ = [
    "bar_chart",
    "coupling_heatmap",
    "dependency_heatmap",
    "error_bars",
    "learning_curves",
    "node_histogram",
    "transition_heatmap",
]
