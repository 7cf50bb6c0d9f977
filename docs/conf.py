"""Sphinx's settings: Markdown pages, the pages that `made_from_code.py` makes, and nothing from the net."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

project = "Shoal"
author = "the authors of Shoal"
extensions = ["myst_parser", "mathml"]
myst_enable_extensions = ["dollarmath"]
html_math_renderer = "mathml"
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
exclude_patterns = ["_build", "notebooks"]
html_theme = "furo"
html_title = "Shoal"
html_copy_source = False
html_show_sphinx = False
myst_heading_anchors = 4


def make_pages(app: Any) -> None:
    """Write the pages that are made from the code, and copy those of results, before Sphinx looks for sources."""
    from made_from_code import write_pages

    write_pages(HERE / "made", HERE)
    shutil.copytree(HERE.parent / "research" / "docs", HERE / "made" / "research")


def link_copies(app: Any, page: str, source: list[str]) -> None:
    """Let links to pages of results, and back from them, lead to the copies."""
    text = re.sub(r"\]\((\.\./)+research/docs/", "](/made/research/", source[0])
    if page.startswith("made/research/"):
        text = re.sub(r"\]\((\.\./)+docs/", "](/", text)
        text = text.replace("](../../shoal_research/", "](../../../../research/shoal_research/")
    source[0] = text


def setup(app: Any) -> None:
    app.connect("builder-inited", make_pages, priority=0)
    app.connect("source-read", link_copies)
