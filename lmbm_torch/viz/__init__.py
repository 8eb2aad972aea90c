"""Figures of models, searches and results, as matplotlib figures that are not registered with pyplot."""

from lmbm_torch.extras import naming_extras

with naming_extras():
    from lmbm_torch.viz.comparisons import bar_chart, interval_plot
    from lmbm_torch.viz.dependencies import coupling_heatmap, dependency_heatmap, transition_heatmap
    from lmbm_torch.viz.images import image_grid, image_rows, weight_filters
    from lmbm_torch.viz.nodes import node_histogram
    from lmbm_torch.viz.quality import change_chart, label_chart, reliability_diagram
    from lmbm_torch.viz.segments import segment_displays

__all__ = [
    "bar_chart",
    "change_chart",
    "coupling_heatmap",
    "dependency_heatmap",
    "image_grid",
    "image_rows",
    "interval_plot",
    "label_chart",
    "node_histogram",
    "reliability_diagram",
    "segment_displays",
    "transition_heatmap",
    "weight_filters",
]
