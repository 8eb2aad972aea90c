"""Files are written by :mod:`lmbm_torch.files` alone, so that a killed process leaves no half of one."""

from __future__ import annotations

import ast

import pytest
from test_imports import ROOT

SCRIPTS = ROOT.parent / "scripts"
# Functions and methods that write a file, unless they write to a stream, which is called so.
WRITERS = {
    *("write_text", "write_bytes", "touch", "tofile", "open_memmap", "copyfile", "savetxt", "savez"),
    *("savez_compressed", "save_file", "savefig", "to_csv", "to_json"),
}
WRITERS_OF_MODULES = {"torch.save", "np.save", "OmegaConf.save", "json.dump", "pickle.dump", "nbformat.write"}
OURS = "write_text"
# The other writers of files, and why.
EXCEPT = {
    "lmbm_torch/files.py": "the one implementation",
    "lmbm_torch/data/mapped.py": "larger than memory; the description is written last, by write_text",
    "scripts/bench/grid_messages.py": "hands arrays to another process, in a temporary folder",
    "scripts/bench/matrix_bp_peers.py": "hands arrays to another process, in a temporary folder",
    "scripts/bench/pgmax_peer.py": "that process, which has no lmbm_torch",
    "scripts/bench/measuring.py": "/proc/self/clear_refs is no file",
    "scripts/fuzz": "damaged files in a temporary folder, many a second",
}
SOURCES = {
    str(path.relative_to(ROOT.parent)): path.read_text(encoding="utf-8")
    for path in sorted([*ROOT.rglob("*.py"), *SCRIPTS.rglob("*.py")])
}


def writes(source: str) -> list[str]:
    """The calls of a module that write a file."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        name = called.rpartition(".")[2]
        arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
        to_stream = any(isinstance(each, ast.Name) and each.id == "stream" for each in arguments)
        is_writer = called != OURS and (name in WRITERS or called in WRITERS_OF_MODULES)
        if (is_writer and not to_stream) or (name == "open" and _is_to_write(arguments)):
            found.append(ast.unparse(node))
    return found


def _is_to_write(arguments: list[ast.expr]) -> bool:
    """Whether one of the arguments of ``open`` is a mode of writing, or a ``mode`` of the caller."""
    if any(isinstance(each, ast.Name) and each.id == "mode" for each in arguments):
        return True
    modes = [each.value for each in arguments if isinstance(each, ast.Constant)]
    return any(
        isinstance(mode, str) and set(mode) <= set("rwxabt+") and set(mode) & set("wxa+") for mode in modes
    )


def is_excepted(path: str) -> bool:
    return any(path == place or path.startswith(f"{place}/") for place in EXCEPT)


@pytest.mark.parametrize("path", [path for path in SOURCES if not is_excepted(path)])
def test_files_are_written_by_one_function(path):
    assert writes(SOURCES[path]) == []


@pytest.mark.parametrize("place", EXCEPT)
def test_exceptions_are_needed(place):
    assert any(writes(source) for path, source in SOURCES.items() if path == place or path.startswith(place))


@pytest.mark.parametrize(
    "line",
    [
        "path.write_text('a')",
        "path.open(mode)",
        "path.write_bytes(b'a')",
        "open(path, 'w')",
        "path.open('xb')",
        "gzip.open(path, mode='at')",
        "figure.savefig(path, dpi=120)",
        "np.savez(path, x=x)",
        "torch.save(weights, path)",
        "frame.to_csv(path)",
    ],
)
def test_writing_is_seen(line):
    assert writes(line)


@pytest.mark.parametrize(
    "line", ["open(path)", "path.open('rb')", "write_text(path, 'a')", "torch.save(weights, stream)"]
)
def test_reading_and_our_own_writing_are_not(line):
    assert not writes(line)
