"""Count what the library in the wheel consists of: files, lines, public names, rooms and arrows between them.

python scripts/measure_size.py

A public name is one in the ``__all__`` of a package, or of a module without an underscore in its path; a name
that several list counts once. A room of a folder is a package or module directly in it, its own ``__init__``
included; an arrow is an import from one of its rooms by another, and an arrow back is one between rooms that
reach each other.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

PACKAGE = Path(__file__).parents[1] / "lmbm_torch"
# Tokens that are no code by themselves.
BLANK = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


def sources(package: Path = PACKAGE) -> dict[str, str]:
    """Return the text of every file of the library, by the name of its module."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[module] = path.read_text(encoding="utf-8")
    return found


def lines_of_code(source: str) -> int:
    """Return how many lines hold code: neither blank nor part of a comment or a docstring alone."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in BLANK:
            lines |= {*range(token.start[0], token.end[0] + 1)}
    for node in ast.walk(ast.parse(source)):
        # A string that nothing takes describes what stands around or above it.
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            lines -= {*range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    return len(lines)


def public_names(found: dict[str, str], *, packages_alone: bool = False) -> set[str]:
    """Return the public objects as ``module.name``, the module being where each is defined if that is seen.

    Args:
        found: module → source.
        packages_alone: only what packages list.
    """
    packages = {module.rpartition(".")[0] for module in found}
    names = set()
    for module, source in found.items():
        is_package = module in packages or module == PACKAGE.name
        if any(part.startswith("_") for part in module.split(".")) or (packages_alone and not is_package):
            continue
        body = ast.parse(source).body
        origins = {
            alias.asname or alias.name: f"{node.module}.{alias.name}"
            for node in ast.walk(ast.Module(body, []))
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        names |= {origins.get(name, f"{module}.{name}") for name in _listed(body)}
    # The package itself imports a room's names when somebody asks for them.
    of_rooms = {name.rpartition(".")[2] for name in names if name.count(".") > 1}
    return {name for name in names if name.count(".") > 1 or name.partition(".")[2] not in of_rooms}


def _listed(body: list[ast.stmt]) -> set[str]:
    """Return the names of ``__all__``; none of a module without one."""
    for node in body:
        if isinstance(node, ast.Assign) and "__all__" in {ast.unparse(target) for target in node.targets}:
            return {*ast.literal_eval(node.value)}
    return set()


def arrows(found: dict[str, str], folder: str) -> dict[str, set[str]]:
    """Return the rooms of a folder, and for each the others that it imports from, wherever it does.

    Args:
        found: module → source.
        folder: such as ``lmbm_torch.estimators``.
    """
    depth = folder.count(".") + 1
    rooms = {_room(name, depth): set[str]() for name in found if f"{name}.".startswith(f"{folder}.")}
    for module, source in found.items():
        if f"{module}.".startswith(f"{folder}."):
            own = _room(module, depth)
            for name in _imported(source):
                if name.startswith(f"{folder}."):
                    rooms[own] |= {name.split(".")[depth]} & rooms.keys() - {own}
    return rooms


def _room(module: str, depth: int) -> str:
    return (*module.split("."), "__init__")[depth]


def arrows_back(rooms: dict[str, set[str]]) -> int:
    """Return how many arrows join rooms that reach each other."""
    reached = {room: _reached(rooms, room) for room in rooms}
    return sum(room in reached[other] for room, others in rooms.items() for other in others)


def _reached(rooms: dict[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    left = [start]
    while left:
        new = rooms[left.pop()] - seen
        seen |= new
        left += new
    return seen


def _imported(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def main() -> None:
    """Print the whole library's counts, and those of each folder."""
    found, console = sources(), Console()
    own = public_names(found, packages_alone=True)
    console.print(
        f"{len(found)} files, {sum(text.count(chr(10)) for text in found.values())} lines, "
        f"{sum(map(lines_of_code, found.values()))} of code; {len(own)} public names in packages, "
        f"{len(public_names(found) - own)} more in modules",
        highlight=False,
    )
    table = Table("folder", "files", "lines", "of code", "rooms", "arrows", "back")
    for folder in sorted({".".join(name.split(".")[:2]) for name in found if name.count(".") > 1}):
        texts = [text for name, text in found.items() if f"{name}.".startswith(f"{folder}.")]
        rooms = arrows(found, folder)
        counts = len(texts), sum(text.count("\n") for text in texts), sum(map(lines_of_code, texts))
        counts += len(rooms), sum(map(len, rooms.values())), arrows_back(rooms)
        table.add_row(folder.partition(".")[2], *map(str, counts))
    console.print(table)


if __name__ == "__main__":
    main()
