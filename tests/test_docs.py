"""What the pages name is there: files by their paths, targets of links, and a line for each room."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.sources import ROOT, packages

DOCS = ROOT / "docs"
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted(DOCS.glob("*.md")),
    *sorted((ROOT / "research" / "docs").rglob("*.md")),
    ROOT / "research" / "README.md",
    *sorted((ROOT / "deploy").glob("*.md")),
]
HISTORY = {"appendix.md"}
"""Pages that tell what was measured once, also by modules that are elsewhere now."""
ROOMS = sorted({name.split(".")[0] for name in packages()} | {"tests", "docs", "research"})
PATH = re.compile(rf"(?<![\w/.-])(?:{'|'.join(ROOMS)})/[\w./-]*\.(?:py|md|yaml|j2|sh|png|json)\b")
FOLDER = re.compile(rf"`((?:{'|'.join(ROOMS)})/[\w./-]*/|(?:{'|'.join(ROOMS)})/)`")
NEW = re.compile(r"`([\w./-]+)`(?:, complete)?:\n\n```")
"""A file that the page gives, in the block that follows, for the reader to write."""
PLACEHOLDER = re.compile(r"/[A-Z_]+\b")
LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")

ANCHOR = re.compile(r"\]\(([^)#:\s]*\.md)?#([^)\s]+)\)")


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and the site make them."""
    heads = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def named(text: str) -> set[str]:
    """Every path of ours that a page names."""
    found = (set(PATH.findall(text)) | set(FOLDER.findall(text))) - set(NEW.findall(text))
    return {path for path in found if not PLACEHOLDER.search(path)}


def test_paths_are_seen() -> None:
    text = (
        "`shoal/methods/x/y.py`, see docs/a.md and `shoal/sweeps/`; not `runs/z.py`, `shoal/sweeps/SYSTEM/`, "
        "https://e.org/data/x.py "
        "or `shoal/methods/contract/n.py`, complete:\n\n```python"
    )
    assert named(text) == {"shoal/methods/x/y.py", "docs/a.md", "shoal/sweeps/"}


@pytest.mark.parametrize("page", [page for page in PAGES if page.name not in HISTORY], ids=lambda page: page.name)
def test_what_a_page_names_exists(page: Path) -> None:
    assert not [path for path in named(page.read_text()) if not (ROOT / path).exists()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    assert not [link for link in LINK.findall(page.read_text()) if not (page.parent / link).exists()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_anchors_of_links_are_there(page: Path) -> None:
    missing = []
    for name, anchor in ANCHOR.findall(page.read_text()):
        target = page.parent / name if name else page
        if target.name == "servers.md":
            target = ROOT / "deploy" / "README.md"  # which that page includes
        if anchor not in anchors(target):
            missing.append(f"{name}#{anchor}")
    assert not missing


def test_the_tree_names_every_room_and_every_folder_of_methods() -> None:
    page = DOCS / "architecture.md"
    tree = "\n".join(line for line in page.read_text().splitlines() if line.startswith("    "))
    folders = [name.split(".")[1] for name in packages() if name.startswith("methods.")]
    for folder in [*ROOMS, *folders]:
        assert re.search(rf"(?<![\w/]){folder}/", tree), folder
