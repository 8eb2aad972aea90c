"""The Python in the README and in the manual runs as it is printed, page by page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs/guide").glob("*.md")),
    ROOT / "docs/tutorials/index.md",
]
# The server needs an extra, and is tested beside the predictor that it serves.
BLOCKS = {
    str(path.relative_to(ROOT)): blocks
    for path in PAGES
    if path.name != "serving.md"
    if (blocks := re.findall(r"```python\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL))
}
# The output that a page documents: (page, number of the block before it) → text.
OUTPUTS = {
    (page, number): match[1]
    for page, blocks in BLOCKS.items()
    for number, block in enumerate(blocks)
    if (text := (ROOT / page).read_text(encoding="utf-8").partition(block)[2])
    if (match := re.match(r"```\s+```text\n(.*?)```", text, re.DOTALL))
}


def test_pages_have_examples() -> None:
    assert {"README.md", "docs/start.md", "docs/certificates.md", "docs/guide/rules.md"} <= {*BLOCKS}
    assert sum(map(len, BLOCKS.values())) >= 10
    assert OUTPUTS


@pytest.mark.parametrize("page", BLOCKS)
def test_the_code_of_a_page_runs_and_prints_what_the_page_shows(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    variables: dict[str, object] = {}
    for number, block in enumerate(BLOCKS[page]):
        exec(compile(block, f"{page}, block {number}", "exec"), variables)
        printed = capsys.readouterr().out
        assert OUTPUTS.get((page, number), printed) == printed


@pytest.mark.parametrize("block", BLOCKS["README.md"])
def test_the_code_of_the_readme_prints(block: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(block, "README.md", "exec"), {})
    assert capsys.readouterr().out
