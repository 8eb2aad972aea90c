"""Values of the configuration: those that differ from what their classes and functions have say why."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest
import yaml
from hydra.utils import get_object

from lmbm_torch.cli.configuration import CONFIGURATION

TARGET = "_target_"
OF_HYDRA = {TARGET, "_partial_", "_args_", "_convert_", "defaults"}
FILES = sorted(Path(CONFIGURATION).rglob("*.yaml"))
# What a run is told once, by the keys that everything reads it by.
TOP = {
    f"${{{name}}}": value
    for name, value in yaml.safe_load((Path(CONFIGURATION) / "train.yaml").read_text()).items()
    if not isinstance(value, dict | list)
}


def scalar(node: yaml.Node) -> Any:
    """What YAML reads, numbers such as 1e-3 as Hydra reads them, and the top's keys as the top has them."""
    value = yaml.SafeLoader("").construct_object(node, deep=True)
    value = TOP.get(value, value) if isinstance(value, str) else value
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def targets(node: yaml.Node, inherited: dict[str, str]) -> Iterator[tuple[str, yaml.MappingNode]]:
    """Every mapping that says what it makes, with the name of that."""
    if isinstance(node, yaml.SequenceNode):
        for each in node.value:
            yield from targets(each, {})
    if isinstance(node, yaml.MappingNode):
        keys = {key.value: value for key, value in node.value}
        target = keys[TARGET].value if TARGET in keys else inherited.get("")
        if target is not None:
            yield target, node
        for name, value in keys.items():
            first = {path: path.partition(".")[0] for path in inherited}
            below = {
                path.partition(".")[2]: inherited[path] for path in inherited if path and first[path] == name
            }
            yield from targets(value, below)


def of_defaults(path: Path, document: dict[str, Any]) -> dict[str, str]:
    """Targets that a file takes over from those in its list of defaults, by their places."""
    found: dict[str, str] = {}
    for each in document.get("defaults") or []:
        if not isinstance(each, str) or each == "_self_":
            continue
        name, _, place = each.partition("@")
        other = path.parent / f"{name.lstrip('/')}.yaml"
        if not other.is_file():
            continue
        content = yaml.safe_load(other.read_text()) or {}
        for below, target in {**of_defaults(other, content), **own(content)}.items():
            found[".".join(filter(None, (place, below)))] = target
    return found


def own(document: Any, place: str = "") -> dict[str, str]:
    if not isinstance(document, dict):
        return {}
    found = {place: document[TARGET]} if TARGET in document else {}
    for name, value in document.items():
        found |= own(value, ".".join(filter(None, (place, str(name)))))
    return found


def unexplained(path: Path) -> list[str]:
    """The values of a file that differ from their defaults without a comment on their line or that above."""
    text = path.read_text(encoding="utf-8")
    root, document, lines = yaml.compose(text), yaml.safe_load(text), text.splitlines()
    if not isinstance(document, dict):
        return []
    found = []
    for target, node in targets(root, of_defaults(path, document)):
        made = get_object(target)
        parameters = inspect.signature(made).parameters
        for key, value in node.value:
            if key.value in OF_HYDRA or key.value not in parameters:
                continue
            default = parameters[key.value].default
            if default is inspect.Parameter.empty or isinstance(value, yaml.MappingNode):
                continue
            line = key.start_mark.line
            is_said = "#" in lines[line] or lines[line - 1].lstrip().startswith("#")
            given = scalar(value)
            # Folders are the user's, and so is what is yet to be said.
            is_users = isinstance(given, str) and (given.startswith("${paths.") or given == "???")
            is_same = given == default and isinstance(given, bool) == isinstance(default, bool)
            is_same |= is_users
            if not is_same and not is_said:
                found.append(f"{key.value}: {given!r}, {target} has {default!r}")
    return found


@pytest.mark.parametrize("path", FILES, ids=[str(path.relative_to(CONFIGURATION)) for path in FILES])
def test_a_value_that_is_not_the_default_says_why(path):
    assert unexplained(path) == []


@pytest.mark.parametrize(
    ("line", "is_refused"),
    [
        ("coupling_penalty: 1.0", True),
        ("# The paper's.\ncoupling_penalty: 1.0", False),
        ("coupling_penalty: ${coupling_penalty}", True),
        ("coupling_penalty: scale", False),
        ("tol: 1e-3", False),
        ("tol: 1e-2", True),
        ("calibrate: true", True),
        ("max_iter: 1000", False),
    ],
)
def test_overrides_in_silence_are_seen(tmp_path, line, is_refused):
    base = "_target_: lmbm_torch.estimators.LMBMClassifier\n"
    (tmp_path / "plain.yaml").write_text(f"{base}{line}\n")
    (tmp_path / "below.yaml").write_text(f"defaults:\n  - machine@base\nbase:\n{indent(line, '  ')}\n")
    (tmp_path / "machine.yaml").write_text(base)
    for name in ("plain", "below"):
        assert bool(unexplained(tmp_path / f"{name}.yaml")) == is_refused
