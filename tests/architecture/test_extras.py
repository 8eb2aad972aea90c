"""A missing library is named together with the extra that brings it."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import tomllib

import pytest
from test_imports import LEAVES, ROOT, brought, imports

from lmbm_torch.extras import EXTRAS, naming_extras

# Where the imports of a library stand that are made when a module is imported: the module to begin with.
DOORS = {
    "scipy": ("data", "solvers"),
    "sklearn": ("estimators",),
    "torchmetrics": ("metrics",),
    "matplotlib": ("viz",),
    "lightning": ("training.structured", "data.datamodule"),
    "clarabel": ("inference.relaxations.lp_relaxation",),
    "pyarrow": ("prediction.parquet",),
    "highspy": ("inference.relaxations.integer_program",),
    "cvxpy": ("inference.relaxations.lp_layer", "references"),
    "pytoulbar2": ("inference.relaxations.cost_function_network",),
}


def test_every_library_has_its_extra():
    # With a fallback of their own, or never without torch or another of these.
    without = {"llvmlite", "numba", "triton", "jaxtyping", "threadpoolctl", "cloudpickle", "networkx"}
    # Of servers, such as examples/annotate, which nothing of the package imports.
    of_examples = {"fastapi", "uvicorn"}
    assert set(EXTRAS) == set(LEAVES) - without | of_examples
    assert {name for name, extra in EXTRAS.items() if name not in brought(extra)} == set()


def test_the_recommended_installation_is_enough_for_the_readme():
    readme = (ROOT.parent / "README.md").read_text(encoding="utf-8")
    assert 'pip install ".[all]"' in readme
    blocks = [code for code in re.findall(r"```python\n(.*?)```", readme, re.S) if "fastapi" not in code]
    used = {name.partition(".")[0] for code in blocks for name in imports(code)}
    assert used - {"lmbm_torch", "torch", "numpy"} <= brought("all")


@pytest.mark.parametrize(
    ("library", "door"), [(library, door) for library, doors in DOORS.items() for door in doors]
)
def test_a_missing_library_is_named_with_its_extra(monkeypatch, library, door):
    # As where nothing of it is installed.
    for name in [name for name in sys.modules if name.partition(".")[0] == library]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)
    if library == "pytoulbar2":
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    room = f"lmbm_torch.{door}"
    for name in [name for name in sys.modules if name == room or name.startswith(f"{room}.")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ImportError, match=rf'pip install "lmbm-torch\[{EXTRAS[library]}\]"'):
        importlib.import_module(room)


# Every module, where nothing but torch, numpy and numba is installed. What commands alone call is left out,
# for they name extras themselves, and so are the inner parts of inference.
EVERY_MODULE = """
import importlib, importlib.util, pkgutil, sys
import lmbm_torch

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

missing, find_spec = set(sys.argv[1:]), importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name in missing else find_spec(name, package)
sys.meta_path.insert(0, Missing())
rooms = pkgutil.walk_packages(lmbm_torch.__path__, "lmbm_torch.", onerror=lambda name: None)
inner = ("kernels.", "cli.", "compare.", "inference.relaxations.toulbar2")
for name in [each.name for each in rooms]:
    if name.removeprefix("lmbm_torch.").startswith(inner):
        continue
    try:
        importlib.import_module(name)
    except ImportError as error:
        print(name, error, sep=": ")
"""


def test_every_module_names_what_it_lacks():
    command = [sys.executable, "-c", EVERY_MODULE, *EXTRAS]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lacking = done.stdout.splitlines()
    assert len(lacking) > 30
    assert [line for line in lacking if 'pip install "lmbm-torch[' not in line] == []
    # The libraries that a plain installation goes without.
    inference = {line.partition(":")[0] for line in lacking if line.startswith("lmbm_torch.inference.")}
    leaves = {"cost_function_network", "integer_program", "lp_layer", "lp_relaxation"}
    expected = {f"lmbm_torch.inference.relaxations.{name}" for name in leaves}
    graphs = {f"lmbm_torch.inference.graphs.{name}" for name in ("cycles", "programming")}
    assert inference == expected | graphs


def test_the_manual_lists_the_extras():
    start = (ROOT.parent / "docs" / "start.md").read_text(encoding="utf-8")
    first_cells = re.findall(r"^\| (`[a-z`, ]+) \|", start, re.M)
    listed = {name for cell in first_cells for name in re.findall(r"[a-z]+", cell)}
    project = tomllib.loads((ROOT.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for_developers = {"bench", "dev", "docs", "fuzz", "notebooks"}
    assert listed == set(project["optional-dependencies"]) - for_developers


def test_what_no_extra_brings_is_left_alone():
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'nonsense'$"), naming_extras():
        importlib.import_module("nonsense")


def test_an_extra_is_named_once():
    error = ModuleNotFoundError("No module named 'sklearn'", name="sklearn.base")
    with pytest.raises(ModuleNotFoundError) as found, naming_extras(), naming_extras():
        raise error
    assert str(found.value).count("pip install") == 1
    assert found.value.name == "sklearn.base"
