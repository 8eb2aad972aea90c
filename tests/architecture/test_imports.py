"""Imports flow one way, heavy dependencies stay at the leaves, and the core needs torch and numpy alone."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import lmbm_torch

ROOT = Path(lmbm_torch.__file__).parent

# What each package may import beside itself and the top-level modules, as prefixes of module names.
RESULTS = {"energies", "inference.results"}
BELOW_PREDICTION = {
    "energies",
    "models",
    "inference",
    "losses",
    "solvers",
    "backends",
    "metrics",
    "viz",
    "data",
}
ARROWS = {
    "energies": set(),
    "backends": {"energies"},
    "models": {"energies"},
    "inference": {"energies", "backends"},
    "losses": {"energies", "inference"},
    "solvers": {"energies", "inference", "losses", "backends"},
    "metrics": RESULTS,
    "viz": RESULTS,
    "data": RESULTS,
    "prediction": BELOW_PREDICTION,
    "training": BELOW_PREDICTION | {"prediction"},
    "estimators": BELOW_PREDICTION,
}
EVERYONE = {"checks", "files", "shapes"}

# The only places that may import each of these; whatever is not listed is of torch, numpy or Python itself.
LEAVES = {
    "llvmlite": {"backends"},
    "numba": {"backends"},
    "triton": {"backends"},
    "cvxpy": {"inference.lp_layer"},
    "cvxpylayers": {"inference.lp_layer"},
    "clarabel": {"inference.lp_relaxation"},
    "highspy": {"inference.integer_program"},
    "pytoulbar2": {"inference.cost_function_network"},
    "threadpoolctl": {"solvers"},
    "scipy": {"solvers", "data", "prediction", "training", "estimators"},
    "sklearn": {"data", "prediction", "training", "estimators"},
    "lightning": {"data", "training"},
    "torchmetrics": {"metrics", "training"},
    "matplotlib": {"viz"},
    "arff": {"data"},
    "safetensors": {"models.archives"},
    "jinja2": {"prediction.pages"},
    "jaxtyping": {"shapes"},
}

# What a package of an index brings under another name, or besides.
BRINGS = {
    "scikit-learn": {"sklearn", "joblib", "threadpoolctl"},
    "liac-arff": {"arff"},
    "hydra-core": {"hydra"},
}

# Importable with torch and numpy alone, but for their modules that LEAVES names.
CORE = ("energies", "models", "inference", "losses")


def modules() -> list[tuple[str, Path]]:
    """Every module of the package, by its name below ``lmbm_torch``."""
    named = []
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        named.append((".".join(parts[:-1] if parts[-1] == "__init__" else parts), path))
    return named


def imports(source: str) -> set[str]:
    """Every module that the source imports, wherever it does; ``from a import b`` gives ``a.b``."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports would escape this test"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def within(name: str, prefixes: set[str]) -> bool:
    """Whether a module is one of ``prefixes`` or below one."""
    return any(name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes)


def is_private(name: str) -> bool:
    """Whether a module, or what it holds, is for itself alone."""
    return any(part.startswith("_") and not part.startswith("__") for part in name.split("."))


def forbidden(module: str, source: str) -> set[str]:
    """The imports of ``module`` that no rule allows."""
    package = module.partition(".")[0]
    ours = EVERYONE | ARROWS[package] | {package} if package in ARROWS else EVERYONE
    refused = set()
    for name in imports(source):
        top, _, below = name.partition(".")
        if top == "lmbm_torch":
            allowed = within(below, ours) and not is_private(below)
        elif top in LEAVES:
            allowed = within(module, LEAVES[top])
        else:
            allowed = top in {"torch", "numpy"} or top in sys.stdlib_module_names
        if not allowed:
            refused.add(name)
    return refused


@pytest.mark.parametrize(("module", "path"), modules(), ids=[name for name, _ in modules()])
def test_imports_are_allowed(module, path):
    assert forbidden(module, path.read_text(encoding="utf-8")) == set()


def test_every_package_has_its_rule():
    assert {module.partition(".")[0] for module, path in modules() if path.parent != ROOT} == set(ARROWS)


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("energies.directed", "from lmbm_torch.inference import exact"),
        ("models.boltzmann", "from lmbm_torch import solvers"),
        ("backends.numba_rows", "import lmbm_torch.inference.results"),
        ("metrics.classes", "from lmbm_torch.inference.exact import decode"),
        ("estimators.lmsbn", "from lmbm_torch.training import modules"),
        ("checks", "from lmbm_torch.energies import DirectedEnergy"),
        ("inference.exact", "def late():\n    import numba"),
        ("training.modules", "import matplotlib.pyplot as plt"),
        ("data.dataset", "import pandas"),
        ("solvers.smo", "from cvxpy import Variable"),
        ("inference.exact", "from lmbm_torch.inference.parts.one_side import _rows"),
    ],
)
def test_forbidden_imports_are_seen(module, line):
    assert forbidden(module, line)


def test_the_core_imports_and_runs_with_torch_and_numpy_alone():
    core = [module for module, _ in modules() if module.partition(".")[0] in CORE]
    core = [module for module in core if not any(module in leaves for leaves in LEAVES.values())]
    script = f"""
import importlib, sys
sys.modules["jaxtyping"] = None  # what raises ImportError, as where it is not installed
for module in {core}:
    importlib.import_module("lmbm_torch." + module)
heavy = {sorted(LEAVES)} + ["hydra", "joblib", "pandas", "tensorboard"]
print([name for name in heavy if sys.modules.get(name) is not None])

import torch
from lmbm_torch.energies import DirectedEnergy
from lmbm_torch.inference import ancestral, beam_search, exact
from lmbm_torch.losses import local_hinge

energy = DirectedEnergy(torch.ones(2, 3), torch.zeros(3, 3), torch.arange(3))
print(exact.decode(energy).labels.tolist() == beam_search.decode(energy).labels.tolist())
print(local_hinge(energy, ancestral.sample(energy, 1)[0]).shape)
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines() == ["[]", "True", "torch.Size([2])"]


def brought(extra: str) -> set[str]:
    """The modules that installing the library with an extra brings, beside torch and numpy."""
    extras = tomllib.loads((ROOT.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "optional-dependencies"
    ]
    found: set[str] = set()
    for requirement in extras[extra]:
        nested = re.fullmatch(r"lmbm-torch\[(.+)\]", requirement)
        name = re.split(r"[><=;]", requirement)[0]
        found |= set().union(*map(brought, nested[1].split(","))) if nested else BRINGS.get(name, {name})
    return found


@pytest.mark.parametrize(
    ("extra", "packages"),
    [
        ("sklearn", ("estimators", "metrics")),
        ("data", ("data",)),
        ("viz", ("viz",)),
        ("train", ("training", "data")),
    ],
)
def test_an_extra_brings_what_its_packages_import(extra, packages):
    own = brought(extra)
    needed = [module for module, _ in modules() if module.partition(".")[0] in packages]
    if "lightning" not in own:
        needed = [module for module in needed if "datamodule" not in module]
    # torchmetrics looks whether matplotlib is there, which a module that cannot be found would not survive.
    missing = sorted((set(LEAVES) | {"pandas"}) - own - {"matplotlib"})
    script = f"""
import importlib, sys
for module in {missing}:
    sys.modules[module] = None
for module in {needed}:
    importlib.import_module("lmbm_torch." + module)
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
