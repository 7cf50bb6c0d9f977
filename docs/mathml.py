"""Equations of the site as MathML, which browsers draw by themselves: no script and nothing from the net."""

from __future__ import annotations

from typing import Any

from docutils import nodes
from latex2mathml.converter import convert


def visit_inline(writer: Any, node: nodes.math) -> None:
    """An equation within a line."""
    writer.body.append(convert(node.astext()))
    raise nodes.SkipNode


def visit_display(writer: Any, node: nodes.math_block) -> None:
    """An equation on a line of its own, which scrolls by itself where the page is narrow."""
    drawn = convert(node.astext(), display="block")
    writer.body.append(f'<div class="math" style="overflow-x: auto; overflow-y: hidden; margin: 0.8em 0">{drawn}</div>')
    raise nodes.SkipNode


def setup(app: Any) -> dict[str, bool]:
    """Sphinx asks for this."""
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_display, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
