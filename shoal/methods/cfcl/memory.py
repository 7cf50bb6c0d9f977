"""A CF-CL device's buffers: the reserves and models that neighbours sent it, and the samples it has pulled."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from shoal.data.view import Samples
from shoal.methods.contract.base import Client, ClientError, Clients
from shoal.methods.contract.message import Message, Tensors

NOBODY = torch.zeros(0, 2, dtype=torch.int64)
"""No sample of anybody: an empty buffer."""


def package(samples: Samples, kind: str, positions: Tensor, round: int) -> Message:
    """Samples as they travel: indices, and the planted transformation of each where there are any."""
    here = samples.take(positions.to(samples.index.device))
    facts = {"round": round} if kind == "pulled" else {}
    tensors = {} if len(samples.transformations) < 2 else {"planted": here.transformation.to(torch.int16).cpu()}
    return Message(tensors, facts, {kind: here.index.cpu()})


def unpack(message: Message, kind: str) -> Tensor:
    """Index and planted transformation of each sample of a message: int64 (m, 2), where the message is."""
    index = message.samples[kind].long()
    planted = message.tensors.get("planted")
    return torch.stack((index, torch.zeros_like(index) if planted is None else planted.long()), 1)


def memory_now(message: Message, client: Client) -> Tensors:
    """A device's memory with what the server's message and its inbox bring.

    Raises:
        ClientError: fewer than two training samples.
    """
    if len(client.train) < 2:
        raise ClientError(f"client {client.id} has {len(client.train)} training samples; at least 2 are needed")
    memory = dict(client.memory)
    if "weights" in message.tensors:
        memory["global"] = memory["weights"] = message.tensors["weights"]
    read_inbox(client, memory)
    return memory


def read_inbox(client: Client, memory: Tensors) -> None:
    """Keep neighbours' reserves and models, and add what was pulled.

    `pulled` is (m, 2): sample and planted transformation; `received` (m, 3): sample, sender, round of the pull.
    """
    for sender, message in client.inbox:
        if "reserve" in message.samples:
            memory[f"reserve/{sender}"] = unpack(message, "reserve")
        if "model" in message.tensors:
            memory[f"model/{sender}"] = message.tensors["model"]
        if "pulled" in message.samples:
            new = unpack(message, "pulled")
            _append(memory, "pulled", new)
            known = (torch.full_like(new[:, 0], number) for number in (sender, int(message.facts["round"])))
            _append(memory, "received", torch.stack((new[:, 0], *known), 1))


def _append(memory: Tensors, name: str, rows: Tensor) -> None:
    memory[name] = torch.cat((memory[name], rows)) if name in memory else rows


def at_hand(own: Samples, pulled: Tensor) -> Samples:
    """A device's samples and what it has pulled, planted transformations kept."""
    others = pulled.to(own.index.device)
    return replace(
        own,
        index=torch.cat((own.index, others[:, 0])),
        transformation=torch.cat((own.transformation, others[:, 1])),
    )


def purge(memory: Tensors) -> None:
    """Drop what was pulled before (the paper's buffer of limited size)."""
    memory["pulled"] = memory.get("pulled", NOBODY)[:0].clone()


def reserves(own: Samples, memory: Tensors, near: Iterable[int]) -> dict[int, Samples]:
    """The reserve of each neighbour, empty where it pushed none."""
    return {neighbour: only(own, memory.get(f"reserve/{neighbour}", NOBODY)) for neighbour in near}


def only(own: Samples, others: Tensor) -> Samples:
    """The samples that somebody else sent, (m, 2) as `read_inbox` keeps them."""
    others = others.to(own.index.device)
    return replace(own, index=others[:, 0], transformation=others[:, 1])


class LabelCounts(NamedTuple):
    """How many samples of each label every device has, float64 (devices, classes): its own, and those from others."""

    own: Tensor
    pulled: Tensor

    @property
    def redundancy(self) -> float | None:
        """The share of all samples from others whose label is among their receiver's own; None where there are none."""
        count = float(self.pulled.sum())
        return float(self.pulled[self.own > 0].sum()) / count if count else None


def label_counts(clients: Clients, classes: int) -> LabelCounts:
    """The labels of what every device has at hand: also what is on its way. For scoring alone."""
    counts: tuple[list[Tensor], list[Tensor]] = ([], [])
    for client in clients:
        memory = dict(client.memory)
        read_inbox(client, memory)
        parts = client.train, only(client.train, memory.get("pulled", NOBODY))
        for found, samples in zip(counts, parts, strict=True):
            found.append(torch.bincount(samples.y().cpu(), minlength=classes).double())
    return LabelCounts(*map(torch.stack, counts))
