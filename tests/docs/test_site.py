"""The manual builds without a warning, its links lead somewhere, and nothing is wider than a phone."""

from __future__ import annotations

import html
import os
import re
import subprocess
import sys
import time
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "scripts"))
check_site = import_module("check_site")
LONGEST_SECONDS = 300


def test_links_that_lead_nowhere_are_found(tmp_path):
    (tmp_path / "a.html").write_text(
        '<a href="b.html#there">x</a><a href="https://example.org/x">y</a><p id="here">'
    )
    (tmp_path / "b.html").write_text('<a href="a.html#here">x</a><p id="there">')
    pages = check_site.read(tmp_path)
    assert check_site.broken(pages) == []
    assert check_site.external(pages.values()) == ["https://example.org/x"]
    (tmp_path / "b.html").write_text('<a href="c.html">x</a><img src="no.png"><a href="#nowhere">')
    pages = check_site.read(tmp_path)
    assert check_site.broken(pages) == [
        "a.html: b.html#there: no such place",
        "b.html: c.html: no such file",
        "b.html: no.png: no such file",
        "b.html: #nowhere: no such place",
    ]


def test_the_reference_has_a_page_for_every_package():
    pytest.importorskip("sphinx", reason="the extra 'docs' is not installed: no Sphinx")
    sys.path.append(str(ROOT / "docs" / "extensions"))
    packages = {path.parent.name for path in (ROOT / "lmbm_torch").glob("*/__init__.py")}
    # Inner loops are no part of what is public.
    assert {*import_module("reference").PACKAGES} == packages - {"kernels"}


def test_every_committed_table_is_in_the_benchmarks():
    text = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    tables = [*(ROOT / "results").glob("*.md"), *(ROOT / "results" / "bench").glob("*.csv")]
    assert tables
    assert [path.name for path in tables if f"{path.relative_to(ROOT / 'results')}" not in text] == []


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """As `make site` builds it, where a repository is known."""
    pytest.importorskip("sphinx", reason="the extra 'docs' is not installed: no Sphinx")
    folder = tmp_path_factory.mktemp("site")
    started = time.perf_counter()
    command = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--keep-going", "--quiet", "-j", "auto"]
    run = subprocess.run(
        [*command, "-b", "html", "docs", str(folder)],
        cwd=ROOT,
        env=os.environ | {"GITHUB_REPOSITORY": "owner/lmbm_torch", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert time.perf_counter() - started < LONGEST_SECONDS
    return folder


@pytest.mark.slow
def test_links_of_the_site_lead_somewhere(site):
    pages = check_site.read(site)
    assert len(pages) > 200
    assert check_site.broken(pages) == []


@pytest.mark.slow
def test_shapes_papers_and_notebooks_are_on_their_pages(site):
    energy = (site / "reference/generated/lmbm_torch.energies.DirectedEnergy.html").read_text(
        encoding="utf-8"
    )
    assert "unary: Float[Tensor, 'batch labels']" in html.unescape(re.sub("<[^>]*>", "", energy))
    assert "bibliography.html#lmbm-and-lmsbn-2010" in energy
    example = (site / "gallery/plot_01_own_table.html").read_text(encoding="utf-8")
    assert "colab.research.google.com/github/owner/lmbm_torch/blob/gh-pages/notebooks/plot_01" in example
    assert (site / "notebooks/plot_01_own_table.ipynb").exists()


@pytest.mark.slow
def test_no_page_is_wider_than_its_window(site, tmp_path):
    browser = os.environ.get("LMBM_BROWSER")
    if not browser or find_spec("playwright") is None:
        pytest.skip("LMBM_BROWSER names no Chromium, or playwright is not installed")
    assert check_site.too_wide(site, browser, tmp_path) == []
