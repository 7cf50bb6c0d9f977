"""The search for the number of clusters where samples lie at sites: what sites answer, and what the lead makes of it.

It is the search by K-means of `cluster_number`, with the same halves, as two requests to each site for all numbers:

    centres    local centres of each half
    counts     samples in each pair of clusters of two halves, and sums of silhouettes

The lead's K-means is of local centres (as in k-FED), and no iteration over samples follows: sums of so many clusterings
of the same samples would show it each of them.
Fewer centres than the largest number that is tried are filled up with some that are `FAR` from all samples.

Symbols in shapes: n samples of a site, d dimensions, k the largest number of clusters, t numbers that are tried, r
repeats, h halves, l local centres.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import attrgetter

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.core.streams import Streams
from shoal.methods.clustering.client_samples import ClientSamples, Search, local_starts
from shoal.methods.clustering.cluster_number import (
    Candidate,
    ClusterNumber,
    check_enough,
    choose_number,
    draw_half,
    rand_index,
    simplified_silhouette,
)
from shoal.methods.clustering.federated_k_means import local_clusterings, summed
from shoal.methods.contract.declared import MessageForm, forms_like
from shoal.methods.contract.message import Tensors

CENTRES = "centres"
"""Of each number in each half, float64 (h, t, k, d), as the lead tells them; and the step before."""
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
        told = summed(ask("counts", {CENTRES: self.centres(ask("centres", {}))}))
        silhouettes = (told["silhouettes"] / (2 * told["samples"])).mean(0).tolist()
        tried = []
        for place, k in enumerate(self.numbers):
            stability = np.mean([rand_index(table) for table in told["tables"][:, place]])
            tried.append(Candidate(k, float(stability), silhouettes[place]))
        return ClusterNumber(*choose_number(tried), tuple(tried)), int(told["samples"])

    def centres(self, answers: list[Tensors]) -> Tensor:
        """Return the centres of each half and number (h, t, k, d), by the local centres of all sites."""
        local, counts = (torch.cat([answer[name] for answer in answers], 1) for name in (CENTRES, COUNTS))
        most = self.search.max_clusters
        halves = []
        for half, behind in enumerate(counts):
            told = local[half, behind > 0], behind[behind > 0]
            check_enough(len(told[0]), most, self.search)
            rng = Streams(self.seed).numpy(f"number of clusters, half {half}, by local centres")
            drawn = [local_clusterings(*told, k, self.search.starts, rng) for k in self.numbers]
            best = [min(clusterings, key=attrgetter("inertia")).centres for clusterings in drawn]
            halves.append(np.stack([np.pad(c, ((0, most - len(c)), (0, 0)), constant_values=FAR) for c in best]))
        return torch.from_numpy(np.stack(halves))

    def form(self, step: str, told: Tensors, nothing: ClientSamples) -> MessageForm:
        """Return the form of a site's answer to a step: that of a site without samples."""
        return MessageForm(forms_like(self.answer(step, told, nothing)))

    # --- a site ---------------------------------------------------------------------------------------------------

    def answer(self, step: str, told: Tensors, samples: ClientSamples) -> Tensors:
        """Return the answer of a site with these samples to a step, given what the lead tells."""
        if step == CENTRES:
            return self.local_centres(samples)
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
