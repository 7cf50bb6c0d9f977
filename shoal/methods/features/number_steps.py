"""Rounds that seek the number of clusters, by K-means, where the samples of clients lie at sites.

It is the search of `shoal.methods.clustering.cluster_number`, with the same draws: each round is one step for all
numbers, repeats and halves together. They are the rounds of a run whose server has `SEEK` among its facts, once the
space and the offsets of sites are known; the largest number that is tried is that of the run's clusters.

    halves        local centres of each half
    move halves   sums and counts of clusters; again until all centres stand still
    count halves  samples in each pair of clusters of two halves, and sums of silhouettes

Fewer centres than the largest number are filled up with some that are `FAR` from all samples.

Symbols in shapes: n samples of a client, d dimensions, k the largest number of clusters, t numbers that are tried, r
repeats, h halves, s starts of all numbers one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.methods.clustering.client_samples import MAX_SHIFT, ClientSamples, Search, local_starts, sums_over_clients
from shoal.methods.clustering.cluster_number import (
    check_enough,
    draw_half,
    rand_index,
    simplified_silhouette,
    starts_of_half,
)
from shoal.methods.clustering.declared_sums import ClientLimits
from shoal.methods.clustering.federated_k_means import Sums, moved_centres
from shoal.methods.contract.base import Client, Server
from shoal.methods.contract.declared import MessageForm
from shoal.methods.contract.message import Message, Tensors
from shoal.methods.features.centre_clustering import BEGINNINGS
from shoal.methods.features.clustering_step import Answers, ClusteringStep, count_form, positive_form, total_form
from shoal.methods.features.start_steps import drawn_vectors
from shoal.methods.features.vectors import ClientVectors

SEEK = "seek"
"""Among the server's facts: the step of the search that comes next."""
SMALLEST = "smallest"
"""Among the server's facts: the smallest number that is tried."""
MOVES = "moves"
"""Among the server's facts: iterations of K-means."""
TRIED = "tried"
SAMPLES = "samples"
"""Among the server's facts at the end: the criteria of each number (see `Candidate`), and how many samples counted."""
HALVES = "halves.centres"
"""Among the server's tensors, float64: (h, s, k, d), at last of the cheapest start of each number, (h, t, k, d)."""
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


class HalfStarts(HalfStep):
    """Clients send centres of each half, from which the server draws starts."""

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
        """Return the state with the starts of all numbers in each half."""
        told = [(tensors["centres"], tensors["counts"]) for _, tensors in answers]
        local, counts = (torch.cat(parts, 1) for parts in zip(*told, strict=True))
        starts = []
        for half, behind in enumerate(counts):
            known = local[half, behind > 0], behind[behind > 0]
            check_enough(len(known[0]), self.clusters, self.search)
            for k in range(server.facts[SMALLEST], self.clusters + 1):
                start = starts_of_half(*known, k, self.search, self.seed, half)
                starts.append(F.pad(start, (0, 0, 0, self.clusters - k), value=FAR))
        centres = torch.stack(starts).view(len(counts), -1, *starts[0].shape[1:])
        return server.next({**server.model, HALVES: centres}, facts={**server.facts, SEEK: "move halves", MOVES: 0})


class HalfMoves(HalfStep):
    """An iteration of K-means from all starts."""

    def form(self, server: Server, limits: ClientLimits) -> MessageForm:
        """Return the form of sums, counts and costs."""
        shape = tuple(server.model[HALVES].shape)
        counts = count_form(shape[:3], limits.samples)
        return MessageForm({"sums": total_form(shape), "counts": counts, "inertia": positive_form(shape[:2])})

    def answer(self, message: Message, client: Client, z: ClientVectors) -> Tensors:
        """Return sums (h, s, k, d) and counts (h, s, k) of clusters in each half, and costs (h, s)."""
        halves = zip(self.halves(client, z), message.tensors[HALVES].cpu(), strict=True)
        sums = [sums_over_clients(part, starts, self.search.least_points) for part, starts in halves]
        return Sums(*map(torch.stack, zip(*sums, strict=True)))._asdict()

    def after(self, server: Server, answers: Answers) -> Server:
        """Return the state with moved centres; once these stand still, with those of the cheapest starts alone."""
        before = server.model[HALVES]
        sums = Sums(**self.totals(answers))
        centres = moved_centres(before, sums.sums, sums.counts)
        moves = server.facts[MOVES] + 1
        facts = {**server.facts, MOVES: moves}
        if moves == self.search.iterations or bool((centres - before).abs().max() <= MAX_SHIFT):
            starts = (-1, self.search.starts)
            cheapest = sums.inertia.unflatten(1, starts).argmin(2)[:, :, None, None, None]
            centres = centres.unflatten(1, starts).take_along_dim(cheapest, 2).squeeze(2)
            facts[SEEK] = "count halves"
        return server.next({**server.model, HALVES: centres}, facts=facts)


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
            stability = np.mean([rand_index(table) for table in told["tables"][:, place]])
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
