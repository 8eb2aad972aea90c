"""Public modules and names are listed by their package, documented, and the only ones that others use.

A package lists names in ``__all__``, and modules in the bullets of its docstring; the configuration's targets
are public too.
"""

from __future__ import annotations

import ast
import json
import re
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest
from test_imports import ARROWS, ROOT, imports, is_private, modules

import lmbm_torch

REPOSITORY = ROOT.parent
SOURCES = {module: path.read_text(encoding="utf-8") for module, path in modules()}
# Whose modules are imported one by one, so that the list of them is complete.
BY_MODULE = ("inference", "solvers")


def listed_modules(package: str) -> set[str]:
    """The modules that a package's docstring names, as ``package.module``."""
    bullets = re.findall(r"^\* .*(?:\n  .*)*", ast.get_docstring(ast.parse(SOURCES[package])) or "", re.M)
    return {f"{package}.{name}" for bullet in bullets for name in re.findall(r"``([\w.]+)``", bullet)}


def exported(package: str) -> dict[str, str]:
    """The names that a package's ``__init__`` imports, and their modules."""
    return {
        name.rpartition(".")[2]: name.rpartition(".")[0].removeprefix("lmbm_torch.")
        for name in imports(SOURCES[package])
        if name.startswith(f"lmbm_torch.{package}.")
    }


def configured() -> set[str]:
    """The modules that the configuration names."""
    texts = [path.read_text(encoding="utf-8") for path in (REPOSITORY / "conf").rglob("*.yaml")]
    return {name for text in texts for name in re.findall(r"lmbm_torch\.([\w.]+)\.\w+", text)}


def texts() -> dict[str, str]:
    """All that may name a module of the library: code with its docstrings, configuration, pages."""
    folders = ("lmbm_torch", "conf", "scripts", "tests", "docs", "examples", "notebooks")
    paths = [path for folder in folders for path in (REPOSITORY / folder).rglob("*")]
    paths = [path for path in paths if path.suffix in (".py", ".yaml", ".md", ".ipynb", ".jinja")]
    paths += [REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md", "pyproject.toml")]
    own = Path(__file__).parent
    return {
        str(path.relative_to(REPOSITORY)): path.read_text(encoding="utf-8")
        for path in paths
        if own not in path.parents
    }


@cache
def defined(module: str) -> set[str]:
    """The names at the top of a module, imported ones and those under a condition too."""
    tops = ast.parse(SOURCES[module]).body
    body = [node for top in tops for node in (ast.walk(top) if isinstance(top, (ast.If, ast.Try)) else [top])]
    names = {name.rpartition(".")[2] for name in imports(SOURCES[module])}
    names |= {node.name for node in body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    assigned = [target for node in body if isinstance(node, ast.Assign) for target in node.targets]
    assigned += [node.target for node in body if isinstance(node, ast.AnnAssign)]
    names |= {each.id for target in assigned for each in ast.walk(target) if isinstance(each, ast.Name)}
    return names | {name.rpartition(".")[2] for name in SOURCES if name.rpartition(".")[0] == module}


def is_there(name: str) -> bool:
    """Whether ``package.module`` or ``package.module.name`` exists; what is below a name is not looked at."""
    # In an installed package; beside the package in a clone.
    if name == "conf":
        return (REPOSITORY / name).is_dir()
    if name in lmbm_torch.__all__:
        return True
    module = ""
    for part in name.split("."):
        below = f"{module}.{part}".removeprefix(".")
        if below not in SOURCES:
            # The names at the top are imported from their rooms on demand.
            return part in defined(module) or (not module and part in lmbm_torch.__all__)
        module = below
    return True


def is_public(name: str) -> bool:
    """Whether ``package.name``, ``package.module`` or ``package.module.name`` is."""
    package, _, below = name.partition(".")
    if not below:
        return True
    module = name if name in SOURCES else name.rpartition(".")[0]
    return (
        not is_private(below)
        and (module in listed_modules(package) | configured() | set(exported(package).values()))
    ) or below in exported(package)


def code_for_readers() -> dict[str, str]:
    """The code of the README, of each page of the manual, each example and each notebook."""
    pages = [
        REPOSITORY / "README.md",
        *(REPOSITORY / "docs").glob("*.md"),
        *(REPOSITORY / "docs/guide").glob("*.md"),
        REPOSITORY / "docs/tutorials/index.md",
    ]
    blocks = {
        path.name: re.findall(r"```python\n(.*?)```", path.read_text(encoding="utf-8"), re.S)
        for path in pages
    }
    found = {name: "\n".join(code) for name, code in blocks.items() if code}
    found |= {
        path.name: path.read_text(encoding="utf-8") for path in (REPOSITORY / "examples").glob("plot_*.py")
    }
    for path in sorted((REPOSITORY / "notebooks").glob("*.ipynb")):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
        found[path.name] = re.sub(r"^%.*$", "", code, flags=re.M)
    return found


@pytest.mark.parametrize("package", ARROWS)
def test_lists_are_of_what_there_is(package):
    assert listed_modules(package) <= {*SOURCES}
    body = ast.parse(SOURCES[package]).body
    assigned = [
        node for node in body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    ]
    listed = [name for node in assigned for name in ast.literal_eval(node.value)]
    assert sorted(listed) == sorted(exported(package))
    # Also of those that are imported at first use.
    found = import_module(f"lmbm_torch.{package}")
    assert [name for name in listed if not hasattr(found, name)] == []


def test_the_package_has_few_names_each_of_a_room():
    stub = ast.parse((ROOT / "__init__.pyi").read_text(encoding="utf-8")).body
    homes = {
        alias.name: node.module for node in stub if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert {*homes, "__version__"} == {*lmbm_torch.__all__}
    assert len(lmbm_torch.__all__) <= 45
    for name, room in homes.items():
        assert getattr(lmbm_torch, name) is getattr(import_module(str(room)), name)
    assert {*lmbm_torch.__all__} <= {*dir(lmbm_torch)}
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        lmbm_torch.nonsense  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("package", BY_MODULE)
def test_others_import_modules_that_are_listed(package):
    outside = [source for module, source in SOURCES.items() if module.partition(".")[0] != package]
    outside += [path.read_text(encoding="utf-8") for path in (REPOSITORY / "scripts").rglob("*.py")]
    used = {name.removeprefix("lmbm_torch.") for source in outside for name in imports(source)}
    assert {name for name in used if name.startswith(f"{package}.") and not is_public(name)} == set()


@pytest.mark.parametrize(("name", "code"), code_for_readers().items())
def test_readers_are_shown_public_names_alone(name, code):
    ours = {found.removeprefix("lmbm_torch.") for found in imports(code) if found.startswith("lmbm_torch.")}
    assert ours, name
    assert {found for found in ours if not is_public(found)} == set()


def test_modules_that_texts_name_are_there():
    named = {
        (path, name)
        for path, text in texts().items()
        for name in re.findall(r"(?<![\w/.])lmbm_torch\.((?:[a-z_]\w*\.)*(?!__)\w+)", text)
    }
    assert named
    assert {(path, name) for path, name in named if not is_there(name)} == set()


def test_names_that_code_imports_are_there():
    code = {path: text for path, text in texts().items() if path.endswith(".py")} | code_for_readers()
    named = {
        (path, name.removeprefix("lmbm_torch."))
        for path, text in code.items()
        for name in imports(text)
        if name.startswith("lmbm_torch.") and "__" not in name
    }
    assert named
    assert {(path, name) for path, name in named if not is_there(name)} == set()


@pytest.mark.parametrize("module", SOURCES)
def test_every_module_function_and_class_is_documented(module):
    tree = ast.parse(SOURCES[module])
    definitions = [node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
    named = [node for node in definitions if not node.name.startswith("_") and not is_overload(node)]
    assert ast.get_docstring(tree)
    assert [node.name for node in named if not ast.get_docstring(node)] == []


def is_overload(node: ast.FunctionDef | ast.ClassDef) -> bool:
    return any(isinstance(each, ast.Name) and each.id == "overload" for each in node.decorator_list)
