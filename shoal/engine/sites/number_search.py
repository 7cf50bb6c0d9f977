"""The search for the number of clusters of a run at sites: how it is done, and the samples of a site in it."""

from __future__ import annotations

import math

import torch

from shoal.engine.settings.run_settings import Settings
from shoal.engine.store.codec import tensors_of
from shoal.engine.store.opened_run import OpenedClients, OpenedRun
from shoal.methods.clustering.client_samples import ClientSamples, Search
from shoal.methods.clustering.number_at_sites import NumberSearch
from shoal.methods.contract.message import Message

MAX_SAMPLES = 20_000
"""The largest number of samples of all sites that are clustered, about: each client draws its share."""


def search_of(settings: Settings) -> NumberSearch:
    """Return the search of a run whose method clusters features."""
    choose = settings.choose
    least = settings.method.min_points
    return NumberSearch(Search(choose.min_clusters, choose.max_clusters, least_points=least), settings.seed)


def samples_here(opened: OpenedRun, space: bytes) -> ClientSamples:
    """Return a draw of a site's samples, where the method of a run clusters them.

    Args:
        opened: the run.
        space: the server's tensors, as bytes of a file.
    """
    message = Message(tensors_of(space, "a file of a message")[0], {"step": "start"})
    share = MAX_SAMPLES / len(opened.partition.sample)
    x = []
    owners = []
    for client in OpenedClients(opened, 0):
        summed = opened.method.summed_rows(message, client)
        assert summed is not None
        order = torch.randperm(len(summed.rows), generator=client.streams.torch("samples for the number of clusters"))
        drawn = order[: math.ceil(len(order) * share)].sort().values
        x.append(summed.rows[drawn])
        owners.append(torch.full((len(drawn),), client.id))
    return ClientSamples(torch.cat(x), torch.cat(owners), opened.partition.clients)
