"""A CF-CL device's buffers: the reserves and models that neighbours sent it, and the samples it has pulled."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from shoal.data.views.view import Samples
from shoal.methods.contract.base import Client, ClientError, Clients
from shoal.methods.contract.message import Message, Tensors

NO_SAMPLES = torch.zeros(0, 2, dtype=torch.int64)
"""An empty buffer of pulled samples."""


def package(samples: Samples, kind: str, positions: Tensor, round: int) -> Message:
    """Return a message of samples: indices, and the planted transformation of each where there are any."""
    chosen = samples.take(positions.to(samples.index.device))
    facts = {"round": round} if kind == "pulled" else {}
    tensors = {}
    if len(samples.transformations) > 1:
        tensors["planted"] = chosen.transformation.to(torch.int16).cpu()
    return Message(tensors, facts, {kind: chosen.index.cpu()})


def unpack(message: Message, kind: str) -> Tensor:
    """Return index and planted transformation of each sample of a message: int64 (m, 2), on the message's device."""
    index = message.samples[kind].long()
    planted = message.tensors.get("planted", torch.zeros_like(index))
    return torch.stack((index, planted.long()), 1)


def updated_memory(message: Message, client: Client) -> Tensors:
    """Return a device's memory with the weights of the server's message and the samples and models of its inbox.

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
    """Keep neighbours' reserves and models in the memory, and add the samples that were pulled.

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
            senders = torch.full_like(new[:, 0], sender)
            rounds = torch.full_like(new[:, 0], int(message.facts["round"]))
            _append(memory, "received", torch.stack((new[:, 0], senders, rounds), 1))


def _append(memory: Tensors, name: str, rows: Tensor) -> None:
    if name in memory:
        rows = torch.cat((memory[name], rows))
    memory[name] = rows


def with_pulled(own: Samples, pulled: Tensor) -> Samples:
    """Return a device's own samples, then those it has pulled, with their planted transformations."""
    others = pulled_samples(own, pulled)
    return replace(
        own,
        index=torch.cat((own.index, others.index)),
        transformation=torch.cat((own.transformation, others.transformation)),
    )


def drop_pulled(memory: Tensors) -> None:
    """Drop the samples pulled before: the paper's buffer holds those of one pull."""
    memory["pulled"] = memory.get("pulled", NO_SAMPLES)[:0].clone()


def reserves(own: Samples, memory: Tensors, neighbours: Iterable[int]) -> dict[int, Samples]:
    """Return the reserve of each neighbour, empty where it pushed none."""
    return {each: pulled_samples(own, memory.get(f"reserve/{each}", NO_SAMPLES)) for each in neighbours}


def pulled_samples(own: Samples, pulled: Tensor) -> Samples:
    """Return the samples that other devices sent, given as `read_inbox` keeps them, (m, 2)."""
    pulled = pulled.to(own.index.device)
    return replace(own, index=pulled[:, 0], transformation=pulled[:, 1])


class LabelCounts(NamedTuple):
    """How many samples of each label every device has, float64 (devices, classes): its own, and those from others."""

    own: Tensor
    pulled: Tensor

    @property
    def redundancy(self) -> float | None:
        """The share of all samples from others whose label is among their receiver's own; None where there are none."""
        count = float(self.pulled.sum())
        if not count:
            return None
        return float(self.pulled[self.own > 0].sum()) / count


def label_counts(clients: Clients, classes: int) -> LabelCounts:
    """Count the labels of every device's own and pulled samples, its inbox included. For scoring alone."""

    def count(samples: Samples) -> Tensor:
        return torch.bincount(samples.y().cpu(), minlength=classes).double()

    own = []
    pulled = []
    for client in clients:
        memory = dict(client.memory)
        read_inbox(client, memory)
        own.append(count(client.train))
        pulled.append(count(pulled_samples(client.train, memory.get("pulled", NO_SAMPLES))))
    return LabelCounts(torch.stack(own), torch.stack(pulled))
