"""CF-CL with other readings: of its importance (equations 8 to 12), of the negative of a triplet, of its reserves.

It also logs how evenly labels are spread over devices, which no device knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from shoal.core.setting import setting
from shoal.core.streams import Streams
from shoal.data.views.view import Samples
from shoal.methods.cfcl.cfcl import CFCL
from shoal.methods.cfcl.memory import NO_SAMPLES, package, pulled_samples, read_inbox, reserves, updated_memory
from shoal.methods.cfcl.selection import Embeddings, macro_probability, triplet_loss
from shoal.methods.cfcl.settings import CFCLSettings
from shoal.methods.cfcl.state import CFCLState
from shoal.methods.contract.base import Client, Clients, Evaluation, Server, Update
from shoal.methods.contract.context import MethodError
from shoal.methods.contract.declared import MessageForm, TensorForm
from shoal.methods.contract.message import Message, Tensors
from shoal.methods.training.local import as_input
from shoal.methods.training.local_steps import LocalSteps
from shoal.methods.training.model_stack import Batch, LocalModel, StepResult

Macro = Literal["fractions", "share", "sized", "ratio"]


@dataclass(frozen=True)
class ImportanceCFCLSettings(CFCLSettings):
    """Hyper-parameters of CF-CL, and of its importance."""

    candidates: int = setting(200, "number of samples that a sender considers for a pull by importance", ge=1)
    macro: Macro = setting(
        "fractions",
        "macro importance of a cluster: f / (f + g) of its fractions of the candidates and of the reserve (fractions); "
        "the same of the counts (share); n_tx times that (sized); n_tx / n_res as printed (ratio)",
    )
    heat: tuple[float, float] = setting(
        (1.0, 5.0), "selection temperature lambda of micro importance at the first and at the last step, linear between"
    )
    selector: Literal["global", "receiver"] = setting(
        "global", "the model whose embeddings importance compares: the last global one, or the receiver's local one"
    )
    negatives: Literal["batch", "held", "pulled"] = setting(
        "batch",
        "negatives of triplets: the next sample of the batch (batch), any other sample that the device holds (held), "
        "or a pulled one where two or more were pulled (pulled)",
    )
    reserve_kind: Literal["kmeans", "random"] = setting(
        "kmeans", "how the samples of a reserve are chosen: nearest to K-means centroids, or at random"
    )


class ImportanceCFCL(CFCL):
    """CF-CL whose importance, negatives and reserves are settings; by default it is CF-CL."""

    name = "cfcl_importance"
    title = "CF-CL by other importance"
    about = "CF-CL with other readings of its importance."
    Settings = ImportanceCFCLSettings
    settings: ImportanceCFCLSettings
    evaluation_reads_memory = True

    def __init__(self, settings: ImportanceCFCLSettings, context: Any) -> None:
        super().__init__(settings, context)
        if min(settings.heat) < 0:
            raise MethodError(f"method.heat: {list(settings.heat)} has a negative number, expected two from 0 on")
        self.considered = settings.candidates
        self.heat = settings.heat

    def macro(self, cluster_tx: Tensor, cluster_res: Tensor, clusters: int) -> Tensor:
        """Return the probability of each cluster (eq. 8, 9) by the setting `macro`."""
        if self.settings.macro == "fractions":
            return macro_probability(cluster_tx, cluster_res, clusters)
        return macro_by_counts(cluster_tx, cluster_res, clusters, self.settings.macro)

    # --- the receiver's model selects ------------------------------------------------------------------------------

    def models_needed_at(self, step: int) -> bool:
        """Return whether neighbours need a device's model after this number of steps, to choose samples for it."""
        s = self.settings
        chooses = s.selector == "receiver" and s.selection == "cfcl"
        return chooses and step % s.tau_p == 0 and step < s.steps

    def client_update(self, message: Message, client: Client) -> Update:
        """Do CF-CL's step of algorithm 1, with neighbours' models in the device's memory."""
        return super().client_update(message, with_models(client))

    def trained(self, message: Message, client: Client, memory: Tensors, metrics: dict[str, float]) -> Update:
        """Return the update after local steps; the model also goes to neighbours that will choose by it."""
        update = super().trained(message, client, memory, metrics)
        if not self.models_needed_at(message.facts["step"] + message.facts["steps"]):
            return update
        peers = {neighbour: Message({"model": memory["weights"]}) for neighbour in message.facts["neighbours"]}
        return replace(update, peers=peers)

    def declared_to_peer(self, server: Server, client: int, peer: int) -> MessageForm | None:
        """Return the form of what CF-CL sends, or of the model that a neighbour chooses by."""
        state = CFCLState.from_server(server)
        if state.next != "train" or peer not in state.neighbours(client):
            return super().declared_to_peer(server, client, peer)
        if not self.models_needed_at(self.settings.step_after(state)):
            return None
        return MessageForm({"model": TensorForm(tuple(server.model["weights"].shape))})

    def embed(
        self, client: Client, memory: Tensors, positions: Tensor, neighbours: Iterable[int]
    ) -> dict[int, Embeddings]:
        """Return for each neighbour the embeddings that importance needs, by the global model or by its own."""
        if self.settings.selector == "global":
            return super().embed(client, memory, positions, neighbours)
        candidates = client.train.take(positions.to(client.train.index.device))
        generator = client.streams.torch("anchors", self.context.device)
        embedded = {}
        for neighbour, reserved in reserves(client.train, memory, neighbours).items():
            embed = self.embedding_of(memory.get(f"model/{neighbour}", memory["global"]))
            x = embed(candidates, None)
            embedded[neighbour] = Embeddings(x, x[:0], x[:0])
            if len(reserved):
                embedded[neighbour] = Embeddings(x, embed(reserved, None), embed(reserved, generator))
        return embedded

    # --- reserves and negatives ------------------------------------------------------------------------------------

    def push(self, facts: Mapping[str, Any], client: Client, memory: Tensors) -> Update:
        """Send each neighbour a reserve: CF-CL's, or drawn uniformly."""
        update = super().push(facts, client, memory)
        if self.settings.reserve_kind == "kmeans":
            return update
        peers = {}
        for neighbour in update.peers:
            rng = Streams(self.context.seed, client.streams.round, client.id).numpy(f"reserve {neighbour}")
            chosen = self.reserve(client.train.index, rng)
            peers[neighbour] = package(client.train, "reserve", chosen, client.streams.round)
        return replace(update, peers=peers)

    def reserve(self, samples: Tensor, rng: np.random.Generator) -> Tensor:
        """Return positions of a reserve that is drawn uniformly; all where there are fewer samples (n, ...)."""
        size = min(self.settings.reserve, len(samples))
        return torch.from_numpy(np.sort(rng.choice(len(samples), size, replace=False)))

    def local_steps(self, message: Message, client: Client) -> LocalSteps:
        """Take CF-CL's steps, on batches that also hold negatives where they are not of the batch."""
        client = with_models(client)
        steps = super().local_steps(message, client)
        pulled = len(updated_memory(message, client).get("pulled", NO_SAMPLES))
        kind = self.settings.negatives
        if kind == "batch" or (kind == "pulled" and pulled < 2):
            return replace(steps, alike="batch")
        own = len(client.train)
        generator = client.streams.torch("negatives")
        batches = []
        for positions in steps.batches:
            here = positions.cpu()
            if kind == "pulled":
                negatives = pulled_negatives(here, own, pulled, generator)
            else:
                negatives = held_negatives(here, own + pulled, generator)
            batches.append(torch.stack((positions, negatives.to(positions.device)), 1))

        def select(drawn: Tensor) -> Batch:
            positions, negatives = drawn.unbind(1)
            return *steps.select(positions), *steps.select(negatives)

        def inputs(batch: Batch) -> Batch:
            return *steps.inputs(batch[:1]), as_input(client.train.data.computable(batch[1]))

        return replace(steps, batches=batches, select=select, inputs=inputs, alike=kind)

    def step_loss(self, model: LocalModel, parameters: Tensors, batch: Batch, extra: Tensors) -> StepResult:
        """Return the triplet loss, with the negatives that were drawn."""
        if len(batch) == 1:
            return super().step_loss(model, parameters, batch, extra)
        with self.context.autocast():
            anchor, positive, negative = model(torch.cat(batch)).chunk(3)
            return triplet_loss(anchor, positive, negative), {}

    # --- labels ----------------------------------------------------------------------------------------------------

    def declared_memory(self, server: Server, client: int, samples: int) -> MessageForm:
        """Return the form of the pulled samples, whose labels an evaluation counts."""
        pulled = TensorForm((range(2**31),), torch.int64, minimum=0, maximum=self.context.spec.train - 1)
        return MessageForm({"pulled": pulled}, optional=("pulled",), others=True)

    def evaluate(self, server: Server, clients: Clients, evaluation: Evaluation) -> dict[str, float]:
        """Return CF-CL's metrics, and with labels how evenly these are spread.

        `label_variance` is the variance over devices of the number of points of a label that a device has, averaged
        over labels; `label_share_variance` is the same for shares of its points. `redundancy` is the share of the
        points it has from others whose label is among its own. Points pulled in this round count.
        """
        metrics = super().evaluate(server, clients, evaluation)
        if evaluation.data.train_y is None:
            return metrics
        own, pulled = label_counts(clients, evaluation.data.spec.classes or 0)
        table = own + pulled
        metrics["label_variance"] = float(table.var(0, correction=0).mean())
        metrics["label_share_variance"] = float((table / table.sum(1, keepdim=True)).var(0, correction=0).mean())
        if pulled.any():
            metrics["redundancy"] = float(pulled[own > 0].sum() / pulled.sum())
        return metrics


def with_models(client: Client) -> Client:
    """Return a device whose memory holds the models that its neighbours have sent it."""
    sent = {f"model/{s}": received.tensors["model"] for s, received in client.inbox if "model" in received.tensors}
    return replace(client, memory={**client.memory, **sent})


def held_negatives(positions: Tensor, samples: int, generator: torch.Generator) -> Tensor:
    """Draw for each sample of a batch any other that the device holds, all equally likely: positions int64 (n,).

    Args:
        positions: of the batch, among all samples held.
        samples: number of samples held, own and pulled; at least two.
        generator: draws them.
    """
    drawn = torch.randint(samples - 1, (len(positions),), generator=generator)
    return drawn + (drawn >= positions)


def pulled_negatives(positions: Tensor, own: int, pulled: int, generator: torch.Generator) -> Tensor:
    """Draw for each sample of a batch one that was pulled and is not the sample itself: positions int64 (n,).

    Args:
        positions: of the batch, among a device's own samples followed by those it has pulled.
        own, pulled: number of samples of each kind; at least two pulled ones.
        generator: draws them.
    """
    drawn = torch.randint(pulled, (len(positions),), generator=generator)
    same = drawn == positions - own
    return own + torch.where(same, (drawn + 1) % pulled, drawn)


def label_counts(clients: Clients, classes: int) -> tuple[Tensor, Tensor]:
    """Count the labels of every device's own samples and of those from others, its inbox included.

    Returns:
        Both float64 (devices, classes).
    """

    def count(samples: Samples) -> Tensor:
        return torch.bincount(samples.y().cpu(), minlength=classes).double()

    own = []
    pulled = []
    for client in clients:
        memory = dict(client.memory)
        read_inbox(client, memory)
        own.append(count(client.train))
        pulled.append(count(pulled_samples(client.train, memory.get("pulled", NO_SAMPLES))))
    return torch.stack(own), torch.stack(pulled)


def macro_by_counts(cluster_tx: Tensor, cluster_res: Tensor, clusters: int, kind: Macro) -> Tensor:
    """Return the probability of each cluster by its counts, float64 (clusters,): high where the receiver has little.

    Args:
        cluster_tx: cluster of each candidate of the sender (n,).
        cluster_res: cluster of each sample of the receiver's reserve (r,).
        clusters: number of clusters.
        kind: `share`: n_tx / (n_tx + n_res); `sized`: n_tx times that, so that without reserves clusters are drawn by
            their size, as by a uniform pull; `ratio`: n_tx / n_res as printed, n_res at least one.
    """
    tx = torch.bincount(cluster_tx, minlength=clusters).double()
    res = torch.bincount(cluster_res, minlength=clusters).double()
    share = tx / (tx + res).clamp(min=1)
    weight = {"share": share, "sized": tx * share, "ratio": tx / res.clamp(min=1)}[kind]
    return weight / weight.sum()
