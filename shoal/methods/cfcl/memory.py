"""A CF-CL device's buffers: the reserves that neighbours sent it, and the samples it has pulled."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor

from shoal.data.views.view import Samples
from shoal.methods.contract.base import Client
from shoal.methods.contract.message import Message, Tensors

NO_SAMPLES = torch.zeros(0, dtype=torch.int64)
"""An empty buffer of pulled samples."""


def package(samples: Samples, kind: str, positions: Tensor, round: int) -> Message:
    """Return a message of samples, as their indices."""
    facts = {"round": round} if kind == "pulled" else {}
    return Message({}, facts, {kind: samples.index[positions.to(samples.index.device)].cpu()})


def updated_memory(message: Message, client: Client) -> Tensors:
    """Return a device's memory with the weights of the server's message and the samples of its inbox.

    Raises:
        ClientError: fewer than two training samples.
    """
    client.check_samples(2)
    memory = dict(client.memory)
    if "weights" in message.tensors:
        memory["global"] = memory["weights"] = message.tensors["weights"]
    read_inbox(client, memory)
    return memory


def read_inbox(client: Client, memory: Tensors) -> None:
    """Keep neighbours' reserves in the memory, and add the samples that were pulled.

    `pulled` is (m,), the samples; `received` (m, 3): sample, sender, round of the pull.
    """
    for sender, message in client.inbox:
        if "reserve" in message.samples:
            memory[f"reserve/{sender}"] = message.samples["reserve"].long()
        if "pulled" in message.samples:
            new = message.samples["pulled"].long()
            _append(memory, "pulled", new)
            senders = torch.full_like(new, sender)
            rounds = torch.full_like(new, int(message.facts["round"]))
            _append(memory, "received", torch.stack((new, senders, rounds), 1))


def _append(memory: Tensors, name: str, rows: Tensor) -> None:
    if name in memory:
        rows = torch.cat((memory[name], rows))
    memory[name] = rows


def with_pulled(samples: Samples, pulled: Tensor) -> Samples:
    """Return a device's own samples, then those it has pulled."""
    return pulled_samples(samples, torch.cat((samples.index, pulled.to(samples.index.device))))


def reserves(samples: Samples, memory: Tensors, neighbours: Iterable[int]) -> dict[int, Samples]:
    """Return the reserve of each neighbour, empty where it pushed none."""
    return {peer: pulled_samples(samples, memory.get(f"reserve/{peer}", NO_SAMPLES)) for peer in neighbours}


def pulled_samples(samples: Samples, pulled: Tensor) -> Samples:
    """Return the samples that other devices sent, given as `read_inbox` keeps them, (m,)."""
    index = pulled.to(samples.index.device)
    return replace(samples, index=index, owner=None, place=None)
