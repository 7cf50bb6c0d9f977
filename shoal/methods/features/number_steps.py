"""Rounds that seek the number of clusters, by K-means, where the samples of clients lie at sites.

It is the search of `shoal.methods.clustering.cluster_number`, with the same halves: two rounds for all numbers, repeats
and halves together. They are the last ones of a run whose server has `SEEK` among its facts, once the space and the
offsets of sites are known; the largest number that is tried is that of the run's clusters.

    halves        local centres of each half
    count halves  samples in each pair of clusters of two halves, and sums of silhouettes

The server's K-means is of local centres (as in k-FED), and no iteration over samples follows: sums of so many
clusterings of the same samples would show it each of them.
Fewer centres than the largest number are filled up with some that are `FAR` from all samples.

Symbols in shapes: n samples of a client, d dimensions, k the largest number of clusters, t numbers that are tried, r
repeats, h halves.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.methods.clustering.agreement import table_ari
from shoal.methods.clustering.client_samples import ClientSamples, Search, local_starts
from shoal.methods.clustering.cluster_number import (
    check_enough,
    draw_half,
    simplified_silhouette,
)
from shoal.methods.clustering.declared_sums import ClientLimits, count_form, positive_form, total_form
from shoal.methods.clustering.federated_k_means import local_clusterings
from shoal.methods.contract.base import Client, Server
from shoal.methods.contract.declared import MessageForm
from shoal.methods.contract.message import Message, Tensors
from shoal.methods.features.centre_clustering import BEGINNINGS
from shoal.methods.features.clustering_step import Answers, ClusteringStep
from shoal.methods.features.start_steps import drawn_vectors
from shoal.methods.features.vectors import ClientVectors

SEEK = "seek"
"""Among the server's facts: the step of the search that comes next."""
SMALLEST = "smallest"
"""Among the server's facts: the smallest number that is tried."""
TRIED = "tried"
SAMPLES = "samples"
"""Among the server's facts at the end: the criteria of each number (see `Candidate`), and how many samples counted."""
HALVES = "halves.centres"
"""Among the server's tensors: centres of each number in each half, float64 (h, t, k, d)."""
FAR = 1e9


class HalfStep(ClusteringStep):
    """A step of the search; a client answers for a draw of its vectors, of which it draws halves."""

    @property
    def search(self) -> Search:
        """How numbers are tried; a sum, a centre or a count of fewer than `least_points` samples stays."""
        return Search(max_clusters=self.clusters, least_points=self.settings.min_points)

    @property
    def seed(self) -> int:
        """The seed of halves and starts."""
        return self.clustering.context.seed

    def halves(self, client: Client, z: ClientVectors) -> Iterator[ClientSamples]:
        """Yield both halves of each repeat."""
        x = drawn_vectors(client, z).cpu()
        samples = ClientSamples(x, torch.full((len(x),), client.id), client.id + 1)
        for repeat in range(self.search.repeats):
            rows = draw_half(samples, self.seed, repeat)
            yield samples.some(rows)
            yield samples.some(~rows)


class HalfCentres(HalfStep):
    """Clients send centres of each half, which the server clusters."""

    def form(self, server: Server, limits: ClientLimits) -> MessageForm:
        """Return the form of local centres."""
        shape = (2 * self.search.repeats, self.clusters)
        centres = total_form((*shape, self.clustering.space_width(server)))
        return MessageForm({"centres": centres, "counts": count_form(shape, limits.samples)})

    def answer(self, message: Message, client: Client, z: ClientVectors) -> Tensors:
        """Return local centres of each half, (h, k, d), and the samples behind each, (h, k): 0 where there is none."""
        centres = []
        counts = []
        for half, part in enumerate(self.halves(client, z)):
            local, behind = local_starts(part, self.search, self.seed, f"number of clusters, half {half}")
            free = self.clusters - len(local)
            centres.append(F.pad(local, (0, 0, 0, free)))
            counts.append(F.pad(behind, (0, free)))
        return {"centres": torch.stack(centres), "counts": torch.stack(counts)}

    def after(self, server: Server, answers: Answers) -> Server:
        """Return the state with the centres of all numbers in each half."""
        told = [(tensors["centres"], tensors["counts"]) for _, tensors in answers]
        local, counts = (torch.cat(parts, 1) for parts in zip(*told, strict=True))
        check_enough(int((counts > 0).sum(1).min()), self.clusters, self.search)
        halves = []
        for half, behind in enumerate(counts):
            known = local[half, behind > 0], behind[behind > 0]
            rng = self.server_rng(f"number of clusters, half {half}, by local centres")
            numbers = range(server.facts[SMALLEST], self.clusters + 1)
            drawn = [local_clusterings(*known, k, self.search.starts, rng) for k in numbers]
            best = [min(clusterings, key=attrgetter("inertia")).centres for clusterings in drawn]
            halves.append(
                np.stack([np.pad(c, ((0, self.clusters - len(c)), (0, 0)), constant_values=FAR) for c in best])
            )
        centres = torch.from_numpy(np.stack(halves))
        return server.next({**server.model, HALVES: centres}, facts={**server.facts, SEEK: "count halves"})


class HalfCounts(HalfStep):
    """Clients count their samples in each pair of clusters of two halves."""

    def form(self, server: Server, limits: ClientLimits) -> MessageForm:
        """Return the form of tables and of sums of silhouettes."""
        shape = (self.search.repeats, server.model[HALVES].shape[1])
        tables = count_form((*shape, self.clusters, self.clusters), limits.samples)
        count = count_form((), limits.samples)
        return MessageForm({"samples": count, "silhouettes": positive_form(shape), "tables": tables})

    def answer(self, message: Message, client: Client, z: ClientVectors) -> Tensors:
        """Return the number of samples, silhouettes (r, t), and tables of clusters of two halves (r, t, k, k)."""
        x = drawn_vectors(client, z).cpu()
        silhouettes = []
        tables = []
        for pair in message.tensors[HALVES].cpu().unflatten(0, (-1, 2)).transpose(1, 2).flatten(0, 1):
            (a, score_a), (b, score_b) = (simplified_silhouette(x, of_half) for of_half in pair)
            table = torch.bincount(a * self.clusters + b, minlength=self.clusters**2).double()
            tables.append(even_small(table, self.search.least_points).view(self.clusters, self.clusters))
            silhouettes.append((score_a + score_b).sum())
        by_repeat = (self.search.repeats, -1)
        return {
            "samples": torch.tensor(float(len(x)), dtype=torch.float64),
            "silhouettes": torch.stack(silhouettes).unflatten(0, by_repeat),
            "tables": torch.stack(tables).unflatten(0, by_repeat),
        }

    def after(self, server: Server, answers: Answers) -> Server:
        """Return the state with the criteria of each number, which is the last, and has no centres to judge."""
        told = self.totals(answers)
        silhouettes = (told["silhouettes"] / (2 * told["samples"])).mean(0).tolist()
        tried = []
        for place, silhouette in enumerate(silhouettes):
            stability = np.mean([table_ari(table.numpy()) for table in told["tables"][:, place]])
            tried.append((server.facts[SMALLEST] + place, float(stability), silhouette))
        facts = {**server.facts, TRIED: tried, SAMPLES: int(told["samples"])}
        return server.next({BEGINNINGS: server.model[BEGINNINGS]}, facts=facts, finished=True)


def even_small(table: Tensor, least: int) -> Tensor:
    """Return counts of which all from 1 to `least` - 1 have become their mean; 0 where they are fewer samples in all.

    So the number of samples stays, and with it about the adjusted Rand index.

    >>> even_small(torch.tensor([9.0, 4.0, 0.0, 2.0]), 5), even_small(torch.tensor([9.0, 2.0, 0.0]), 5)
    (tensor([9., 3., 0., 3.]), tensor([9., 0., 0.]))
    """
    small = (table > 0) & (table < least)
    hidden = table[small].sum()
    return table.masked_fill(small, float((hidden >= least) * hidden / small.sum().clamp_min(1)))
