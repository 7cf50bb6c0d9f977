"""CFL with what studies vary: criteria, what is compared, adversaries, and clients that join and leave.

By default it is CFL. Its parts are in `adversary`, `cfl_gamma` and `cfl_membership`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from shoal.core.setting import setting
from shoal.data.views.view import Samples
from shoal.methods.cfl import latest
from shoal.methods.cfl.bipartition import bipartition, cosine_matrix, separation_gap
from shoal.methods.cfl.cfl import CFL
from shoal.methods.cfl.measure import ClusterMeasure, stack
from shoal.methods.cfl.settings import CFLSettings
from shoal.methods.cfl.state import CFLState
from shoal.methods.cfl.supervised import cross_entropy
from shoal.methods.cfl.tree import Node, Tree
from shoal.methods.contract.base import Client, ClientError, Clients, Evaluation, Federation, Server, Update
from shoal.methods.contract.context import Context, MethodError
from shoal.methods.contract.declared import FactForm, MessageForm, TensorForm
from shoal.methods.contract.message import Message, Tensors
from shoal.methods.training.local import as_input, batches
from shoal.methods.training.local_steps import LocalSteps, TakenSteps
from shoal_research.variants.adversary import AdversarySettings, attack_of, attacked_steps, check_adversaries
from shoal_research.variants.cfl_gamma import NOTHING_SHARED, gamma_of, halves
from shoal_research.variants.cfl_membership import (
    Membership,
    adversaries_apart,
    enrolled_right,
    walk,
    walking_clients,
    with_walking,
)


@dataclass(frozen=True)
class CriteriaCFLSettings(AdversarySettings, CFLSettings):
    """Hyper-parameters of CFL, and of what studies vary."""

    ratio: float = setting(
        0.3, "relative: largest ratio of the mean update's norm to the largest client update's", gt=0, le=1
    )
    patience: int = setting(3, "relative: number of rounds in a row in which the criterion must hold", ge=1)
    min_age: int = setting(10, "relative: number of rounds that a cluster trains before it may be split", ge=0)
    outliers: float = setting(
        0.0,
        "exclude a client whose update norm exceeds this multiple of its cluster's median norm; 0: no such rule",
        ge=0,
    )
    gamma_max: float | Literal["measured"] = setting(  # type: ignore[assignment]
        0.6,
        "split only where sqrt((1 - cross) / 2) exceeds this (eq. 39): a number of at least 0 and below 1, or "
        "measured: the median of the noise that the cluster's clients measure by training on two halves of their "
        "samples, which doubles their work in rounds that may split",
    )
    similarity: Literal["updates", "gradients", "both"] = setting(
        "updates",
        "compute cosines from updates, from full gradients, or from updates while logging the gap of gradients too",
    )
    history: float = setting(
        0.0,
        "compute cosines from each client's updates summed over rounds, discounted by this factor per round; "
        "0: from the updates of this round alone, as in the paper",
        ge=0,
        lt=1,
    )
    presence: tuple[tuple[int, int, int], ...] = setting(
        (),
        "(client, first round, end): clients that are only present from their first round to the round before end; "
        "end 0: to the end of the run; all other clients are always present",
    )


@dataclass(frozen=True, eq=False)
class StudiedMeasure(ClusterMeasure):
    """The measures of one cluster, with those that only studies take.

    Attributes:
        gamma: the median of the noise that its clients measured, if all did.
        gap_round: with a history, the gap of this round's updates alone.
        gap_gradients: with `similarity: both`, the gap of the full gradients.
        outliers: clients whose updates are too long; not logged.
    """

    gamma: float | None = None
    gap_round: float | None = None
    gap_gradients: float | None = None
    outliers: tuple[int, ...] = ()

    def entry(self) -> dict[str, Any]:
        """Return the measures as JSON values for the server's log."""
        return {key: value for key, value in super().entry().items() if key != "outliers"}


class CriteriaCFL(CFL):
    """CFL with what studies vary; by default it is CFL."""

    name = "cfl_criteria"
    title = "CFL by other criteria"
    about = "CFL with further settings of when it splits."
    Settings = CriteriaCFLSettings
    settings: CriteriaCFLSettings

    def __init__(self, settings: CriteriaCFLSettings, context: Any) -> None:
        super().__init__(settings, context)
        check_settings(settings, context)
        self.ratio = settings.ratio
        self.patience = settings.patience
        self.min_age = settings.min_age
        self.membership = Membership(settings.presence)

    def init_server(self, federation: Federation) -> Server:
        """Start with one cluster of all clients that are present from the start."""
        self.membership.check(federation.clients)
        server = super().init_server(federation)
        tree = Tree.start(self.membership.founders(federation.clients))
        return replace(server, facts={**server.facts, **tree.facts()})

    def sample_clients(self, server: Server, federation: Federation) -> list[int]:
        """Return the present clients of the usual draw."""
        drawn = super().sample_clients(server, federation)
        return [client for client in drawn if self.membership.present(client, server.round + 1)]

    def node_of(self, server: Server, client: int) -> Node:
        """Return the node that a client trains at: its cluster, or where it stands on its walk down from the root."""
        tree = Tree.from_facts(server.facts)
        if client in (walking := walking_clients(server.state)):
            return tree.nodes[walking[client]]
        return tree.place(client) if any(client in leaf.clients for leaf in tree.leaves()) else tree.nodes[0]

    def broadcast(self, server: Server, client: int) -> Message:
        """Send the weights of the client's node, the number of clients, and whether it is to measure its noise."""
        facts = {"clients": server.facts["clients"]}
        if self.measures_gamma(self.node_of(server, client), server.round + 1):
            facts["measure"] = 1
        return replace(super().broadcast(server, client), facts=facts)

    def declared(self, server: Server, client: int, samples: int) -> MessageForm:
        """Declare the update of the cluster's weights; the gradient and the noise where settings ask for them."""
        form = super().declared(server, client, samples)
        tensors = dict(form.tensors)
        facts = dict(form.facts)
        if self.settings.similarity != "updates":
            tensors["gradient"] = TensorForm((server.facts["size"],), measured=False)
        if self.measures_gamma(self.node_of(server, client), server.round + 1):
            facts["gamma"] = FactForm(0, NOTHING_SHARED)
        return replace(form, tensors=tensors, facts=facts)

    def may_split(self, node: Node, round: int) -> bool:
        """Return whether a cluster can be split at the end of a round, by what is known at its beginning."""
        s = self.settings
        if s.criterion == "absolute":
            return True
        if s.criterion == "schedule":
            return round in s.schedule
        return node.calm + 1 >= self.patience and round - node.born >= self.min_age

    def measures_gamma(self, node: Node, round: int) -> bool:
        """Return whether the clients of a cluster measure the noise of their updates in a round."""
        return self.settings.gamma_max == "measured" and self.may_split(node, round)

    def local_steps(self, message: Message, client: Client) -> LocalSteps:
        """Return CFL's steps, attacked where the client is an adversary; gradient and noise where settings ask."""
        start = message.tensors["weights"]
        steps = super().local_steps(message, client)
        tensors: Tensors = {}
        if self.settings.similarity != "updates":
            tensors["gradient"] = self.full_gradient(start, client.train)
        attack = attack_of(client.id, message.facts["clients"], self.settings.adversaries)
        if attack is not None:
            steps = attacked_steps(steps, attack, "update", start, self.context, difference=True)
        honest = steps.finish

        def finish(taken: TakenSteps) -> Update:
            update = honest(taken)
            facts = dict(update.message.facts)
            metrics = dict(update.metrics)
            if message.facts.get("measure"):
                facts["gamma"] = metrics["gamma"] = self.measured_gamma(start, client)
            sent = Message({**update.message.tensors, **tensors}, facts)
            return replace(update, message=sent, metrics=metrics)

        return replace(steps, finish=finish)

    def full_gradient(self, start: Tensor, samples: Samples) -> Tensor:
        """Return the negative gradient of the mean loss over all samples at some weights, (size,)."""
        vectors = self.vectors()
        network = vectors.load(self.network(), start)
        add_gradient(network, samples, self.context)
        gradient = torch.cat([p.grad.reshape(-1).float() for p in network.parameters() if p.grad is not None])
        return -gradient if vectors.permutation is None else -gradient[vectors.permutation]

    def measured_gamma(self, start: Tensor, client: Client) -> float:
        """Return the noise of a client's update by two halves of its samples (`cfl_gamma`).

        Raises:
            ClientError: the client has fewer than four training samples.
        """
        count = len(client.train)
        local = self.context.local
        if count < 4:
            raise ClientError(
                f"client {client.id} has {count} training samples; method.gamma_max measured trains on two halves of "
                "them and needs 4: set method.gamma_max to a number, or leave this client out"
            )
        steps = local.steps or local.epochs * (count // min(local.batch, count))
        found = []
        for rows in halves(count, client.streams.torch("gamma halves")):
            half = replace(client, train=client.train.take(rows.to(client.train.index.device)))
            if self.settings.similarity == "gradients":
                found.append(self.full_gradient(start, half.train))
                continue
            vectors = self.vectors()
            network = vectors.load(self.network(), start)
            # As many steps as with all samples: with half as many the weights would move half as far.
            epochs = -(-steps // max(1, len(rows) // min(local.batch, len(rows))))
            many = islice(batches(half, local, epochs), steps)
            self.take(self.epochs(network, half, lambda taken: Update(Message(), metrics=taken.metrics), steps=many))
            found.append((vectors.flatten(network) - start)[: vectors.size])
        return gamma_of(*found)

    def aggregate(self, server: Server, updates: Iterable[Update]) -> Server:
        """Let clients join, leave, and walk one level down the tree; sum updates over rounds; then do what CFL does."""
        state = CFLState.from_server(server)
        kept = dict(server.state)
        by_client = {update.client: update for update in updates}
        walking = walking_clients(kept)
        self.membership.update(state.tree, walking, state.clients, server.round + 1)
        if self.settings.history:
            past = discounted_sum(kept.get("past"), by_client, self.settings.history, state.clients, state.size)
            kept["past"] = past
            by_client = {client: with_tensor(update, "past", past[client]) for client, update in by_client.items()}
        walk(state.tree, walking, kept, by_client, state.size)
        with_walking(kept, walking)
        members = {client for leaf in state.tree.leaves() for client in leaf.clients}
        latest.forget(kept, set(range(state.clients)) - members)
        return super().aggregate(replace(server, state=kept, facts=state.facts()), by_client.values())

    def measure(self, node: int, active: list[int], by_client: Mapping[int, Update], state: CFLState) -> ClusterMeasure:
        """Measure one cluster as CFL does, and what the settings ask for beside it."""
        s = self.settings
        measured = StudiedMeasure(**vars(super().measure(node, active, by_client, state)))
        if len(active) > 1 and (s.history or s.similarity == "gradients"):
            alpha = cosine_matrix(stack(by_client, active, "past" if s.history else "gradient"))
            groups = bipartition(alpha)
            gap = separation_gap(alpha, np.array(state.truth)[active]) if state.truth else None
            measured = replace(measured, alpha=alpha, groups=groups, cross=groups.cross, gap=gap)
        gammas = [by_client[client].message.facts.get("gamma") for client in active]
        if s.gamma_max == "measured" and None not in gammas:
            measured = replace(measured, gamma=float(np.median(gammas)))  # type: ignore[arg-type]
        rows = stack(by_client, active, "update", state.size)
        if s.outliers:
            too_long = (rows.double().norm(dim=1) > s.outliers * measured.median_norm).tolist()
            cut_off = tuple(client for client, cut in zip(active, too_long, strict=True) if cut)
            measured = replace(measured, outliers=cut_off)
        if s.adversaries:
            return replace(measured, gap=None)
        if measured.gap is None:
            return measured
        truth = np.array(state.truth)[active]
        if s.history:
            measured = replace(measured, gap_round=separation_gap(cosine_matrix(rows), truth))
        if s.similarity == "both":
            gradients = cosine_matrix(stack(by_client, active, "gradient"))
            measured = replace(measured, gap_gradients=separation_gap(gradients, truth))
        return measured

    def gamma(self, measure: ClusterMeasure) -> float | None:
        """Return the bound of criterion (39) for a cluster: what its clients measured, or the setting."""
        if self.settings.gamma_max != "measured":
            return self.settings.gamma_max
        return measure.gamma if isinstance(measure, StudiedMeasure) else None

    def groups_to_split(
        self, tree: Tree, measure: ClusterMeasure, active: list[int], round: int, peak: float
    ) -> list[list[int]] | None:
        """Return the two groups of clients where a cluster is to be split, else None: outliers first of all."""
        groups = super().groups_to_split(tree, measure, active, round, peak)
        complete = len(active) == len(tree.nodes[measure.node].clients) > 1
        if not isinstance(measure, StudiedMeasure) or not measure.outliers or not complete:
            return groups
        return [[client for client in active if client not in measure.outliers], list(measure.outliers)]

    def judged_clients(self, state: CFLState) -> list[int]:
        """Return the honest clients, cluster by cluster."""
        honest = state.clients - len(self.settings.adversaries)
        return [client for client in super().judged_clients(state) if client < honest]

    def evaluate(self, server: Server, clients: Clients, evaluation: Evaluation) -> dict[str, float]:
        """Return CFL's scores, and how well new clients found their group and adversaries were set apart."""
        metrics = super().evaluate(server, clients, evaluation)
        state = CFLState.from_server(server)
        honest = self.judged_clients(state)
        late = self.membership.late(honest)
        if state.truth and late:
            right = [enrolled_right(state.tree, client, state.truth) for client in late]
            metrics["enrolled_right"] = sum(right) / len(right)
        if self.settings.adversaries:
            metrics["adversaries_apart"] = adversaries_apart(state.tree, honest)
        return metrics


def check_settings(settings: CriteriaCFLSettings, context: Context) -> None:
    """Refuse settings that contradict each other.

    Raises:
        MethodError: names the settings and what to set instead.
    """
    check_adversaries(settings.adversaries, context)
    if 0 < settings.outliers < 1:
        raise MethodError(
            f"method.outliers is {settings.outliers}: below 1 it would cut off updates shorter than the median; "
            "set 0 (no such rule) or a number above 1, for example 4"
        )
    gamma_max = settings.gamma_max
    if gamma_max != "measured" and not 0 <= gamma_max < 1:
        raise MethodError(
            f"method.gamma_max is {gamma_max:g}, expected a number of at least 0 and below 1, or measured"
        )
    if settings.history and settings.similarity == "gradients":
        raise MethodError("method.history is of updates; with method.similarity gradients set it to 0")
    if settings.history and gamma_max == "measured":
        raise MethodError(
            "method.gamma_max measured is the noise of one round's update, and method.history sums updates over "
            "rounds: set method.gamma_max to a number, or method.history to 0"
        )
    if context.fraction < 1 and (gamma_max == "measured" or settings.similarity != "updates" or settings.history):
        raise MethodError(
            "method.gamma_max measured, method.similarity and method.history need all clients in every round: set "
            "participation.fraction to 1"
        )


def with_tensor(update: Update, name: str, tensor: Tensor) -> Update:
    """Return an update with one more tensor in its message."""
    return replace(update, message=replace(update.message, tensors={**update.message.tensors, name: tensor}))


def discounted_sum(
    past: Tensor | None, updates: Mapping[int, Update], discount: float, clients: int, size: int
) -> Tensor:
    """Return the sum of each client's updates so far, float32 (clients, p); zeros for a client that never sent one.

    Where clients hold few samples, a client's pull swings from round to round with what the others have just taught the
    model. The swings cancel in the sum; what the client's group shares does not.

    Args:
        past: the sum before this round; None in the first.
        updates: of this round, by client.
        discount: weight of the sum before, beside this round's update.
        clients: number of all clients.
        size: p, how many of an update's numbers are parameters.
    """
    past = torch.zeros(clients, size) if past is None else past.clone()
    for client, update in updates.items():
        past[client] = discount * past[client] + update.message.tensors["update"][:size]
    return past


def add_gradient(network: nn.Module, samples: Samples, context: Context, batch: int = 512) -> None:
    """Compute the gradient of the mean loss over all samples, in evaluation mode; it lies in the parameters' `grad`."""
    network.eval()
    network.zero_grad(set_to_none=True)
    text = samples.data.spec.kind == "text"
    for positions in torch.arange(len(samples), device=samples.index.device).split(batch):
        part = samples.take(positions)
        inputs = (part.raw(),) if text else (as_input(part.x()), part.y())
        share = len(positions) / len(samples)
        (cross_entropy(network, inputs, context) * share).backward()
