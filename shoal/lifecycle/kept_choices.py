"""Choices of a method and of a number of clusters, kept in the store.

A choice is a file by the digest of the settings that asked for it, so that the same settings choose once.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from shoal.core.errors import DataError
from shoal.core.records import BadRecord, record_from_json, record_to_json
from shoal.data.sets.prepare import is_built_in, resolve, store_folder
from shoal.data.sets.prepared import read_manifest
from shoal.engine.settings import places
from shoal.engine.settings.run_settings import Settings
from shoal.engine.store.choice import Choice
from shoal.engine.store.codec import StoreError, read_sealed, write_sealed
from shoal.engine.store.method_choice import MethodChoice

FOLDER = "choices"
"""The folder of choices in the store."""
PREFIXES = {Choice: "", MethodChoice: "method-"}
"""The prefix of the files of each kind of choice."""
Kind = TypeVar("Kind", Choice, MethodChoice)


def choice_file(kind: type[Kind], settings: Settings) -> Path:
    """Return the file that holds the choice for these settings, once it is made."""
    return places.store() / FOLDER / f"{PREFIXES[kind]}{settings.digest()[:16]}.json"


def known_choice(kind: type[Kind], settings: Settings) -> Kind | None:
    """Return the choice that was made for these settings before; None where there is none for this data set."""
    path = choice_file(kind, settings)
    if not path.exists():
        return None
    try:
        found = record_from_json(kind, read_sealed(path))
        name = settings.data.name
        if is_built_in(name):
            name = resolve(name, settings.data.options)[2]
        same_data = found.data_digest == read_manifest(store_folder(places.store(), name)).digest
    except (StoreError, BadRecord, DataError):
        return None  # it is chosen again
    return found if same_data and found.settings_sha256 == settings.digest() else None


def write_choice(settings: Settings, choice: Kind) -> None:
    """Keep the choice for these settings.

    Raises:
        StoreError: it cannot be written.
    """
    path = choice_file(type(choice), settings)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_sealed(path, record_to_json(choice))
