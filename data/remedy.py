"""What to do about a prepared set whose files are missing or damaged."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

OWN = "own"
"""The folder of the store with the sets of the user's own."""
NOTHING: Mapping[str, Any] = MappingProxyType({})


def is_own(folder: Path, extra: Mapping[str, Any] = NOTHING) -> bool:
    """Whether the set in a folder is the user's own, which Shoal cannot prepare again.

    Args:
        folder: the set's.
        extra: of its manifest, where that can be read; sets added by Shoal 0.1.0 lie among those that were prepared.
    """
    return folder.parent.name == OWN or "clients" in extra


def remedy(folder: Path, extra: Mapping[str, Any] = NOTHING) -> str:
    """An instruction that leads to a whole set; arguments as of `is_own`."""
    name = folder.name
    if not is_own(folder, extra):
        return f"run `shoal data prepare {name} --force`"
    again = f"add all of it again with `shoal data add FOLDER --name {name} --force`"
    pointer = folder.parent.parent / OWN / f"{name}.dvc"
    if not pointer.exists():
        return again
    # DVC believes a file whose size and time are as it remembers them; of a folder that is gone it looks at all.
    damaged = shlex.quote(str(pointer.with_suffix("")))
    kept = shlex.quote(str(pointer))
    return f"run `rm -r {damaged}`, then `dvc pull {kept}`; or {again}"
