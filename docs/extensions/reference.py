"""Write a page of the reference for every package, and name there what the package makes public.

A package lists names in ``__all__``, and modules in the bullets of its docstring; autosummary writes a page
for each of them.
"""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from pathlib import Path
from types import ModuleType

from sphinx.application import Sphinx

TASKS = {
    "Read tables, train, predict, save": ("estimators", "data", "metrics", "prediction", "persistence"),
    "Obey rules, prove answers, calibrate": ("constraints", "certificates", "calibration"),
    "Put a layer behind a neural network": ("nn", "models", "losses", "training"),
    "Infer without a model": ("energies", "inference"),
    "Report, compare, draw, work from the shell": ("reports", "compare", "viz", "cli"),
    "Read or change the algorithms": ("solvers", "fitting", "references"),
}
PACKAGES = tuple(name for names in TASKS.values() for name in names)


def listed_modules(package: ModuleType) -> list[str]:
    """The modules that the bullets of a package's docstring name, as they are imported."""
    bullets = re.findall(r"^\* .*(?:\n  .*)*", inspect.getdoc(package) or "", re.M)
    names = (name for text in bullets for name in re.findall(r"``([\w.]+)``", text))
    return [name for name in dict.fromkeys(names) if is_module(f"{package.__name__}.{name}")]


def is_module(name: str) -> bool:
    try:
        import_module(name)
    except ModuleNotFoundError as missing:
        if missing.name != name:
            raise
        return False
    return True


def listed_names(package: ModuleType) -> list[str]:
    """The classes and functions that a package exports; constants stand in its docstring."""
    exported = [name for name in getattr(package, "__all__", ()) if callable(getattr(package, name))]
    # Left out of ``__all__``, where ``import *`` would hide the user's own.
    exported += [name for name in ("load", "save") if inspect.isfunction(getattr(package, name, None))]
    return [*dict.fromkeys(exported)]


def summary(title: str, names: list[str]) -> str:
    if not names:
        return ""
    rows = "\n".join(f"   {name}" for name in names)
    heading = f"{title}\n{'-' * len(title)}\n\n"
    return f"{heading}.. autosummary::\n   :toctree: generated\n\n{rows}\n\n"


def page(name: str) -> str:
    package = import_module(f"lmbm_torch.{name}")
    heading = f"lmbm_torch.{name}\n{'=' * (len(name) + 11)}\n\n"
    described = f".. automodule:: lmbm_torch.{name}\n   :no-members:\n\n"
    names = summary("Classes and functions", listed_names(package))
    return heading + described + names + summary("Modules", listed_modules(package))


def first_line(name: str) -> str:
    return (inspect.getdoc(import_module(f"lmbm_torch.{name}")) or "").partition("\n")[0]


def table(names: tuple[str, ...]) -> str:
    rows = "\n".join(f"   * - :doc:`{name}`\n     - {first_line(name)}" for name in names)
    return f".. list-table::\n   :widths: 1 4\n\n{rows}\n\n"


def index() -> str:
    tables = "".join(f"{task}\n{'-' * len(task)}\n\n{table(names)}" for task, names in TASKS.items())
    names = "\n".join(f"   {name}" for name in PACKAGES)
    return (
        "Reference\n=========\n\nThe public packages by task. Shapes stand in the annotations: "
        '``Float[Tensor, "batch labels"]`` is a\ntensor of floating point numbers with a row for each '
        f"example and a column for each label.\n\n{tables}.. toctree::\n   :hidden:\n\n{names}\n"
    )


def write_pages(app: Sphinx, _config: object) -> None:
    """Before Sphinx looks for pages, and without touching those that are as they should be."""
    folder = Path(app.srcdir) / "reference"
    folder.mkdir(exist_ok=True)
    for name, text in {"index": index(), **{name: page(name) for name in PACKAGES}}.items():
        path = folder / f"{name}.rst"
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def skip_foreign(
    app: Sphinx, what: str, name: str, member: object, skip: bool, options: object
) -> bool | None:
    """Leave out what a class inherits from other libraries: their manuals tell it."""
    function = inspect.unwrap(getattr(member, "fget", None) or getattr(member, "__func__", None) or member)
    module = getattr(function, "__module__", None)
    return True if module and not module.startswith("lmbm_torch") else None


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("config-inited", write_pages)
    app.connect("autodoc-skip-member", skip_foreign)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
