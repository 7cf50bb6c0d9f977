"""Names from outside that become a part of a path."""

from __future__ import annotations

MAX_CHARACTERS = 120
"""The longest name: with what is added to it, it stays below a file system's limit of 255 bytes."""


def name_fault(name: str) -> str | None:
    """Return why a name cannot be a part of a path, as the end of a sentence; None where it can.

    >>> name_fault("../../elsewhere")
    "holds '/': expected a name, and no path"
    >>> name_fault("shoal") is None
    True
    """
    for character in ("/", "\\"):
        if character in name:
            return f"holds {character!r}: expected a name, and no path"
    if not name.strip() or name != name.strip():
        return "is empty, or begins or ends with a space"
    if name.startswith("."):
        return "begins with a dot: such names are of hidden files and folders"
    if not name.isprintable():
        return "holds a character that cannot be printed"
    if len(name.encode()) > MAX_CHARACTERS:
        return f"has more than {MAX_CHARACTERS} characters"
    return None
