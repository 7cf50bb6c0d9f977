"""The rounds that find the space: moments of columns, or histograms of them under noise, and principal components."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

import torch

from shoal.core.streams import Streams
from shoal.methods.clustering.declared_sums import (
    ClientLimits,
    check_moments,
    check_products,
    count_form,
    positive_form,
    total_form,
)
from shoal.methods.clustering.federated_k_means import summed
from shoal.methods.contract.base import Client, Server
from shoal.methods.contract.declared import MessageForm
from shoal.methods.contract.message import Message, Tensors
from shoal.methods.features.clustering_step import Answers, ClusteringStep
from shoal.methods.features.components import (
    BLOCK,
    block_products,
    first_block,
    next_block,
    principal_components,
    with_answer,
)
from shoal.methods.features.private_sums import BINS, binned_moments, column_bins, noise_of
from shoal.methods.features.space import PROJECTION, column_moments, energy, shortened
from shoal.methods.features.vectors import ClientVectors

ENERGIES = "energies"
"""Among the server's state, float64, by client: the sum of squared norms of its vectors in the space, before they are
projected, by the moments that it sent; infinite where it sent none."""
COUNT_NOISE = "count_noise"
"""Among the server's facts: the standard deviation of the noise on a count."""


class Moments(ClusteringStep):
    """Clients send the moments of their vectors, from which the space follows."""

    in_the_space = False

    def form(self, server: Server, limits: ClientLimits) -> MessageForm:
        """Return the form of moments that fit each other."""
        width = self.clustering.source.width
        forms = {
            "samples": count_form((), limits.samples),
            "total": total_form((width,)),
            "squares": positive_form((width,)),
        }
        return MessageForm(forms, rule=partial(check_moments, limits=limits))

    def answer(self, message: Message, client: Client, z: ClientVectors) -> Tensors:
        """Return the moments of a client's vectors, none of too few."""
        moments = summed(map(column_moments, z.blocks()))
        if len(z) < self.settings.min_points:
            return {name: torch.zeros_like(tensor) for name, tensor in moments.items()}
        return moments

    def after(self, server: Server, answers: Answers) -> Server:
        """Return the state with a space, and with the first block of directions where components are sought."""
        sent = dict(answers)
        clustering = self.clustering
        space = clustering.fitted_space(self.totals(sent.items()))
        energies = torch.full((1 + max(sent),), math.inf, dtype=torch.float64)
        for client, moments in sent.items():
            if moments["samples"] > 0 and not clustering.context.summed:
                energies[client] = energy(moments, space, centre_sites=self.settings.centre_sites)
        state = {**server.state, ENERGIES: energies}
        if self.settings.components:
            drawn = Streams(clustering.context.seed).torch("principal components")
            space[BLOCK] = first_block(clustering.source.width, self.settings.components, drawn)
        return server.next({**server.model, **space}, state=state)


class Histograms(ClusteringStep):
    """Under noise clients send a histogram of each column, whose bins are the same for all data."""

    in_the_space = False

    def form(self, server: Server, limits: ClientLimits) -> MessageForm:
        """Return the form of histograms."""
        return MessageForm({"counts": count_form((self.clustering.source.width, BINS), limits.samples)})

    def row_bounds(self, message: Message) -> Mapping[str, float]:
        """Return the bound of histograms: a row counts once a column."""
        return {"counts": math.sqrt(self.clustering.source.width)}

    def answer(self, message: Message, client: Client, z: ClientVectors) -> Tensors:
        """Return the histograms of a client's vectors (d, b)."""
        return {"counts": torch.stack([column_bins(part) for part in z.blocks()]).sum(0)}

    def after(self, server: Server, answers: Answers) -> Server:
        """Return the state with a space, which moments are then to refine."""
        counts = self.totals(answers)["counts"]
        moments = binned_moments(counts)
        space, _ = shortened(moments, self.clustering.fitted_space(moments))
        return server.next(space, facts={**server.facts, COUNT_NOISE: noise_of(counts) / math.sqrt(len(counts))})


class ComponentProducts(ClusteringStep):
    """Clients multiply their vectors with a block of directions, until components follow (see `components`)."""

    in_the_space = False

    def form(self, server: Server, limits: ClientLimits) -> MessageForm:
        """Return the form of products that the client's vectors can have."""
        block = server.model[BLOCK]
        forms = {"samples": count_form((), limits.samples), "products": total_form(tuple(block.shape), block.dtype)}
        return MessageForm(forms, rule=partial(check_products, block=block, limits=limits))

    def answer(self, message: Message, client: Client, z: ClientVectors) -> Tensors:
        """Return the products of a client's vectors with the block (d, b), none of too few vectors."""
        block = message.tensors[BLOCK].to(self.clustering.context.device)
        return block_products(z.blocks() if len(z) >= self.settings.min_points else (), block)

    def after(self, server: Server, answers: Answers) -> Server:
        """Return the state with the next block, or with the components once that was the last."""
        kept = {name: tensor for name, tensor in server.state.items() if name == ENERGIES}
        state = with_answer(server.state, server.model[BLOCK], self.totals(answers))
        block = next_block(state, server.model[BLOCK])
        if block is not None:
            return server.next({**server.model, BLOCK: block}, state={**kept, **state})
        space = {name: tensor for name, tensor in server.model.items() if name != BLOCK}
        projection = principal_components(state, self.settings.components, self.settings.whitening)
        return server.next({**space, PROJECTION: projection}, state=kept)
