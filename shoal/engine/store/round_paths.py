"""Where the files of a round lie in the folder of a run.

rounds/0007/manifest.json, server.safetensors, links.json    the checkpoint of round 7 (rounds/.0007.tmp until whole)
rounds/0007/judged.safetensors                               what stood in for tensors of the state when it was judged
work/0007/update-3.safetensors, memory-3.safetensors,        what client 3 answered in round 7; its work is complete
work/0007/peer-3-5.safetensors, done-3.json                  once done-3.json is there
work/0007/sum-3.safetensors                                  instead of updates, the sum of a group that begins with 3
memory/0/3/0007.safetensors                                  client 3's private memory after round 7
memory/0/5/inbox/0007-3.safetensors                          what client 3 sent to client 5 in round 7
memory/12/12345/0007.safetensors                             of client 12345: a thousand clients share a folder
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

MANIFEST = "manifest.json"
SERVER = "server.safetensors"
LINKS = "links.json"
JUDGED = "judged.safetensors"
STATES = "rounds"
"""Where copies of server states lie, of all rounds in one folder."""
SHARD = 1000
"""How many clients share a folder, by their numbers."""


@dataclass(frozen=True)
class RoundPaths:
    """The paths of one round.

    Args:
        run: the run's folder.
        round: number of the round; 0 is the state before the first.
    """

    run: Path
    round: int

    @property
    def checkpoint(self) -> Path:
        """The folder of the round's checkpoint."""
        return self.run / "rounds" / f"{self.round:04d}"

    @property
    def scratch(self) -> Path:
        """The checkpoint's folder until it is whole."""
        return self.run / "rounds" / f".{self.round:04d}.tmp"

    @property
    def server(self) -> Path:
        """The server state in the checkpoint."""
        return self.checkpoint / SERVER

    @property
    def judged(self) -> Path:
        """Tensors in place of the server's where the state was judged; of states with other statistics then alone."""
        return self.checkpoint / JUDGED

    @property
    def manifest(self) -> Path:
        """The manifest in the checkpoint."""
        return self.checkpoint / MANIFEST

    @property
    def links(self) -> Path:
        """Which files of memory and inbox belong to the checkpoint."""
        return self.checkpoint / LINKS

    @cached_property
    def work(self) -> Path:
        """The folder of what the clients of the round answered."""
        return self.run / "work" / f"{self.round:04d}"

    def done(self, client: int) -> Path:
        """Return the done-file of a client."""
        return self.work / f"done-{client}.json"

    def failed(self, client: int) -> Path:
        """Return the file that a worker leaves when a client has failed; its answer says what was wrong."""
        return self.work / f"failed-{client}"

    def seen(self, part: int, *, averaged: bool) -> Path:
        """Return the file of a worker's predictions on a part of all samples, with averaged statistics or without."""
        return self.work / f"seen-{'averaged-' if averaged else ''}{part}.safetensors"

    def memory(self, client: int) -> str:
        """Return the lasting file of a client's memory, relative to the run's folder."""
        return f"{client_folder(client)}/{self.round:04d}.safetensors"

    def inbox(self, receiver: int, sender: int) -> str:
        """Return the lasting file of a message between two clients, relative to the run's folder."""
        return f"{client_folder(receiver)}/inbox/{self.round:04d}-{sender}.safetensors"


def client_folder(client: int) -> str:
    """Return where a client's memory and messages lie, relative to the run's folder.

    Some file systems allow a folder some tens of thousands of folders, and list a million of them for minutes.
    """
    return f"memory/{client // SHARD}/{client}"


def update_file(client: int) -> str:
    """Return the name, under `RoundPaths.work`, of a client's message to the server."""
    return f"update-{client}.safetensors"


def sum_file(client: int) -> str:
    """Return the name, under `RoundPaths.work`, of the sum of a group's messages; the client has its lowest id."""
    return f"sum-{client}.safetensors"


def memory_file(client: int) -> str:
    """Return the name, under `RoundPaths.work`, of a client's new private memory."""
    return f"memory-{client}.safetensors"


def peer_file(sender: int, receiver: int) -> str:
    """Return the name, under `RoundPaths.work`, of a client's message to another."""
    return f"peer-{sender}-{receiver}.safetensors"


def round_of(path: str | Path) -> int:
    """Return the round that a file under memory/ was written in."""
    return int(Path(path).stem.split("-")[0])


def sender_of(path: str | Path) -> int:
    """Return the client that sent the message in a file under memory/SHARD/CLIENT/inbox/."""
    return int(Path(path).stem.split("-")[1])


def server_file(round: int) -> str:
    """Return the server state of a round, relative to the run's folder."""
    return f"rounds/{round:04d}/{SERVER}"


def copy_of(path: str, sha256: str) -> str:
    """Return the name of a copy of a run's file, by its digest, relative to the folder of the copies.

    The name still begins as `round_of` and `sender_of` read it. Versions of one thing (the server state, a client's
    memory) lie in one folder; `rounds` has one folder for all rounds.

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
    """Return where the memories and messages of some clients lie, relative to the run's folder."""
    return {folder for c in clients for folder in (client_folder(c), f"{client_folder(c)}/inbox")}


def version(path: Path) -> tuple[int, int] | None:
    """Return what tells the file in a place from one that lay there before; None where there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns
