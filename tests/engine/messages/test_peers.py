"""Messages between clients are messages of the engine: counted, delivered once, checkpointed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from shoal.engine.rounds.loop import Engine
from shoal.engine.rounds.runner import ThreadRunner
from shoal.engine.store.run_events import Event
from shoal.engine.workers.worker import Worker
from shoal.lifecycle.starting import new_run
from shoal.methods.contract.base import Client, Clients, Evaluation, Federation, Message, Method, Server, Update
from shoal.methods.contract.declared import MessageForm, TensorForm
from shoal.methods.registry import METHODS


@dataclass(frozen=True)
class RingSettings:
    """Of the ring: none."""


class Ring(Method):
    """Each client passes what it holds to the next one; the server sums what arrived."""

    name = "fedcc"  # stands in for a registered method
    Settings = RingSettings
    settings: RingSettings
    inboxes: ClassVar[list[Any]] = []

    def init_server(self, federation: Federation) -> Server:
        return Server({"sum": torch.zeros(1)}, facts={"clients": federation.clients})

    def broadcast(self, server: Server, client: int) -> Message:
        return Message(facts={"clients": server.facts["clients"]})

    def client_update(self, message: Message, client: Client) -> Update:
        value = float(client.memory["held"]) if client.memory else float(client.id)
        arrived = sum(float(m.tensors["value"]) for _, m in client.inbox)
        peer = (client.id + 1) % message.facts["clients"]
        gift = Message({"value": torch.tensor(value)}, samples={"gift": client.train.index[:3].cpu()})
        memory = {"held": torch.tensor(value + arrived)}
        return Update(Message({"arrived": torch.tensor([float(arrived)])}), {peer: gift}, memory)

    def declared(self, server: Server, client: int, samples: int) -> MessageForm:
        return MessageForm({"arrived": TensorForm((1,))})

    def declared_to_peer(self, server: Server, client: int, peer: int) -> MessageForm:
        return MessageForm({"value": TensorForm(())}, samples={"gift": 3}, indices=self.context.spec.train)

    def aggregate(self, server: Server, updates: Iterable[Update]) -> Server:
        total = sum((u.message.tensors["arrived"] for u in updates), server.tensors["sum"])
        return server.next({"sum": total})

    def evaluate(self, server: Server, clients: Clients, evaluation: Evaluation) -> dict[str, float]:
        return {"sum": float(server.tensors["sum"]), "held": sum(float(c.memory["held"]) for c in clients)}


def test_a_ring_of_letters(home: Path, small: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    settings = small(method={"name": "fedcc"}, rounds=3)
    run = new_run(settings)
    monkeypatch.setitem(METHODS, "fedcc", Ring)
    stop = {"at": 2}

    def watch(event: Event) -> None:
        if event.kind == "round_finished" and event.round == stop["at"]:
            stop["at"] = -1
            raise KeyboardInterrupt

    runner = ThreadRunner(2)
    with pytest.raises(KeyboardInterrupt):
        Engine(run, Worker().handle, runner, 1, [watch]).run_to_end()
    Engine(run, Worker().handle, runner, 1).run_to_end()
    runner.close()
    rounds = run.table("rounds")
    # Letters carry what was held before the round's own arrivals: 0, 1 and 2 in rounds 1 and 2, read a round later.
    assert list(rounds["sum"]) == [0.0, 3.0, 6.0]
    assert list(rounds["held"]) == [3.0, 6.0, 9.0]
    # A gift is one float32 and three 8x8 images of one byte a pixel.
    assert list(rounds["bytes_d2d"]) == [3 * (4 + 3 * 64)] * 3
