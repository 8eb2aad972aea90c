"""Figures of models and searches, as matplotlib objects without any state of pyplot."""

from lmbm_torch.viz.dependencies import coupling_heatmap, dependency_heatmap
from lmbm_torch.viz.nodes import node_histogram

__all__ = ["coupling_heatmap", "dependency_heatmap", "node_histogram"]
