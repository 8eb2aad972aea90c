"""Pages of the notebooks with the stored outputs; the build of the site runs no notebook."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import nbformat
from sphinx.application import Sphinx

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"


def fenced(text: str, language: str) -> str:
    """Return a block of code."""
    return f"```{language}\n{text.rstrip()}\n```"


def page_of(path: Path, folder: Path) -> str:
    """Return a notebook as Markdown, and write the figures to a folder."""
    blocks, figures = [], 0
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "markdown":
            text = cell.source.replace("](../docs/", "](../")
            blocks.append(re.sub(r"\]\(([\w-]+)\.ipynb\)", r"](\1.md)", text))
            continue
        blocks.append(fenced(cell.source.removeprefix("%matplotlib inline\n"), "python"))
        for output in cell.outputs:
            data = output.get("data", {})
            if "image/png" in data:
                figures += 1
                name = f"{path.stem}_{figures}.png"
                (folder / name).write_bytes(base64.b64decode(data["image/png"]))
                blocks.append(f"![Figure of the code above]({name})")
            else:
                blocks.append(fenced(output.get("text") or data.get("text/plain", ""), "text"))
    return "\n\n".join(blocks) + "\n"


def write_pages(app: Sphinx) -> None:
    """Write a page for each notebook before Sphinx looks for pages."""
    folder = Path(app.srcdir) / "tutorials"
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        page, text = folder / f"{path.stem}.md", page_of(path, folder)
        # An unchanged page is not read again.
        if not page.exists() or page.read_text(encoding="utf-8") != text:
            page.write_text(text, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("builder-inited", write_pages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
