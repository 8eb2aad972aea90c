"""Check the built site's links, and look at it in a browser: python scripts/check_site.py docs/_build/html

Links to other pages, files and headings must lead somewhere; links elsewhere are listed, not fetched. With
--browser, a path of a Chromium that playwright drives (pip install playwright), some pages of every kind are
opened at the width of a phone and of a desk: nothing may be wider than the window but what scrolls by itself.
Their pictures are kept in --pictures.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

WIDTHS = {"phone": 390, "desk": 1280}
HEIGHT = 1600
# Pages of every kind; those of the reference are alike.
LOOKED_AT = (
    "index.html",
    "start.html",
    "guide/choosing.html",
    "guide/from_others.html",
    "guide/devices.html",
    "certificates.html",
    "mathematics.html",
    "papers.html",
    "bibliography.html",
    "glossary.html",
    "benchmarks.html",
    "gallery/index.html",
    "gallery/plot_02_joint_or_alone.html",
    "reference/index.html",
    "reference/inference.html",
    "reference/generated/lmbm_torch.energies.DirectedEnergy.html",
    "reference/generated/lmbm_torch.estimators.LMSBNClassifier.html",
)


# What sticks out of the window, and of no box that scrolls: its tag and the start of its text.
STICKING_OUT = """() => {
    const scrolls = node => ["auto", "scroll"].includes(getComputedStyle(node).overflowX);
    const isInBox = node => {
        for (let box = node; box && box.tagName !== "ARTICLE"; box = box.parentElement)
            if (scrolls(box)) return true;
        return false;
    };
    return [...document.querySelectorAll("article *")]
        .filter(node => node.getBoundingClientRect().right > window.innerWidth + 1 && !isInBox(node))
        .map(node => node.tagName + " " + (node.textContent || "").trim().slice(0, 40));
}"""


class Page(HTMLParser):
    """The links of a page, and its anchors."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.anchors |= {name for key in ("id", "name") if (name := values.get(key))}
        found = (values.get("href"), values.get("src"))
        self.links += [link for link in found if link]


def read(folder: Path) -> dict[Path, Page]:
    # What the theme brings along is no page.
    pages = sorted(path for path in folder.rglob("*.html") if "_static" not in path.parts)
    return {path.resolve(): Page(path.read_text(encoding="utf-8")) for path in pages}


def broken(pages: dict[Path, Page]) -> list[str]:
    """Return each link that leads to no file, or to no place on its page."""
    found = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            anchor = unquote(parts.fragment)
            if not target.exists():
                found.append(f"{path.name}: {link}: no such file")
            elif anchor and target in pages and anchor not in pages[target].anchors:
                found.append(f"{path.name}: {link}: no such place")
    return found


def external(pages: Iterable[Page]) -> list[str]:
    """Return the addresses elsewhere, each once."""
    return sorted({link for page in pages for link in page.links if urlsplit(link).netloc})


def too_wide(folder: Path, browser: str, pictures: Path | None) -> list[str]:
    """Return each page that has to be scrolled sideways, by the width of the window."""
    # Needed here alone, and by no test where there is no browser.
    from playwright.sync_api import sync_playwright  # pyright: ignore[reportMissingImports]

    found = []
    with sync_playwright() as play:
        window = play.chromium.launch(executable_path=browser, args=["--no-sandbox", "--disable-gpu"])
        for name, width in WIDTHS.items():
            tab = window.new_page(viewport={"width": width, "height": HEIGHT})
            # Fonts and formulas of other hosts do not decide on the layout.
            tab.route(
                "**/*",
                lambda route: route.abort() if route.request.url.startswith("http") else route.continue_(),
            )
            for page in LOOKED_AT:
                tab.goto((folder / page).resolve().as_uri(), wait_until="load")
                wide = tab.evaluate("document.documentElement.scrollWidth")
                if wide > width:
                    found.append(f"{page}: {wide} pixels wide in a window of {width}")
                found += [
                    f"{page}: {what!r} sticks out of a {name}" for what in tab.evaluate(STICKING_OUT)[:1]
                ]
                if pictures is not None:
                    pictures.mkdir(parents=True, exist_ok=True)
                    tab.screenshot(path=pictures / f"{page.replace('/', '_')}_{name}.png")
        window.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="where the built pages are")
    parser.add_argument("--browser", help="path of a Chromium")
    parser.add_argument("--pictures", type=Path, help="folder for what the browser shows")
    asked = parser.parse_args()
    pages = read(asked.folder)
    if not pages:
        sys.exit(f"no pages in {asked.folder}: make site builds them")
    wrong = broken(pages)
    if asked.browser:
        wrong += too_wide(asked.folder, asked.browser, asked.pictures)
    print("\n".join(["links to elsewhere, not fetched:", *external(pages.values())]))
    if wrong:
        sys.exit("\n".join(wrong))
    print(f"{len(pages)} pages, every link within the site leads somewhere")


if __name__ == "__main__":
    main()
