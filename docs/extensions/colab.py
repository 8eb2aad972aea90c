"""A button on every page of the gallery that opens its notebook in Colab."""

from __future__ import annotations

import shutil
from pathlib import Path

from sphinx.application import Sphinx

BRANCH = "gh-pages"
FOLDER = "notebooks"
BUTTON = """
.. button-link:: https://colab.research.google.com/github/{repository}/blob/{branch}/{folder}/{name}.ipynb
   :color: primary
   :outline:

   Open in Colab
"""


def add_button(app: Sphinx, docname: str, source: list[str]) -> None:
    """Below the title of an example, where the repository is known."""
    folder, _, name = docname.rpartition("/")
    repository = app.config.colab_repository
    if folder != "gallery" or not name.startswith("plot_") or not repository:
        return
    lines = source[0].splitlines()
    underline = next(place for place, line in enumerate(lines) if place and line and set(line) == {"="})
    button = BUTTON.format(repository=repository, branch=BRANCH, folder=FOLDER, name=name)
    source[0] = "\n".join([*lines[: underline + 1], button, *lines[underline + 1 :]])


def keep_notebooks(app: Sphinx, error: Exception | None) -> None:
    """Beside the pages, under a name that does not change from build to build."""
    if error is None and app.builder.format == "html":
        target = Path(app.outdir) / FOLDER
        target.mkdir(exist_ok=True)
        for path in Path(app.srcdir).glob("gallery/plot_*.ipynb"):
            shutil.copy(path, target)


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_config_value("colab_repository", "", "env")
    app.connect("source-read", add_button)
    app.connect("build-finished", keep_notebooks)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
