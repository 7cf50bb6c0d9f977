"""Instructions for a prepared set whose files are missing or damaged."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

OWN = "own"
"""The folder of the store with the sets of the user's own."""
EMBEDDED = "embedded"
"""Entry of a manifest's `extra` with the images and the encoder that a set was made of."""
SITES = "sites"
"""Entry of a manifest's `extra` with the sites at which the samples of a set lie (`shoal.data.sets.elsewhere`)."""
NOTHING: Mapping[str, Any] = MappingProxyType({})


def is_own(folder: Path, extra: Mapping[str, Any] = NOTHING) -> bool:
    """Return whether the set in a folder is the user's own, which Shoal cannot prepare again.

    Args:
        folder: of the set.
        extra: of its manifest, if that can be read; sets added by Shoal 0.1.0 lie among the prepared ones.
    """
    return folder.parent.name == OWN or "clients" in extra or EMBEDDED in extra


def remedy(folder: Path, extra: Mapping[str, Any] = NOTHING) -> str:
    """Return an instruction that restores the set; for the arguments see `is_own`."""
    name = folder.name
    if not is_own(folder, extra):
        return f"run `shoal data prepare {name} --force`"
    if origin := extra.get(EMBEDDED):
        return f"run `shoal data embed {origin['images']} --encoder {origin['encoder']['name']} --name {name} --force`"
    again = f"add all of it again with `shoal data add FOLDER --name {name} --force`"
    pointer = folder.parent.parent / OWN / f"{name}.dvc"
    if not pointer.exists():
        return again
    # DVC trusts a file with the size and time that it remembers; it checks all files of a removed folder.
    damaged = shlex.quote(str(pointer.with_suffix("")))
    kept = shlex.quote(str(pointer))
    return f"run `rm -r {damaged}`, then `dvc pull {kept}`; or {again}"
