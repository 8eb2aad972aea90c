"""The wheel alone, without a clone: small, complete, and its commands run."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
QUIET = ["callbacks.progress_bar=null", "trainer.enable_progress_bar=false"]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    return built(tmp_path_factory.mktemp("source"), home="")


def built(folder: Path, home: str) -> Path:
    """Built from a copy, so that the build leaves nothing here, by somebody who knows this home."""
    shutil.copytree(
        ROOT / "lmbm_torch", folder / "lmbm_torch", ignore=shutil.ignore_patterns("__pycache__", "*.nb[ci]")
    )
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    # With setuptools at hand nothing is downloaded.
    isolation = ["--no-build-isolation"] if find_spec("setuptools") else []
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", *isolation, "--wheel-dir", "dist", "."]
    environment = os.environ | {"GITHUB_REPOSITORY": home}
    subprocess.run(build, cwd=folder, check=True, capture_output=True, env=environment)
    (wheel,) = (folder / "dist").glob("*.whl")
    return wheel


def metadata(wheel: Path) -> str:
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(f"{wheel_info(wheel)}/METADATA").decode()


@pytest.fixture(scope="module")
def programs(wheel, tmp_path_factory) -> Path:
    """The programs of a fresh environment: the wheel, and this one's libraries."""
    place = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True)
    python = place / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", str(wheel)]
    subprocess.run(pip, check=True, capture_output=True)
    (packages,) = place.glob("lib/python*/site-packages")
    # A path alone: what that folder says about an editable installation is not read.
    (packages / "libraries.pth").write_text(sysconfig.get_path("purelib"))
    return place / "bin"


def call(programs: Path, folder: Path, *command: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    run = subprocess.run(
        [programs / command[0], *command[1:]], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


@pytest.mark.xfail(reason="1.25 MB of nothing but code and configuration", strict=True)
def test_the_wheel_is_below_a_megabyte(wheel):
    assert wheel.stat().st_size < 1e6


def test_the_wheel_says_where_the_project_is_at_home(wheel, tmp_path):
    described = metadata(built(tmp_path, home="owner/name"))
    assert "Project-URL: Source, https://github.com/owner/name\n" in described
    assert "](https://github.com/owner/name/raw/main/docs/images/seven_segments.png)" in described
    links = re.findall(r"\]\(([^)\s]+)\)", described)
    assert len(links) > 5
    for link in links:
        assert link.startswith(("https://", "#"))
        path = link.partition("/main/")[2].partition("#")[0]
        assert not path or (ROOT / path).exists()
    # Who knows none keeps what the README says.
    unknown = metadata(wheel)
    assert "Project-URL" not in unknown
    assert "](docs/images/seven_segments.png)" in unknown


def test_the_wheel_is_complete(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    ours = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "lmbm_torch").rglob("*")
        if path.suffix in (".py", ".yaml", ".jinja", ".txt")
    }
    assert ours <= names
    assert "lmbm_torch/py.typed" in names
    assert not [name for name in names if name.partition("/")[0] not in ("lmbm_torch", wheel_info(wheel))]


def wheel_info(wheel: Path) -> str:
    return "-".join(wheel.name.split("-")[:2]) + ".dist-info"


def test_commands_run_without_a_clone(programs, tmp_path):
    assert "lmbm train" in call(programs, tmp_path, "lmbm", "--help")
    call(programs, tmp_path, "lmbm", "train", "training.tol=0.1", "paths.run=run", *QUIET)
    measured = json.loads((tmp_path / "run" / "metrics.json").read_text())
    call(programs, tmp_path, "lmbm", "evaluate", "run", "--output", "again.json")
    again = json.loads((tmp_path / "again.json").read_text())
    assert again["exact_match"] == pytest.approx(measured["test/exact_match"])
    call(programs, tmp_path, "lmbm", "report", "run", "--output", "report.html")
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")
    table = call(programs, tmp_path, "lmbm", "reproduce", "table=lmbm_2009", "--cfg", "job")
    assert "lmbm_torch.reproductions.lmbm_2009" in table


def test_a_sweep_runs_without_a_clone(programs, tmp_path):
    sweep = ["-m", "training.tol=0.1", "C=0.1,0.2", "hydra/launcher=processes"]
    call(programs, tmp_path, "lmbm", "train", *sweep, *QUIET)
    assert len(list(tmp_path.rglob("metrics.json"))) == 2


def test_the_readme_begins_with_what_runs(programs, tmp_path):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (tmp_path / "first.py").write_text(re.findall(r"```python\n(.*?)```", readme, re.DOTALL)[0])
    assert "so it is proven for 899 of 899 rows" in call(programs, tmp_path, "python", "first.py")
