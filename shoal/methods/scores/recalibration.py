"""BatchNorm before judging: an averaged network gets the statistics of its clients' own training data.

No label is used and no sample leaves its client; see `shoal.methods.training.batch_statistics`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from shoal.methods.contract.base import Client, Clients, Evaluation
from shoal.methods.contract.context import Context
from shoal.methods.contract.message import Tensors
from shoal.methods.training.batch_statistics import Party, has_batch_norm, settle
from shoal.methods.training.local import as_input

MIN_CLIENT_SAMPLES = 32
"""Samples of each client: where there are so many clients that each would give fewer, fewer clients take part."""


def recalibrate(network: nn.Module, clients: Clients, evaluation: Evaluation, context: Context) -> Tensors:
    """Find the statistics of an averaged network on its clients' training samples, without augmentation.

    About `evaluation.recalibrate` samples pass the network (see `settle`): equally many of each client, a seeded
    draw, or all that it has. Clients are weighted by all their samples. A seeded draw of very many clients takes part.

    Args:
        network: with the averaged weights; changed in place, and left in evaluation mode.
        clients: of the federation.
        evaluation: gives the number of samples, the streams, and the batch.
        context: of the run.

    Returns:
        The new statistics by their names in the network's state; empty where it has no BatchNorm, or no client data.
    """
    if not evaluation.recalibrate or not has_batch_norm(network):
        return {}
    parties = [_party(client, share, evaluation, context) for client, share in _participants(clients, evaluation)]
    if not any(party.batches for party in parties):
        return {}
    return settle(network, parties, context, evaluation.at_site)


def _participants(clients: Clients, evaluation: Evaluation) -> list[tuple[Client, int]]:
    """Return the clients that take part, each with its largest number of samples."""
    count = min(len(clients), max(1, evaluation.recalibrate // MIN_CLIENT_SAMPLES))
    order = torch.randperm(len(clients), generator=evaluation.streams.torch("recalibrate.clients"))
    share = -(-evaluation.recalibrate // count)
    return [(clients[number], share) for number in sorted(order[:count].tolist()) if number in clients]


def _party(client: Client, share: int, evaluation: Evaluation, context: Context) -> Party:
    streams = replace(evaluation.streams, client=client.id)
    order = torch.randperm(len(client.train), generator=streams.torch("recalibrate"))[:share]
    positions = order.to(client.train.index.device).split(evaluation.batch)

    def batch(part: Tensor) -> Tensor:
        return as_input(client.train.x(part).to(context.device))

    return Party(len(client.train), [partial(batch, part) for part in positions if len(part)])
