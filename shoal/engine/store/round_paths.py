"""The paths of a round's files in the folder of a run.

rounds/0007/manifest.json, server.safetensors                the checkpoint of round 7 (rounds/.0007.tmp until closed)
rounds/0007/memories.safetensors                             the index of memories and inboxes
rounds/0007/judged.safetensors                               tensors that replaced the state's in its evaluation
work/0007/update-3.safetensors, memory-3.safetensors,        the answer of client 3 in round 7, which is complete
work/0007/peer-3-5.safetensors, done-3.json                  if done-3.json exists
work/0007/asked.json                                         clients at sites whose private updates are accounted for
work/0007/message-0.safetensors                              part of the server's messages to clients of round 7
memory/0/3/0007.safetensors                                  private memory of client 3 after round 7
memory/0/5/inbox/0007-3.safetensors                          message from client 3 to client 5 in round 7
memory/12/12345/0007.safetensors                             of client 12345: a thousand clients share a folder
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

MANIFEST = "manifest.json"
SERVER = "server.safetensors"
MEMORIES = "memories.safetensors"
JUDGED = "judged.safetensors"
CLIENTS_PER_FOLDER = 1000
"""Number of clients with neighbouring ids that share a folder."""


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
        """The folder of the checkpoint until it is closed."""
        return self.run / "rounds" / f".{self.round:04d}.tmp"

    @property
    def server(self) -> Path:
        """The server state in the checkpoint."""
        return self.checkpoint / SERVER

    @property
    def judged(self) -> Path:
        """The tensors that replaced those of the state in its evaluation; missing if none did."""
        return self.checkpoint / JUDGED

    @property
    def manifest(self) -> Path:
        """The manifest in the checkpoint."""
        return self.checkpoint / MANIFEST

    @property
    def memories(self) -> Path:
        """The index of the files of memories and inboxes of the checkpoint."""
        return self.checkpoint / MEMORIES

    @cached_property
    def work(self) -> Path:
        """The folder of the clients' answers in the round."""
        return self.run / "work" / f"{self.round:04d}"

    def done(self, client: int) -> Path:
        """Return the done-file of a client."""
        return self.work / f"done-{client}.json"

    @property
    def asked(self) -> Path:
        """The clients at sites whose private updates of the round are accounted for."""
        return self.work / "asked.json"


def client_folder(client: int) -> str:
    """Return the folder of a client's memory and inbox, relative to the run's folder.

    Clients are spread over folders, since some file systems allow only tens of thousands of folders in one, and need
    minutes to list a million.
    """
    return f"memory/{client // CLIENTS_PER_FOLDER}/{client}"


def memory_path(client: int, round: int) -> str:
    """Return the lasting file of a client's memory after a round, relative to the run's folder."""
    return f"{client_folder(client)}/{round:04d}.safetensors"


def inbox_path(receiver: int, sender: int, round: int) -> str:
    """Return the lasting file of a message between two clients, relative to the run's folder."""
    return f"{client_folder(receiver)}/inbox/{round:04d}-{sender}.safetensors"


def update_file(client: int) -> str:
    """Return the name, under `RoundPaths.work`, of a client's message to the server."""
    return f"update-{client}.safetensors"


def memory_file(client: int) -> str:
    """Return the name, under `RoundPaths.work`, of a client's new private memory."""
    return f"memory-{client}.safetensors"


def peer_file(sender: int, receiver: int) -> str:
    """Return the name, under `RoundPaths.work`, of a client's message to another."""
    return f"peer-{sender}-{receiver}.safetensors"


def sender_of(path: str | Path) -> int:
    """Return the client that sent the message in a file of an inbox."""
    return int(Path(path).stem.split("-")[1])
