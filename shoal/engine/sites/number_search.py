"""The search for the number of clusters of a run at sites: how it is done, and the samples of a site in it."""

from __future__ import annotations

import math

import torch

from shoal.engine.settings.run_settings import Settings
from shoal.engine.store.codec import tensors_of
from shoal.engine.store.opened_run import OpenedClients, OpenedRun
from shoal.methods.clustering.client_samples import ROWS, ClientSamples, Search
from shoal.methods.clustering.number_at_sites import NumberSearch
from shoal.methods.contract.message import Message
from shoal.methods.features.feature_clustering import FeatureClustering

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
    method = opened.method
    assert isinstance(method, FeatureClustering)
    message = Message(tensors_of(space, "a file of a message")[0], {"step": "start"})
    share = MAX_SAMPLES / len(opened.partition.sample)
    x = []
    owners = []
    for client in OpenedClients(opened, 0):
        vectors, _ = method.source.own_projected(client, message.tensors)
        rows = method.rows_in_space(message, vectors, None)
        order = torch.randperm(len(client.train), generator=client.streams.torch("samples for the number of clusters"))
        kept = order[: math.ceil(len(order) * share)].sort().values
        x += [rows(part).cpu() for part in kept.to(client.train.index.device).split(ROWS)]
        owners.append(torch.full((len(kept),), client.id))
    return ClientSamples(torch.cat(x), torch.cat(owners), opened.partition.clients)
