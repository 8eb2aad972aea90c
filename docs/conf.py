"""How Sphinx builds the site: `make site`."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent
sys.path[:0] = [str(HERE / "extensions"), str(ROOT)]

# Pages are built by several processes, and examples are small: threads would only get in each other's way.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.pop("LMBM_DATA", None)
warnings.filterwarnings("ignore", message=".*LeafSpec.*")

import lmbm_torch  # noqa: E402

project = "lmbm_torch"
author = "The lmbm_torch authors"
project_copyright = "The lmbm_torch authors, MIT licence"
version = release = lmbm_torch.__version__

# OWNER/NAME: given by the workflow that publishes the site, and needed by the buttons that open Colab.
REPOSITORY = os.environ.get("GITHUB_REPOSITORY", "")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
    "mathml",
    "papers",
    "reference",
    "tutorials",
    "colab",
]
exclude_patterns = ["_build", "templates", "extensions", "gallery/*.ipynb", "gallery/*.md5", "gallery/sg_*"]
templates_path = ["templates"]
suppress_warnings = ["config.cache"]

myst_enable_extensions = ["amsmath", "attrs_block", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

# Docstrings are written in Google's style, and types in the shapes' own words.
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
autosummary_generate = True
autosummary_ignore_module_all = False
autodoc_member_order = "bysource"
# Sources of defaults cannot be found for ``fit``, whose signature has a parameter of its wrapper.
autodoc_preserve_defaults = False
autodoc_typehints_format = "short"
autodoc_default_options = {"show-inheritance": True}
python_maximum_signature_line_length = 80
python_use_unqualified_type_names = True
add_module_names = False
default_role = "code"

html_math_renderer = "mathml"
html_theme = "pydata_sphinx_theme"
html_title = "lmbm_torch"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_theme_options = {
    "show_toc_level": 2,
    "header_links_before_dropdown": 7,
    "navigation_with_keys": False,
    "show_prev_next": False,
    "footer_start": ["copyright"],
    "footer_end": ["sphinx-version"],
    "secondary_sidebar_items": ["page-toc"],
} | ({"github_url": f"https://github.com/{REPOSITORY}"} if REPOSITORY else {})
html_sidebars = {"index": [], "start": [], "benchmarks": []}

colab_repository = REPOSITORY
# Where the notebook is opened by Colab, the library has to come first.
INSTALL = f"""import sys

if "google.colab" in sys.modules:
    %pip install --quiet "lmbm-torch[all] @ git+https://github.com/{REPOSITORY}"
"""

sphinx_gallery_conf = {
    "examples_dirs": str(ROOT / "examples"),
    "gallery_dirs": "gallery",
    "filename_pattern": r"/plot_",
    "within_subsection_order": "FileNameSortKey",
    "remove_config_comments": True,
    "show_memory": False,
    "show_signature": False,
    "write_computation_times": False,
    "first_notebook_cell": INSTALL if REPOSITORY else None,
    "plot_gallery": True,
    "abort_on_example_error": True,
    "backreferences_dir": None,
    "image_scrapers": ("matplotlib", "figures.last_value"),
    "capture_repr": ("_repr_html_",),
}
