"""Imports flow one way, heavy dependencies stay at the leaves, and the core needs torch and numpy alone."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from sweeps import slow

import lmbm_torch

ROOT = Path(lmbm_torch.__file__).parent

# The modules that each package may import, beside its own and those at the top, by prefixes of names.
RESULTS = {"energies", "inference.common.results"}
BELOW_PREDICTION = {
    "constraints",
    "energies",
    "models",
    "inference",
    "losses",
    "solvers",
    "fitting",
    "calibration",
    "kernels",
    "metrics",
    "viz",
    "data",
}
ABOVE = BELOW_PREDICTION | {"persistence", "prediction", "training", "estimators"}
ARROWS = {
    "constraints": set(),
    "certificates": {"constraints", "energies", "kernels", "inference", "solvers"},
    "energies": set(),
    "kernels": {"energies"},
    "models": {"energies"},
    "inference": {"energies", "kernels", "constraints"},
    "losses": {"energies", "inference"},
    "solvers": {"energies", "inference", "losses", "kernels"},
    "fitting": {"energies", "losses", "models", "solvers"},
    "calibration": {"energies", "losses", "fitting"},
    "nn": {"constraints", "energies", "inference", "losses"},
    "metrics": RESULTS,
    "viz": RESULTS,
    "data": RESULTS | {"persistence.archives"},
    "persistence": set(),
    "prediction": BELOW_PREDICTION | {"estimators", "persistence"},
    "references": {"energies", "inference", "solvers"},
    "reports": BELOW_PREDICTION | {"estimators", "prediction"},
    "training": BELOW_PREDICTION | {"persistence", "prediction"},
    "estimators": BELOW_PREDICTION | {"persistence"},
    "compare": ABOVE,
    "cli": ABOVE | {"compare", "reports"},
}
EVERYONE = {
    "__version__",
    "checks",
    "extras",
    "files",
    "incoming",
    "memory",
    "shapes",
    "torch_internals",
    "verdicts",
}
# Classes that files hold say so where they stand.
EVERYONE |= {"persistence.stored", "protocol"}

# The modules of its package that a room within it may import, beside its own; other modules are free to.
FOR_SOLVERS = {"solvers.base", "solvers.gram", "solvers.interior_point"}
FOR_TENSORS = {"kernels.nvrtc", "kernels.operators"}
FOR_LOOPS = {"kernels.installed", "kernels.jit", "kernels.sums", "kernels.threads"}
RECORDS = {"inference.common.results", "inference.common"}
OF_LABEL_VECTORS = {"estimators.common", "estimators.explain", "estimators.machines", "estimators.networks"}
ROOMS = {
    "kernels.matrix_bp": FOR_LOOPS | FOR_TENSORS,
    "kernels.search": FOR_LOOPS | FOR_TENSORS | {"kernels.matrix_bp.compiled.rows"},
    "kernels.dual": FOR_LOOPS,
    "data.formats": {"data.dataset", "data.features", "data.splits", "data.tables"},
    "data.sequences": {"data.features", "data.formats", "data.seven_segment"},
    "data.tables": {"data.features"},
    "estimators.automatic": OF_LABEL_VECTORS | {"estimators.joint", "estimators.label_chains"},
    "estimators.chains": {"estimators.common"},
    "estimators.common": {"estimators.explain"},
    "estimators.explain": set(),
    "estimators.graphs": {"estimators.common"},
    "estimators.joint": {"estimators.common", "estimators.explain", "estimators.label_chains"},
    "estimators.label_chains": {"estimators.common", "estimators.explain", "estimators.networks"},
    "estimators.machines": {"estimators.common"},
    "estimators.networks": {"estimators.common"},
    "estimators.wrappers": OF_LABEL_VECTORS | {"estimators.automatic", "estimators.label_chains"},
    "inference.common": RECORDS,
    "inference.enumeration": RECORDS,
    "inference.expected": RECORDS | {"inference.sampling", "inference.search"},
    "inference.graphs": RECORDS | {"inference.trees"},
    "inference.messages": RECORDS
    | {"inference.graphs", "inference.routes", "inference.sampling", "inference.trees"},
    "inference.relaxations": RECORDS | {"inference.enumeration", "inference.graphs", "inference.trees"},
    "inference.routes": {"inference"},
    "inference.sampling": RECORDS | {"inference.enumeration"},
    "inference.search": RECORDS | {"inference.relaxations", "inference.sampling", "inference.under_rules"},
    "inference.trees": RECORDS,
    "inference.under_rules": RECORDS | {"inference.enumeration", "inference.relaxations"},
    "solvers.networks": FOR_SOLVERS,
    "solvers.structural": FOR_SOLVERS | {"solvers.networks.problems"},
    "solvers.machines": FOR_SOLVERS | {"solvers.networks.problems"},
    "solvers.chains": FOR_SOLVERS | {"solvers.networks.problems", "solvers.structural"},
    "training.callbacks": {"training"},
}
# Rooms within rooms: a plain reference imports no compiled loop, which it is the judge of.
PLAIN = "plain"

# The only places that may import each of these; whatever is not listed is of torch, numpy or Python itself.
LEAVES = {
    "llvmlite": {"kernels"},
    "networkx": {"energies.factor_views", "viz.dependencies"},
    "numba": {"kernels"},
    "triton": {"kernels"},
    "cvxpy": {"inference.relaxations.lp_layer", "references"},
    "cvxpylayers": {"inference.relaxations.lp_layer"},
    "clarabel": {"inference.relaxations.lp_relaxation"},
    "highspy": {"inference.relaxations.integer_program"},
    "pytoulbar2": {"inference.relaxations.cost_function_network", "inference.relaxations.toulbar2"},
    "threadpoolctl": {"kernels", "compare"},
    "scipy": {
        "cli.first_calls",
        "constraints.feasibility",
        "inference.graphs.cycles",
        "inference.graphs.programming",
        "solvers",
        "fitting",
        "calibration",
        "data",
        "prediction",
        "training",
        "estimators",
        "compare",
    },
    "sklearn": {"data", "fitting", "prediction", "training", "estimators", "compare"},
    "lightning": {"data", "training", "cli.jobs"},
    "joblib": {"estimators.common.spreading", "cli.compare"},
    "cloudpickle": {"estimators.common.spreading"},
    "distributed": {"cli.compare"},
    "PIL": {"data.tables.pretrained"},
    "huggingface_hub": {"data.tables.pretrained"},
    "platformdirs": {"data.tables.embedding_cache"},
    "pyarrow": {"cli.given_files", "data.formats.table", "prediction.parquet"},
    "sentence_transformers": {"data.tables.pretrained"},
    "timm": {"data.tables.pretrained"},
    "transformers": {"data.tables.pretrained"},
    "shap": {"estimators.explain.parts"},
    "xgboost": {"estimators.label_chains.boosting"},
    "torchmetrics": {"metrics", "training"},
    "matplotlib": {"viz"},
    "mlflow": {"training.callbacks.display"},
    "mlrl": {"compare.baselines"},
    "safetensors": {"persistence.archives"},
    "rich": {"estimators.common.calls", "compare", "cli"},
    "jinja2": {"reports.pages"},
    "hydra": {"persistence.trusted", "training.configured", "cli"},
    "onnx": {"models.onnx"},
    "onnxscript": {"models.onnx"},
    "omegaconf": {"persistence.trusted", "training.configured", "cli"},
    "yaml": {"persistence.trusted"},
    "jaxtyping": {"shapes"},
}

# The modules that a package of an index brings under another name, or besides.
BRINGS = {
    # The last comes with newer versions of joblib.
    "scikit-learn": {"sklearn", "joblib", "threadpoolctl", "cloudpickle"},
    "hydra-core": {"hydra", "omegaconf", "yaml"},
    "dask[distributed]": {"distributed"},
    "mlrl-boomer": {"mlrl"},
    "mlflow-skinny": {"mlflow"},
    "sentence-transformers": {"sentence_transformers"},
    "transformers": {"transformers", "huggingface_hub"},
    "huggingface-hub": {"huggingface_hub"},
    "pillow": {"PIL"},
    "xgboost-cpu": {"xgboost"},
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


@cache
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


def own_rooms(module: str) -> set[str]:
    """The modules of its own package that a module may import."""
    parts = module.split(".")
    room = ".".join(parts[:2])
    if room not in ROOMS:
        return {parts[0]}
    return ROOMS[room] | {room if PLAIN not in parts[2:] else f"{room}.{PLAIN}"}


def forbidden(module: str, source: str) -> set[str]:
    """The imports of ``module`` that no rule allows."""
    package = module.partition(".")[0]
    ours = EVERYONE | ARROWS[package] | own_rooms(module) if package in ARROWS else EVERYONE
    refused = set()
    for name in imports(source):
        top, _, below = name.partition(".")
        # Ours, of kernels.jit, knows when code has changed in another file.
        if name == "numba.njit":
            allowed = False
        elif top == "lmbm_torch":
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


def test_every_room_has_its_rule():
    rooms = {".".join(module.split(".")[:2]) for module, _ in modules() if module.count(".") > 1}
    assert rooms == set(ROOMS)


def arrows(sources: Mapping[str, str]) -> dict[str, set[str]]:
    """The modules that each module imports, wherever it does: in a function or for a type checker, too.

    Those that come along, ``lmbm_torch.energies`` with ``lmbm_torch.energies.directed``, are not counted.
    """
    found = {}
    for module, source in sources.items():
        names = [
            name.removeprefix("lmbm_torch.") for name in imports(source) if name.startswith("lmbm_torch.")
        ]
        targets = {name if name in sources else name.rpartition(".")[0] for name in names}
        found[module] = targets & set(sources) - {module}
    return found


def circle(sources: Mapping[str, str]) -> list[str]:
    """A circle of modules, each of which is imported by the next; empty if there is none."""
    try:
        TopologicalSorter(arrows(sources)).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def test_no_module_imports_itself_by_way_of_others():
    assert circle({module: path.read_text(encoding="utf-8") for module, path in modules()}) == []


@pytest.mark.parametrize(
    "late", ["{}", "def f():\n    {}", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    {}"]
)
def test_circles_are_seen(late):
    sources = {
        "data": "from lmbm_torch.data.one import One",
        "data.one": "from lmbm_torch.data import two",
        "data.two": "import lmbm_torch.data.three",
        "data.three": late.format("from lmbm_torch.data.one import One"),
    }
    assert set(circle(sources)) == {"data.one", "data.two", "data.three"}
    assert circle({**sources, "data.three": "import torch"}) == []


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("energies.directed", "from lmbm_torch.inference.enumeration import exact"),
        ("models.boltzmann", "from lmbm_torch import solvers"),
        ("kernels.threads", "import lmbm_torch.inference.common.results"),
        ("metrics.classes", "from lmbm_torch.inference.enumeration.exact import decode"),
        ("estimators.networks.sigmoid_belief", "from lmbm_torch.training import gradient"),
        ("estimators.networks.sigmoid_belief", "from lmbm_torch.prediction.predictor import Predictor"),
        ("training.runs", "from lmbm_torch.estimators import LMSBNClassifier"),
        ("checks", "from lmbm_torch.energies import DirectedEnergy"),
        ("inference.enumeration.exact", "def late():\n    import numba"),
        ("kernels.dual.machine", "from numba import njit"),
        ("training.gradient", "import matplotlib.pyplot as plt"),
        ("data.dataset", "import pandas"),
        ("solvers.smo", "from cvxpy import Variable"),
        ("inference.enumeration.exact", "from lmbm_torch.inference.enumeration.one_side import _rows"),
        ("inference.enumeration.one_side", "from lmbm_torch.inference.search import beam_search"),
        ("solvers.networks.problems", "from lmbm_torch.solvers.machines.problem import SharedProblem"),
        ("solvers.machines.problem", "from lmbm_torch.solvers.networks import dual_coordinate"),
        ("kernels.matrix_bp.plain", "from lmbm_torch.kernels.matrix_bp.compiled.groups import propagate"),
        ("data.formats.npz", "from lmbm_torch.data.sequences.records import SequenceData"),
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
heavy = {sorted(LEAVES)} + ["joblib", "pandas", "tensorboard"]
print([name for name in heavy if sys.modules.get(name) is not None])

import torch
from lmbm_torch.energies import DirectedEnergy
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.inference.sampling import ancestral
from lmbm_torch.inference.search import beam_search
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
        slow("data", ("data",)),
        slow("viz", ("viz",)),
        slow("train", ("training", "data")),
    ],
)
def test_an_extra_brings_what_its_packages_import(extra, packages):
    own = brought(extra)
    needed = [module for module, _ in modules() if module.partition(".")[0] in packages]
    if "lightning" not in own:
        needed = [module for module in needed if "datamodule" not in module]
    # torchmetrics looks whether matplotlib is there, which a module that cannot be found would not survive;
    # matplotlib brings Pillow.
    missing = sorted((set(LEAVES) | {"pandas"}) - own - {"matplotlib", "PIL"})
    script = f"""
import importlib, sys
for module in {missing}:
    sys.modules[module] = None
for module in {needed}:
    importlib.import_module("lmbm_torch." + module)
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
