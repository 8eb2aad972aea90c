"""Figures of models, searches and results, as matplotlib figures that do not use pyplot."""

from lmbm_torch.extras import naming_extras

with naming_extras():
    from lmbm_torch.viz.dependencies import (
        coupling_heatmap,
        dependency_heatmap,
        graph_of_marginals,
        transition_heatmap,
    )
    from lmbm_torch.viz.images import image_grid, image_rows, segment_displays, weight_filters
    from lmbm_torch.viz.quality import bar_chart, label_chart, node_histogram, reliability_diagram

__all__ = [
    "bar_chart",
    "coupling_heatmap",
    "dependency_heatmap",
    "graph_of_marginals",
    "image_grid",
    "image_rows",
    "label_chart",
    "node_histogram",
    "reliability_diagram",
    "segment_displays",
    "transition_heatmap",
    "weight_filters",
]
