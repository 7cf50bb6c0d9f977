"""The search for the number of clusters where samples lie at sites: what sites answer, and what the lead makes of it.

It is the search by K-means of `cluster_number`, with the same draws, as an exchange of messages. A step is one request
to each site, for all numbers, repeats and halves together:

    start    local centres of each half
    move     sums and counts of clusters; again until all centres stand still
    count    samples in each pair of clusters of two halves, and sums of silhouettes

Fewer centres than the largest number that is tried are filled up with some that are `FAR` from all samples.

Symbols in shapes: n samples of a site, d dimensions, k the largest number of clusters, t numbers that are tried, r
repeats, h halves, s starts of all numbers one after the other, l local centres.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.methods.clustering.client_samples import MAX_SHIFT, ClientSamples, Search, local_starts, sums_over_clients
from shoal.methods.clustering.cluster_number import (
    Candidate,
    ClusterNumber,
    check_enough,
    choose_number,
    draw_half,
    rand_index,
    simplified_silhouette,
    starts_of_half,
)
from shoal.methods.clustering.federated_k_means import Sums, moved_centres, summed
from shoal.methods.contract.declared import MessageForm, forms_like
from shoal.methods.contract.message import Tensors

CENTRES = "centres"
"""Told by the lead, float64: (h, s, k, d), and for `count` those of the cheapest start of each number, (h, t, k, d)."""
COUNTS = "counts"
FAR = 1e9

Ask = Callable[[str, Tensors], list[Tensors]]
"""Has every site do a step, given what the lead tells, and returns their answers, by the numbers of their clients."""


@dataclass(frozen=True)
class NumberSearch:
    """A search for the number of clusters by K-means.

    Attributes:
        search: the numbers to try, and how; a sum, a centre or a count of fewer than its `least_points` samples stays.
        seed: of halves and starts.
    """

    search: Search
    seed: int

    @property
    def numbers(self) -> range:
        """Every number that is tried."""
        return range(self.search.min_clusters, self.search.max_clusters + 1)

    # --- the lead -------------------------------------------------------------------------------------------------

    def find(self, ask: Ask) -> tuple[ClusterNumber, int]:
        """Return the number of clusters, and how many samples were clustered.

        Raises:
            MethodError: too few samples for the largest number.
        """
        centres = self.starts(ask("start", {}))
        costs = centres[:, :, 0, 0]
        for _ in range(self.search.iterations):
            before = centres
            sums = Sums(**summed(ask("move", {CENTRES: before})))
            costs = sums.inertia
            centres = moved_centres(before, sums.sums, sums.counts)
            if bool((centres - before).abs().max() <= MAX_SHIFT):
                break
        starts = (-1, self.search.starts)
        cheapest = costs.unflatten(1, starts).argmin(2)[:, :, None, None, None]
        told = summed(ask("count", {CENTRES: centres.unflatten(1, starts).take_along_dim(cheapest, 2).squeeze(2)}))
        silhouettes = (told["silhouettes"] / (2 * told["samples"])).mean(0).tolist()
        tried = []
        for place, k in enumerate(self.numbers):
            stability = np.mean([rand_index(table) for table in told["tables"][:, place]])
            tried.append(Candidate(k, float(stability), silhouettes[place]))
        return ClusterNumber(*choose_number(tried), tuple(tried)), int(told["samples"])

    def starts(self, answers: list[Tensors]) -> Tensor:
        """Return where K-means starts (h, s, k, d), by the local centres of all sites."""
        search = self.search
        local, counts = (torch.cat([answer[name] for answer in answers], 1) for name in (CENTRES, COUNTS))
        starts = []
        for half, behind in enumerate(counts):
            told = local[half, behind > 0], behind[behind > 0]
            check_enough(len(told[0]), search.max_clusters, search)
            for k in self.numbers:
                start = starts_of_half(*told, k, search, self.seed, half)
                starts.append(F.pad(start, (0, 0, 0, search.max_clusters - k), value=FAR))
        return torch.stack(starts).view(len(counts), -1, *starts[0].shape[1:])

    def form(self, step: str, told: Tensors, nothing: ClientSamples) -> MessageForm:
        """Return the form of a site's answer to a step: that of a site without samples."""
        return MessageForm(forms_like(self.answer(step, told, nothing)))

    # --- a site ---------------------------------------------------------------------------------------------------

    def answer(self, step: str, told: Tensors, samples: ClientSamples) -> Tensors:
        """Return the answer of a site with these samples to a step, given what the lead tells."""
        if step == "start":
            return self.local_centres(samples)
        if step == "move":
            return self.sums(samples, told[CENTRES])
        return self.counts(samples, told[CENTRES])

    def halves(self, samples: ClientSamples) -> Iterator[ClientSamples]:
        """Yield both halves of each repeat."""
        for repeat in range(self.search.repeats):
            rows = draw_half(samples, self.seed, repeat)
            yield samples.some(rows)
            yield samples.some(~rows)

    def local_centres(self, samples: ClientSamples) -> Tensors:
        """Return local centres of each half, (h, l, d), and the samples behind each, (h, l): 0 where there is none."""
        centres = []
        counts = []
        for half, part in enumerate(self.halves(samples)):
            local, behind = local_starts(part, self.search, self.seed, f"number of clusters, half {half}")
            free = samples.clients * self.search.max_clusters - len(local)
            centres.append(F.pad(local, (0, 0, 0, free)))
            counts.append(F.pad(behind, (0, free)))
        return {CENTRES: torch.stack(centres), COUNTS: torch.stack(counts)}

    def sums(self, samples: ClientSamples, centres: Tensor) -> Tensors:
        """Return sums (h, s, k, d), counts (h, s, k) and costs (h, s) of an iteration of K-means in each half."""
        halves = zip(self.halves(samples), centres, strict=True)
        sums = [sums_over_clients(part, starts, self.search.least_points) for part, starts in halves]
        return Sums(*map(torch.stack, zip(*sums, strict=True)))._asdict()

    def counts(self, samples: ClientSamples, centres: Tensor) -> Tensors:
        """Return the number of samples, silhouettes (r, t), and tables of clusters of two halves (r, t, k, k)."""
        silhouettes = []
        tables = []
        for pair in centres.unflatten(0, (-1, 2)).transpose(1, 2).flatten(0, 1):
            (a, score_a), (b, score_b) = (simplified_silhouette(samples.x, of_half) for of_half in pair)
            clusters = pair.shape[1]
            table = torch.bincount(a * clusters + b, minlength=clusters**2).double()
            tables.append(even_small(table, self.search.least_points).view(clusters, clusters))
            silhouettes.append((score_a + score_b).sum())
        by_repeat = (self.search.repeats, -1)
        return {
            "samples": torch.tensor(float(len(samples.x)), dtype=torch.float64),
            "silhouettes": torch.stack(silhouettes).unflatten(0, by_repeat),
            "tables": torch.stack(tables).unflatten(0, by_repeat),
        }


def even_small(table: Tensor, least: int) -> Tensor:
    """Return counts of which all from 1 to `least` - 1 have become their mean; 0 where they are fewer samples in all.

    So the number of samples stays, and with it about the adjusted Rand index.

    >>> even_small(torch.tensor([9.0, 4.0, 0.0, 2.0]), 5), even_small(torch.tensor([9.0, 2.0, 0.0]), 5)
    (tensor([9., 3., 0., 3.]), tensor([9., 0., 0.]))
    """
    small = (table > 0) & (table < least)
    hidden = table[small].sum()
    return table.masked_fill(small, float((hidden >= least) * hidden / small.sum().clamp_min(1)))
