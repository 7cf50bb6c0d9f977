"""Declared messages and memories of UIFCA clients, by the purpose of the round."""

from __future__ import annotations

import torch
from torch import Tensor

from shoal.methods.contract.base import Update
from shoal.methods.contract.declared import FactForm, MessageForm, TensorForm
from shoal.methods.contract.message import Message


def centres_form(clusters: int, dimensions: int) -> MessageForm:
    """Declare k-FED's local centres, of at least one cluster."""
    return MessageForm({"centres": TensorForm((range(1, clusters + 1), dimensions))})


def learn_form(flows: Tensor, samples: int) -> MessageForm:
    """Declare trained flows `flow/K`, and the facts beside them.

    These are `counts`: the points that flow k was trained on, its weight in the average, 0 if it diverged; `points`:
    those of flow k, also if it diverged; and `changed`: how many points changed their cluster in this round.

    Args:
        flows: the flows that training began from, (K, p).
        samples: number of the client's samples.
    """
    counts = FactForm(0, samples, whole=True, length=len(flows))
    facts = {"counts": counts, "points": counts, "changed": FactForm(0, samples, whole=True)}
    tensors = {f"flow/{k}": TensorForm(tuple(flow.shape), flow.dtype, start=flow) for k, flow in enumerate(flows)}

    def rule(message: Message) -> str | None:
        counts = message.facts["counts"]
        points = message.facts["points"]
        if any(bool(count) != (f"flow/{k}" in message.tensors) for k, count in enumerate(counts)):
            return f"its counts {list(counts)} do not match the flows that it holds"
        if sum(points) > samples or any(a > b for a, b in zip(counts, points, strict=True)):
            return f"its flows have {list(points)} points, expected {samples} together at most"
        return None

    return MessageForm(tensors, facts, optional=tuple(tensors), rule=rule)


def beyond_centres(update: Update) -> str | None:
    """Return why a client's local clusters do not belong to the centres that it sends; None where they do."""
    centres = update.message.tensors.get("centres")
    local = (update.memory or {}).get("local")
    if centres is None or local is None or not local.numel() or int(local.max()) < len(centres):
        return None
    return f"'local' names cluster {int(local.max())}, and {len(centres)} centres were sent"


def memory_form(clusters: int, samples: int) -> MessageForm:
    """Declare the clusters of a client's points in its memory, where they are judged."""
    of_points = TensorForm((samples,), torch.int64, minimum=0, maximum=clusters - 1)
    return MessageForm({"assignment": of_points, "local": of_points}, optional=("assignment", "local"))
