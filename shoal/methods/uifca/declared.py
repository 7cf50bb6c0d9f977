"""Declared messages and memories of UIFCA clients, by the purpose of the round."""

from __future__ import annotations

import torch
from torch import Tensor

from shoal.methods.contract.base import Update
from shoal.methods.contract.declared import FactForm, MessageForm, TensorForm
from shoal.methods.contract.message import Message
from shoal.methods.uifca.state import LearnReport

MEMORY = ("assignment", "local", "cluster_round")


def centres_form(clusters: int, dimensions: int) -> MessageForm:
    """Declare k-FED's local centres, of at least one cluster."""
    return MessageForm({"centres": TensorForm((range(1, clusters + 1), dimensions))})


def learn_form(flows: Tensor, samples: int) -> MessageForm:
    """Declare trained flows and the report beside them, see `shoal.methods.uifca.state.LearnReport`.

    Args:
        flows: the flows that training began from, (K, p).
        samples: number of the client's samples.
    """
    counts = FactForm(0, samples, whole=True, length=len(flows))
    largest = torch.finfo(torch.float32).max * max(1, samples)
    facts = {
        "counts": counts,
        "points": counts,
        "changed": FactForm(0, samples, whole=True),
        # The loss of a flow that has diverged is not finite: this is no fault of the client.
        "held_loss": FactForm(-largest, largest, length=len(flows), finite=False),
        "held_count": counts,
    }
    tensors = {f"flow/{k}": TensorForm(tuple(flow.shape), flow.dtype, start=flow) for k, flow in enumerate(flows)}

    def rule(message: Message) -> str | None:
        report = LearnReport.from_message(message)
        if any(bool(count) != (f"flow/{k}" in message.tensors) for k, count in enumerate(report.counts)):
            return f"its counts {list(report.counts)} do not match the flows that it holds"
        if sum(report.points) > samples or any(a > b for a, b in zip(report.counts, report.points, strict=True)):
            return f"its flows have {list(report.points)} points, expected {samples} together at most"
        if len(report.held_loss) != len(report.held_count):
            return "it holds either losses or numbers of held-out points, expected both or neither"
        return None

    return MessageForm(tensors, facts, optional=(*tensors, "held_loss", "held_count"), rule=rule)


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
    number = TensorForm((1,), torch.int64, minimum=0)
    return MessageForm({"assignment": of_points, "local": of_points, "cluster_round": number}, optional=MEMORY)
