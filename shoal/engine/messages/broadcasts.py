"""The server's messages to the clients of a round, as files: a worker gets these, and never the server's state.

A message has two files: one for the tensors of the model, and one for all else. Clients whose files would be equal
share them, so that a large model is written once a round, however many clients get it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Hashable

from torch import Tensor

from shoal.core.durable import private_folder
from shoal.engine.store.codec import save_message
from shoal.engine.store.round_paths import RoundPaths
from shoal.engine.store.run_folder import RunFolder
from shoal.methods.contract.base import Method, Server
from shoal.methods.contract.message import Message, Tensors


class Broadcasts:
    """Makes and writes the messages of one round; threads may share it.

    Args:
        run: the run's folder.
        round: the round.
        method: of the run.
    """

    def __init__(self, run: RunFolder, round: int, method: Method) -> None:
        self._method = method
        self._paths = RoundPaths(run.path, round)
        self._files: dict[Hashable, tuple[str, str]] = {}
        self._messages: list[Message] = []
        """All that were written: while their tensors are kept, no other tensor has the same place in memory."""
        self._lock = threading.Lock()
        private_folder(run.work)
        private_folder(self._paths.work)

    def write(self, server: Server, client: int) -> dict[str, str]:
        """Write the message to a client, unless equal files are there.

        Args:
            server: the state from which the client begins.
            client: its id.

        Returns:
            The hex digest of each of its files, by path in the run's folder.
        """
        message = self._method.broadcast(server, client)
        of_model = {place(tensor) for tensor in server.model.values()}
        model = {name: tensor for name, tensor in message.tensors.items() if place(tensor) in of_model}
        rest = {name: tensor for name, tensor in message.tensors.items() if name not in model}
        parts = [Message(rest, message.facts, message.samples)]
        if model:
            parts.append(Message(model))
        with self._lock:
            return dict(self._file(part) for part in parts)

    def _file(self, part: Message) -> tuple[str, str]:
        """Return path and digest of the file of a part."""
        key = places(part.tensors), places(part.samples), json.dumps(part.facts, sort_keys=True)
        if key not in self._files:
            path = self._paths.work / f"message-{len(self._files)}.safetensors"
            self._files[key] = str(path.relative_to(self._paths.run)), save_message(path, part)
            self._messages.append(part)
        return self._files[key]


def place(tensor: Tensor) -> Hashable:
    """Return where the values of a tensor lie in memory, and how they are read."""
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.device


def places(tensors: Tensors) -> Hashable:
    """Return the names and places of tensors."""
    return tuple((name, place(tensor)) for name, tensor in sorted(tensors.items()))
