"""The names of copies of a run's files, on hosts and in stores that do not see the run's folder."""

from __future__ import annotations

from collections.abc import Iterable

from shoal.engine.store.round_paths import SERVER, client_folder

STATES = "rounds"
"""The folder of copies of server states, of all rounds."""


def server_file(round: int) -> str:
    """Return the file of the server state of a round, relative to the run's folder."""
    return f"rounds/{round:04d}/{SERVER}"


def copy_of(path: str, sha256: str) -> str:
    """Return the path of a copy of a run's file, relative to the folder of copies; its name has the digest.

    `sender_of` can read the name too. All server states share the folder `STATES`.

    Args:
        path: relative to the run's folder.
        sha256: hex digest of its bytes.
    """
    folder, _, name = path.rpartition("/")
    stem, _, suffix = name.rpartition(".")
    if folder.startswith("rounds/"):
        folder = STATES
    return f"{folder}/{stem}-{sha256}.{suffix}".removeprefix("/")


def folders_of_clients(clients: Iterable[int]) -> set[str]:
    """Return the folders of the memories and inboxes of some clients, relative to the run's folder."""
    return {folder for c in clients for folder in (client_folder(c), f"{client_folder(c)}/inbox")}
