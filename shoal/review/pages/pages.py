"""HTML pages from templates: self-contained, with embedded images."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader

from shoal.engine.store.codec import write_atomic, writing


def write_page(path: Path, template: str, **parts: Any) -> Path:
    """Write an HTML page.

    Args:
        path: the file.
        template: its name in review/pages/templates.
        parts: the values that the template shows.

    Raises:
        StoreError: it cannot be written.
    """
    # Names of files, labels and settings are text, not HTML; the suffix .j2 alone would not switch escaping on.
    environment = Environment(
        loader=PackageLoader("shoal.review.pages"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, environment.get_template(template).render(**parts).encode(), sync=False)
    return path


def in_base64(content: bytes) -> str:
    """Return bytes in base64, as a page embeds images."""
    return base64.b64encode(content).decode()
