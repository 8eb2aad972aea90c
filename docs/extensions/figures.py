"""Figures that pyplot does not know of: what `lmbm_torch.viz` returns as the last value of a cell."""

from __future__ import annotations

from typing import Any
from weakref import WeakSet

from matplotlib.figure import Figure
from sphinx_gallery.scrapers import figure_rst

SHARPNESS = 160
_saved: WeakSet[Figure] = WeakSet()


def last_value(block: Any, block_vars: dict[str, Any], gallery_conf: dict[str, Any]) -> str:
    """Save the figure that a cell ends with, if it does."""
    value = block_vars["example_globals"].get("___")
    # The value stays where it is until a later cell ends with another.
    if not isinstance(value, Figure) or value in _saved:
        return ""
    _saved.add(value)
    path = next(block_vars["image_path_iterator"])
    value.savefig(path, dpi=SHARPNESS)
    return figure_rst([path], gallery_conf["src_dir"])
