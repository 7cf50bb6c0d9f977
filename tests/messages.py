"""What leaves a client, method by method: the messages of small runs as they were sent, put into docs/privacy.md.

    python -m tests.messages

Each message is also compared with the samples and labels of the client that sent it, so that the page says of every
method whether raw samples or labels leave a client.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from shoal.data.views.augment import normalise
from shoal.engine.rounds.loop import Engine
from shoal.engine.rounds.runner import ThreadRunner
from shoal.engine.settings.merge import merge
from shoal.engine.settings.run_settings import make_settings
from shoal.engine.store.opened_run import OpenedRun
from shoal.engine.workers.worker import FinishedWork, Worker
from shoal.lifecycle.starting import new_run
from shoal.methods.contract.base import Client, Message, Update
from shoal.methods.contract.message import FACT_BYTES
from shoal.methods.registry import BUILT_IN as METHODS

PAGE = Path(__file__).parent.parent / "docs" / "privacy.md"
BEGIN, END = "<!-- messages: made by python -m tests.messages -->", "<!-- end of messages -->"
DOWN, UP, PEER = "down", "up", "to a peer"
NEAR = 1e-5
"""Two samples are the same where no value differs by more, in the units of the samples."""

COMMON: dict[str, Any] = {
    "data": {"name": "digits", "limit": 120},
    "partition": {"kind": "iid", "clients": 3},
    "model": {"encoder": "tiny-conv"},
    "local": {"epochs": 1, "batch": 20},
    "rounds": 2,
    "workers": {"device": "cpu", "precision": "fp32", "slots": 1},
    "tracking": {"mlflow": False, "prefect": "off"},
}
GROUPS = {"kind": "iid", "clients": 4, "validation": 0.3}
POINTS = {"name": "gaussian", "limit": None, "options": {"samples": 60, "clusters": 3}}
MAJORITY = {"kind": "majority", "p": 0.5, "clients": 3}
CASES: dict[str, dict[str, Any]] = {
    "cfcl": {
        "method": {"steps": 6, "tau_a": 3, "tau_p": 2, "reserve": 5, "budget": 4},
        "partition": {"kind": "labels_per_client", "labels": 2, "clients": 3},
        "model": {"encoder": "pooled-conv"},
        "rounds": 50,
    },
    "fedsimclr_kmeans": {"method": {"kmeans_rounds": 4, "components": 4}, "rounds": 6},
    "cfl": {
        "method": {"criterion": "schedule", "schedule": [1], "gamma_max": 0.0},
        "partition": GROUPS,
    },
    "fedavg": {"partition": GROUPS},
    "ifca": {"method": {"models": 2}, "partition": GROUPS},
    "local_only": {"partition": GROUPS},
    "uifca": {
        "method": {"cluster_rounds": 2, "comm_rounds": 2, "steps": 3},
        "data": POINTS,
        "partition": MAJORITY,
        "rounds": 4,
    },
    "ifca_flows": {"method": {"steps": 3}, "data": POINTS, "partition": MAJORITY},
    "kfed": {"data": POINTS, "partition": MAJORITY},
    "uifca, from k-FED": {
        "method": {"cluster_rounds": 2, "comm_rounds": 2, "steps": 3, "init": "kfed"},
        "data": POINTS,
        "partition": MAJORITY,
        "rounds": 4,
    },
    "fedkmeans": {"method": {"components": 2}, "data": POINTS, "rounds": 8},
    "fedgmm": {"data": POINTS, "rounds": 24},
    "clustergan": {"method": {"steps": 2, "critic_steps": 2, "width": 4}},
}
"""What differs from COMMON, by method."""
NAMES = (*METHODS, *(name for name in CASES if name not in METHODS))
"""The cases of the page, in its order."""


@dataclass
class Part:
    """A part of the messages of one way: tensors whose names begin alike, one number, or raw samples.

    Attributes:
        tensors: how many there are of it in a message, at most.
        shape: of the only tensor, in the largest message; None where there are several.
        bytes: of it in a message, at most.
    """

    tensors: int = 0
    shape: tuple[int, ...] | None = None
    bytes: int = 0


@dataclass
class Sent:
    """What the clients of one run were sent and sent.

    Attributes:
        parts: by way (`DOWN`, `UP`, `PEER`) and name.
        samples: names of parts that are raw samples, and say so (`Message.samples`).
        hidden: names of tensors in which a raw sample of the sender was found.
        labels: names of tensors that are the sender's labels.
    """

    parts: dict[tuple[str, str], Part] = field(default_factory=dict)
    samples: set[str] = field(default_factory=set)
    hidden: set[str] = field(default_factory=set)
    labels: set[str] = field(default_factory=set)

    def add(self, way: str, message: Message, sample_bytes: int) -> None:
        """Count one message."""
        found: dict[str, Part] = {}
        for name, tensor in message.tensors.items():
            part = found.setdefault(name.split(".")[0] + (".*" if "." in name else ""), Part())
            part.tensors += 1
            part.shape = tuple(tensor.shape) if part.tensors == 1 else None
            part.bytes += tensor.numel() * tensor.element_size()
        for name, value in message.facts.items():
            found[name] = Part(0, None, FACT_BYTES * _numbers(value))
        for name, index in message.samples.items():
            found[name] = Part(0, (index.numel(),), sample_bytes * index.numel())
            self.samples.add(name)
        for name, part in found.items():
            known = self.parts.setdefault((way, name), part)
            if part.bytes > known.bytes:
                self.parts[way, name] = part

    def compare(self, message: Message, client: Client) -> None:
        """Look for the client's own samples and labels among the tensors of a message."""
        own = client.train.x()
        width = own[0].numel()
        rows = own.reshape(len(own), width).float()
        shown = [rows, normalise(rows)]
        labels = None if client.train.data.train_y is None else client.train.y().double()
        for name, tensor in message.tensors.items():
            flat = tensor.detach().cpu().double()
            if flat.numel() and flat.numel() % width == 0 and _holds(flat.reshape(-1, width), shown):
                self.hidden.add(name)
            if labels is not None and flat.shape == labels.shape and torch.equal(flat, labels):
                self.labels.add(name)


def _numbers(value: Any) -> int:
    if isinstance(value, Mapping):
        return sum(map(_numbers, value.values()))
    return sum(map(_numbers, value)) if isinstance(value, list | tuple) else 1


def _holds(rows: Tensor, shown: list[Tensor]) -> bool:
    """Whether a row is one of the samples."""
    return any(bool((torch.cdist(rows, own.double(), p=torch.inf) <= NEAR).any()) for own in shown)


class Listener(Worker):
    """A worker that notes every message of its clients."""

    def __init__(self, sent: Sent) -> None:
        super().__init__()
        self.sent = sent

    def write(
        self,
        opened: OpenedRun,
        round: int,
        down: Message,
        client: Client,
        update: Update,
        began: float,
    ) -> FinishedWork:
        """As of `Worker`."""
        size = opened.prepared.spec.sample_bytes
        self.sent.add(DOWN, down, size)
        for way, message in ((UP, update.message), *((PEER, m) for m in update.peers.values())):
            self.sent.add(way, message, size)
            self.sent.compare(message, client)
        return super().write(opened, round, down, client, update, began)


def listen(name: str, changes: Mapping[str, Any] | None = None) -> Sent:
    """Run a method on a small federation below the home folder, and note what its clients send.

    Args:
        name: of the method; what follows a comma tells several cases of one apart.
        changes: laid over the settings of its case.
    """
    raw = merge(COMMON, {"method": {"name": name.split(",")[0]}}, CASES.get(name, {}), dict(changes or {}))
    sent, runner = Sent(), ThreadRunner(2)
    try:
        Engine(new_run(make_settings(raw)), Listener(sent).handle, runner).run_to_end()
    finally:
        runner.close()
    return sent


def section_of(name: str, sent: Sent) -> str:
    """Return what a method sends, as Markdown without a heading: methods that send the same share a section."""
    if METHODS[name.split(",")[0]].pooled:
        return "Not federated: all samples lie in one place, and nothing of it is sent."
    if not sent.parts:
        return "Nothing is sent: each client keeps what it finds."
    lines = [*_named("Raw samples", sent.samples | sent.hidden), *_named("Labels", sent.labels)]
    ways: dict[str, list[str]] = {}
    for way in (DOWN, UP, PEER):
        for (direction, what), part in sorted(sent.parts.items()):
            if direction == way:
                size = "" if part.bytes == FACT_BYTES else f" {part.bytes:,}"
                ways.setdefault(f"`{what}`{size}", []).append(way)
    by_way: dict[str, list[str]] = {}
    for words, found in ways.items():
        by_way.setdefault(" and ".join(found), []).append(words)
    return "\n".join([*lines, *(f"- {way}: {'; '.join(words)}" for way, words in by_way.items())])


def _named(what: str, names: set[str]) -> list[str]:
    """Return lines that say which parts of messages are samples or labels; none where none are."""
    return [f"**{what}**, as {', '.join(f'`{name}`' for name in sorted(names))}.", ""] if names else []


def tables() -> str:
    """Return the sections of all methods; the heading of a section names every method that sends just this."""
    sections: dict[str, list[str]] = {}
    for name in NAMES:
        sections.setdefault(section_of(name, listen(name)), []).append(f"`{name}`")
    return "".join(f"### {', '.join(names)}\n\n{body}\n\n" for body, names in sections.items())


def with_tables(page: str, made: str) -> str:
    """The page with what lies between its marks replaced."""
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n\n{made}{END}{rest.split(END)[1]}"


def main() -> None:
    """Write the sections of docs/privacy.md."""
    with tempfile.TemporaryDirectory() as home:
        os.environ["SHOAL_HOME"] = home
        made = tables()
    PAGE.write_text(with_tables(PAGE.read_text(), made))


if __name__ == "__main__":
    main()
