"""Figures of models, searches and results, as matplotlib figures that do not use pyplot.

This package may change. Import its modules:

* ``dependencies``: heatmaps of couplings, dependencies and transitions, and graphs with marginals;
* ``images``: grids and rows of images, segment displays, and filters of weights;
* ``quality``: bar charts, scores of labels, reliability diagrams, and histograms of search nodes.
"""

from lmbm_torch.extras import naming_extras

with naming_extras():
    import matplotlib as matplotlib
