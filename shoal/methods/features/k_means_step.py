"""The rounds of K-means: each is one iteration over all clients, for which only sums and counts leave a client.

While a start of each beginning races (see `offsets`), clients answer for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from shoal.methods.clustering.declared_sums import ClientLimits, iteration_form
from shoal.methods.clustering.federated_k_means import cluster_sums, moved_centres
from shoal.methods.contract.base import Client, Server
from shoal.methods.contract.declared import MessageForm
from shoal.methods.contract.message import Message, Tensors
from shoal.methods.features.centre_clustering import CENTRES, has_offsets
from shoal.methods.features.clustering_step import Answers, ClusteringStep
from shoal.methods.features.offsets import STILL_WITH_OFFSETS, best_beginning
from shoal.methods.features.private_sums import ITERATIONS, moved_surely
from shoal.methods.features.space import SCALE, SPECTRAL
from shoal.methods.features.space_steps import COUNT_NOISE
from shoal.methods.features.start_steps import costs_of_starts, drawn_vectors, fits_of_starts, of_starts
from shoal.methods.features.vectors import ClientVectors

RACE_ITERATIONS = 5
"""Iterations for which a start of each beginning goes on."""
LONGEST = "longest"
"""Among the server's state, float64: the largest squared norm of centres beside which sites have found offsets."""
COUNTS = "counts"
"""Among the server's state, float64 (s, c): the sizes of the clusters in the iteration before."""
STILL = 1e-6
"""K-means is done when no centre moves by more than this share of the centres' spread."""


class Iteration(ClusteringStep):
    """One iteration of K-means."""

    def form(self, server: Server, limits: ClientLimits) -> MessageForm:
        """Return the form of sums, counts and costs that the client's vectors can have."""
        return iteration_form(server.model[CENTRES], limits)

    def row_bounds(self, message: Message) -> Mapping[str, float]:
        """Return the bounds of sums and counts, to each of which a row adds once."""
        return {"sums": self.clustering.row_length(message.tensors), "counts": 1.0}

    def answer(self, message: Message, client: Client, z: ClientVectors) -> Tensors:
        """Return the sums of a client's vectors by cluster, their counts and costs, for each start."""
        centres = message.tensors[CENTRES].to(self.clustering.context.device)
        least = self.clustering.min_points
        if len(centres) > 1:
            return self.raced(message, client, z)
        sent = cluster_sums(z.blocks(), centres, min_points=least)._asdict()
        if len(z) < least:
            sent["inertia"] = torch.zeros_like(sent["inertia"])
        return sent

    def raced(self, message: Message, client: Client, z: ClientVectors) -> Tensors:
        """Return the sums of a draw of a client's vectors, less the offset that it has beside each start."""
        drawn = drawn_vectors(client, z)
        weight = len(z) / len(drawn)
        least = self.settings.min_points
        fits = fits_of_starts(drawn, message.tensors)
        centres = message.tensors[CENTRES].to(drawn.device)
        sums = [
            cluster_sums(drawn - fit.offset, start[None], min_points=least)
            for fit, start in zip(fits, centres, strict=True)
        ]
        return {
            "sums": torch.cat([part.sums for part in sums]) * weight,
            "counts": (torch.cat([part.counts for part in sums]) * weight).clamp_max(len(z)),
            "inertia": costs_of_starts(fits, weight, enough=len(z) >= least),
        }

    def after(self, server: Server, answers: Answers) -> Server:
        """Return the state with moved centres; once the race is over, with those of the best beginning alone."""
        sums = self.totals(answers)
        centres = self.means(server, sums)
        iterations = int(server.facts.get("iterations", 0)) + 1
        facts = {
            **server.facts,
            "iterations": iterations,
            "still": self.stands_still(server, centres, sums["counts"], iterations),
        }
        longest = torch.tensor(longest_centre(server), dtype=torch.float64)
        state = {**server.state, LONGEST: longest, COUNTS: sums["counts"]}
        moved = server.next({**server.model, CENTRES: centres}, state=state, facts=facts)
        if iterations >= RACE_ITERATIONS and len(centres) > 1:
            return replace(moved, model=of_starts(moved.model, [best_beginning(sums["inertia"])]))
        return moved

    def means(self, server: Server, sums: Tensors) -> Tensor:
        """Return the means of clusters of so many sums, in place of centres."""
        return moved_centres(server.model[CENTRES], sums["sums"], sums["counts"])

    def stands_still(self, server: Server, centres: Tensor, counts: Tensor, iterations: int) -> bool:
        """Return whether K-means is done with moved centres (s, c, k), of clusters of so many samples (s, c)."""
        if len(centres) > 1:  # while beginnings race, none is known to be the best
            return False
        most = STILL_WITH_OFFSETS if has_offsets(server.model) else STILL
        near = bool((centres - server.model[CENTRES]).abs().max() <= most * centres.std())
        return near and (most == STILL or torch.equal(counts, server.state.get(COUNTS, counts[:0])))


class NoisyIteration(Iteration):
    """Under noise a few iterations from one start, in which clusters of doubtful size stay where they are."""

    def means(self, server: Server, sums: Tensors) -> Tensor:
        """Return the means of clusters of so many sums with noise."""
        told = sums["sums"] if SPECTRAL in server.model else sums["sums"] * (server.model[SCALE] > 0)
        noise = float(server.facts[COUNT_NOISE]) * 2**0.5
        length = self.clustering.row_length(server.model)
        return moved_surely(server.model[CENTRES], told, sums["counts"], noise, length)

    def stands_still(self, server: Server, centres: Tensor, counts: Tensor, iterations: int) -> bool:
        """Return whether enough iterations are done."""
        return iterations >= ITERATIONS


def longest_centre(server: Server) -> float:
    """Return the largest squared norm of the centres, now or beside which sites found offsets."""
    return max(float(server.model[CENTRES].square().sum(2).max()), float(server.state.get(LONGEST, 0.0)))
